"""What the model says: a conversation on the telephone line of the restaurant "Harbour Kitchen".

The last thing the caller said chooses the answer, by pattern, so that speech recognition may
mishear a word. Answers are spoken: two or three short sentences, the first one shortest, nothing
that a voice cannot read.
"""

import json
import re
from typing import Any

from pipecat_hedge.tools.simulator.prompt import Prompt
from pipecat_hedge.tools.simulator.timeline import Reply, ToolCall, tokenize

GREETING = "Harbour Kitchen, good day! How can I help you?"
FALLBACK = (
    "Sorry, I did not catch that. You can ask me about our hours, the menu, or a table. "
    "What would you like to know?"
)

_GREET = re.compile(r"\b(greet|introduce yourself|say hello|welcome the)\b", re.I)

# The first pattern that is found decides, so the narrow ones come first.
_ANSWERS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.I), answer)
    for pattern, answer in (
        (
            r"\b(cancel|never ?mind)",
            "No problem. I have cancelled that for you. Is there anything else I can do?",
        ),
        (
            r"\b(make (that|it|the)|change (that|it)|instead)\b.*|\b(four|five|six) people\b",
            "Of course. I have changed your table to {party} people. See you then.",
        ),
        (
            r"\b(allerg\w*|nuts?|peanuts?|gluten)\b",
            "Thank you for telling me. Our curry contains cashew nuts, so please avoid it. "
            "The grilled fish is safe for you.",
        ),
        (
            r"\b(vegetarian|vegetables?|vegan)\b",
            "Yes, we do. Try our mushroom risotto, or the roasted vegetable tart. "
            "Both are very popular.",
        ),
        (
            r"\b(fish|chips)\b",
            "That is fourteen pounds. It comes with mushy peas and our own tartar sauce.",
        ),
        (
            r"\b(pizzas?|pick ?up|take ?away|order)\b",
            "Sure. Two pizzas for pick up will be ready in about twenty minutes. "
            "Which ones would you like?",
        ),
        (
            r"\bspecial|\bwhat is .*\btoday\b",
            "Today it is grilled mackerel. It comes with new potatoes and a green salad. "
            "It costs sixteen pounds.",
        ),
        (
            r"\b(deliver\w*)\b",
            "Yes, we do. We deliver within three miles, and it takes about forty minutes.",
        ),
        (
            r"\b(park|parking|car)\b",
            "Yes, there is. The harbour car park is two minutes away. It is free after six.",
        ),
        (
            r"\b(outside|out ?doors?|terrace|garden)\b",
            "Yes, you can. We have eight tables on the terrace, right by the water. "
            "Blankets are free.",
        ),
        (
            r"\b(book|booking|reserve|reservation|table)\b",
            "Certainly. I have booked a table for {party} at {hour}. "
            "What name shall I put it under?",
        ),
        (
            r"\b(sunday|open|opening)\b",
            "Yes, we are. On Sunday we open at noon, and the kitchen closes at nine.",
        ),
        (
            r"\b(close|closed|closing|clothes|tonight)\b",
            "We close at eleven. The kitchen takes its last orders at ten.",
        ),
        (
            r"\b(where|address|located|location|find you)\b",
            "We are at twelve Quay Street. That is right on the harbour, next to the lighthouse.",
        ),
        (r"\b(thanks?|thank you|good ?bye|bye)\b", "You are welcome. Goodbye, and see you soon!"),
        (r"\b(hello|hi|hey|good (morning|evening|afternoon))\b", GREETING),
    )
)

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
    """What the model says to a prompt: text, or a call of a booking tool if there is one."""
    said = [turn.text for turn in prompt.turns if turn.role == "user"]
    utterance = _last_words(said)
    if not has_tool_result(prompt) and utterance is not None:
        if "cancel_booking" in prompt.tools and _CANCELS.search(utterance):
            return Reply(tool=tool_call("cancel_booking", {}))
        if "book_table" in prompt.tools and _BOOKS.search(utterance):
            party, minutes = _booking(said)
            time = f"{minutes // 60:02}:{minutes % 60:02}"
            return Reply(tool=tool_call("book_table", {"party_size": party, "time": time}))
    return spoken(_continued(_answer(prompt, utterance, said), prompt), prompt.max_tokens)


def has_tool_result(prompt: Prompt) -> bool:
    """Whether the prompt ends with what a tool returned, so that the model is to speak about it."""
    return bool(prompt.turns) and prompt.turns[-1].role == "tool"


def spoken(text: str, max_tokens: int | None) -> Reply:
    """A text as a reply of at most ``max_tokens`` tokens."""
    tokens = tokenize(text)
    if max_tokens is not None and len(tokens) > max_tokens:
        return Reply(tokens=tokens[:max_tokens], is_truncated=True)
    return Reply(tokens=tokens)


def tool_call(name: str, arguments: dict[str, Any]) -> ToolCall:
    """A tool call with its arguments in fragments of a few characters, as models stream them."""
    text = json.dumps(arguments)
    return ToolCall(name, tuple(text[start : start + 6] for start in range(0, len(text), 6)))


def default_arguments(prompt: Prompt) -> dict[str, Any]:
    """The arguments of a ``book_table`` call made whatever the caller said."""
    party, minutes = _booking([turn.text for turn in prompt.turns if turn.role == "user"])
    return {"party_size": party, "time": f"{minutes // 60:02}:{minutes % 60:02}"}


def _last_words(said: list[str]) -> str | None:
    """What the caller said last; not the turn of "." that Pipecat adds for some providers."""
    return next((text for text in reversed(said) if text.strip() not in ("", ".")), None)


def _answer(prompt: Prompt, utterance: str | None, said: list[str]) -> str:
    last = prompt.turns[-1] if prompt.turns else None
    asked_to_greet = last is not None and last.role != "assistant" and _GREET.search(last.text)
    if utterance is None or asked_to_greet:
        return GREETING
    party, minutes = _booking(said)
    for pattern, answer in _ANSWERS:
        if pattern.search(utterance):
            return answer.format(party=_words(party), hour=_hour(minutes))
    return FALLBACK


def _continued(answer: str, prompt: Prompt) -> str:
    """What is left of an answer that the last message, an assistant's, has begun."""
    turns = [turn for turn in prompt.turns if turn.text.strip() != "."]
    begun = turns[-1].text.strip() if turns and turns[-1].role == "assistant" else ""
    if begun and answer.startswith(begun) and begun != answer:
        return answer[len(begun) :]
    return answer


def _booking(said: list[str]) -> tuple[int, int]:
    """How many people, and when in minutes after midnight, as said last; else two at 19:00."""
    party, minutes = 2, 19 * 60
    for text in said:
        if found := _PARTY.search(text):
            party = _number(found[1] or found[2])
        if found := _TIME.search(text):
            hour = _number(found[1])
            minute = _MINUTES.get((found[2] or "0").lower()) or int(found[2] or 0)
            minutes = (hour + 12 if hour < 12 else hour) % 24 * 60 + minute
    return party, minutes


def _number(word: str) -> int:
    return int(word) if word.isdigit() else _NUMBERS.index(word.lower()) + 1


def _words(number: int) -> str:
    return _NUMBERS[number - 1] if 1 <= number <= len(_NUMBERS) else str(number)


def _hour(minutes: int) -> str:
    hour, minute = divmod(minutes, 60)
    spoken_minutes = {15: " fifteen", 30: " thirty", 45: " forty five"}.get(minute, "")
    return _words((hour - 1) % 12 + 1) + spoken_minutes
