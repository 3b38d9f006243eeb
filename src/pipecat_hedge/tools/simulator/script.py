"""The simulated model's answers: the telephone line of the restaurant "Harbour Kitchen".

The user's last message selects the answer by pattern, so speech recognition may mishear a word.
Answers suit speech: two or three short sentences, the first one shortest.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from pipecat_hedge.tools.simulator.timeline import Reply, ToolCall, tokenize


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the conversation.

    Parameters:
        role: ``user``, ``assistant``, ``instructions`` (system and developer) or ``tool``.
        text: Its text; for ``tool`` the result.
    """

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request for an answer, in any protocol.

    Parameters:
        turns: The conversation, oldest first.
        tools: Names of the tools that may be called.
        stream: Whether the answer is streamed.
        max_tokens: The most tokens of the answer.
        include_usage: Whether a stream ends with its usage (optional in OpenAI's protocol only).
        transcript: What its audio says, if it is a request for a transcript.
    """

    turns: tuple[Turn, ...]
    tools: tuple[str, ...] = ()
    stream: bool = True
    max_tokens: int | None = None
    include_usage: bool = True
    transcript: str | None = None

    @property
    def input_tokens(self) -> int:
        """The estimated length: four characters per token, at least 1."""
        return max(1, sum(len(turn.text) for turn in self.turns) // 4)

    @property
    def has_tool_result(self) -> bool:
        """Whether the prompt ends with a tool's result."""
        return bool(self.turns) and self.turns[-1].role == "tool"

    @property
    def user_texts(self) -> list[str]:
        """The user's messages, oldest first."""
        return [turn.text for turn in self.turns if turn.role == "user"]


GREETING = "Harbour Kitchen, good day! How can I help you?"
FALLBACK = (
    "Sorry, I did not catch that. You can ask me about our hours, the menu, or a table. "
    "What would you like to know?"
)

CALLER_LINES = (
    *("hello are you open on sunday", "i would like to book a table for two at seven"),
    *("could you make that four people please", "do you deliver", "thank you goodbye"),
)
"""What simulated recognisers hear if nothing else is set."""

_GREET = re.compile(r"\b(greet|introduce yourself|say hello|welcome the)\b", re.I)

# The first match decides, so specific patterns come first.
_ANSWERS = {
    r"\b(cancel|never ?mind)": (
        "No problem. I have cancelled that for you. Is there anything else I can do?"
    ),
    r"\b(make (that|it|the)|change (that|it)|instead)\b.*|\b(four|five|six) people\b": (
        "Of course. I have changed your table to {party} people. See you then."
    ),
    r"\b(allerg\w*|nuts?|peanuts?|gluten)\b": (
        "Thank you for telling me. Our curry contains cashew nuts, so please avoid it. The "
        "grilled fish is safe for you."
    ),
    r"\b(vegetarian|vegetables?|vegan)\b": (
        "Yes, we do. Try our mushroom risotto, or the roasted vegetable tart. Both are very "
        "popular."
    ),
    r"\b(fish|chips)\b": (
        "That is fourteen pounds. It comes with mushy peas and our own tartar sauce."
    ),
    r"\b(pizzas?|pick ?up|take ?away|order)\b": (
        "Sure. Two pizzas for pick up will be ready in about twenty minutes. Which ones would "
        "you like?"
    ),
    r"\bspecial|\bwhat is .*\btoday\b": (
        "Today it is grilled mackerel. It comes with new potatoes and a green salad. It costs "
        "sixteen pounds."
    ),
    r"\b(deliver\w*)\b": (
        "Yes, we do. We deliver within three miles, and it takes about forty minutes."
    ),
    r"\b(park|parking|car)\b": (
        "Yes, there is. The harbour car park is two minutes away. It is free after six."
    ),
    r"\b(outside|out ?doors?|terrace|garden)\b": (
        "Yes, you can. We have eight tables on the terrace, right by the water. Blankets are free."
    ),
    r"\b(book|booking|reserve|reservation|table)\b": (
        "Certainly. I have booked a table for {party} at {hour}. What name shall I put it under?"
    ),
    r"\b(sunday|open|opening)\b": (
        "Yes, we are. On Sunday we open at noon, and the kitchen closes at nine."
    ),
    r"\b(close|closed|closing|clothes|tonight)\b": (
        "We close at eleven. The kitchen takes its last orders at ten."
    ),
    r"\b(where|address|located|location|find you)\b": (
        "We are at twelve Quay Street. That is right on the harbour, next to the lighthouse."
    ),
    r"\b(thanks?|thank you|good ?bye|bye)\b": "You are welcome. Goodbye, and see you soon!",
    r"\b(hello|hi|hey|good (morning|evening|afternoon))\b": GREETING,
}

_BOOKS = re.compile(r"\b(book|booking|reserve|reservation|table|make (that|it))\b", re.I)
_CANCELS = re.compile(r"\b(cancel|never ?mind)", re.I)

_NUMBERS = (
    *("one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_NUMBER = rf"({'|'.join(_NUMBERS)}|\d{{1,2}})"
_PARTY = re.compile(rf"\bfor {_NUMBER}\b|\b{_NUMBER} (?:people|persons|of us|guests)", re.I)
_TIME = re.compile(rf"\bat {_NUMBER}(?:[: ]([0-5]\d|thirty|fifteen|forty[ -]five))?\b", re.I)
_MINUTES = {"thirty": 30, "fifteen": 15, "forty five": 45, "forty-five": 45}


def reply_to(prompt: Prompt) -> Reply:
    """Return the model's answer: text, or a call of a booking tool if there is one."""
    texts = prompt.user_texts
    # Pipecat adds a turn of "." for some providers.
    utterance = next((text for text in reversed(texts) if text.strip() not in ("", ".")), None)
    if not prompt.has_tool_result and utterance is not None:
        if "cancel_booking" in prompt.tools and _CANCELS.search(utterance):
            return Reply(tool=tool_call("cancel_booking", {}))
        if "book_table" in prompt.tools and _BOOKS.search(utterance):
            return Reply(tool=tool_call("book_table", booking_arguments(texts)))
    return spoken(_continued(_answer(prompt, utterance), prompt), prompt.max_tokens)


def spoken(text: str, max_tokens: int | None) -> Reply:
    """Return a text as a reply of at most ``max_tokens`` tokens."""
    tokens = tokenize(text)
    if max_tokens is not None and len(tokens) > max_tokens:
        return Reply(tokens=tokens[:max_tokens], is_truncated=True)
    return Reply(tokens=tokens)


def tool_call(name: str, arguments: dict[str, Any]) -> ToolCall:
    """Return a tool call with its arguments in short fragments, as models stream them."""
    text = json.dumps(arguments)
    return ToolCall(name, tuple(text[start : start + 6] for start in range(0, len(text), 6)))


def booking_arguments(texts: list[str]) -> dict[str, Any]:
    """Return the arguments of a ``book_table`` call after these user messages."""
    party, minutes = _booking(texts)
    return {"party_size": party, "time": f"{minutes // 60:02}:{minutes % 60:02}"}


def _answer(prompt: Prompt, utterance: str | None) -> str:
    last = prompt.turns[-1] if prompt.turns else None
    is_to_greet = last is not None and last.role != "assistant" and _GREET.search(last.text)
    if utterance is None or is_to_greet:
        return GREETING
    party, minutes = _booking(prompt.user_texts)
    for pattern, answer in _ANSWERS.items():
        if re.search(pattern, utterance, re.I):
            return answer.format(party=_number_text(party), hour=_hour(minutes))
    return FALLBACK


def _continued(answer: str, prompt: Prompt) -> str:
    """Return the rest of an answer that the last message, an assistant's, has begun."""
    turns = [turn for turn in prompt.turns if turn.text.strip() != "."]
    begun = turns[-1].text.strip() if turns and turns[-1].role == "assistant" else ""
    if begun and answer.startswith(begun) and begun != answer:
        return answer[len(begun) :]
    return answer


def _booking(texts: list[str]) -> tuple[int, int]:
    """Return the latest party size and time in minutes after midnight; else two at 19:00."""
    party, minutes = 2, 19 * 60
    for text in texts:
        if found := _PARTY.search(text):
            party = _number(found[1] or found[2])
        if found := _TIME.search(text):
            hour = _number(found[1])
            minute = _MINUTES.get((found[2] or "0").lower()) or int(found[2] or 0)
            minutes = (hour + 12 if hour < 12 else hour) % 24 * 60 + minute
    return party, minutes


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _NUMBERS.index(text.lower()) + 1


def _number_text(number: int) -> str:
    return _NUMBERS[number - 1] if 1 <= number <= len(_NUMBERS) else str(number)


def _hour(minutes: int) -> str:
    hour, minute = divmod(minutes, 60)
    spoken_minutes = {15: " fifteen", 30: " thirty", 45: " forty five"}.get(minute, "")
    return _number_text((hour - 1) % 12 + 1) + spoken_minutes
