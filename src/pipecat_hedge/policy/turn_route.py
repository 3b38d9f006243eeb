"""Orders the providers by what a turn asks for: the user's route. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pipecat_hedge.policy.arguments import require_number
from pipecat_hedge.race.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RoutedTurn:
    """A turn that is about to be raced.

    Parameters:
        messages: The conversation: dictionaries with ``role`` and ``content``.
        order: The providers' names in the given order.
        has_tools: Whether the model may call tools.
        routed_to: The providers that the route has put first in this call so far.
    """

    messages: Sequence[Any]
    order: Sequence[str]
    has_tools: bool = False
    routed_to: Collection[str] = ()

    @property
    def last_words(self) -> str:
        """The text of the caller's last message; empty if there is none."""
        for message in reversed(self.messages):
            if isinstance(message, Mapping) and message.get("role") == "user":  # pyright: ignore[reportUnknownMemberType]
                return _text(message.get("content"))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return ""


@dataclass(frozen=True, slots=True)
class RouteChoice:
    """Which providers come first in a turn.

    Parameters:
        first: The names of the providers that come first; the others follow in the given order.
        reason: Why, for reports. It must not contain what was said.
        score: What the choice depends on, for reports and ``whatif``; None if it is no number.
    """

    first: Sequence[str]
    reason: str
    score: float | None = None


TurnRoute: TypeAlias = Callable[[RoutedTurn], RouteChoice | str | None]
"""Returns the choice, or the name of the provider that comes first; None keeps the given order."""


def chosen(route: TurnRoute, turn: RoutedTurn) -> RouteChoice:
    """Return the choice of a user's route.

    Raises:
        ConfigurationError: If it names a provider that the race does not have.
    """
    found = route(turn)
    if found is None:
        return RouteChoice((), "the route has no preference")
    if isinstance(found, str):
        found = RouteChoice((found,), f"routed to {found}")
    if unknown := [name for name in found.first if name not in turn.order]:
        raise ConfigurationError(
            f"route returned {unknown[0]!r}, which is not a provider: return one of "
            f"{', '.join(turn.order)}"
        )
    return found


REASONING = re.compile(
    r"\b(why|how come|compar\w+|differen\w+|explain\w*|calculat\w+|how (?:many|much|long) .* if"
    r"|in total|altogether|what if|unless|should i|would it|better|best|recommend\w*"
    r"|instead of|except|depends?)\b",
    re.IGNORECASE,
)
CORRECTION = re.compile(
    r"^\W*(?:(?:no|nope|actually)\b\W*)*(?:wrong\b|i (?:meant|said)\b"
    r"|not (?:that(?! i\b)|what)\b"
    r"|(?:that|this|it)(?:['’]?s| is| was)"
    r"(?: wrong| incorrect|(?: not|n['’]?t) (?:it|right|correct|true|what|the|my))\b)",
    re.IGNORECASE,
)
"""How callers correct the bot. "No" may as well answer its question."""
ASKING = re.compile(
    r"\?|\b(?:and|also) (?:what|when|where|who|how|do|does|is|are|can|could)\b", re.I
)
MOST_CHARS = 1_000
"""The part of a turn that is read, which bounds the time that this takes."""
MANY_WORDS = 40
"""A caller's turn of this length is long: the median is around ten words."""
LONG = 0.3
"""What a long turn adds to the score."""
QUESTIONS = 0.2
"""What each further question adds."""
TOOLS = 0.1
"""What tools on offer beside figures in the turn add."""
REASONS = 0.3
"""What each word of reasoning adds."""
CORRECTS = 0.3
"""What a correction of the last answer adds."""


class ComplexityRouter:
    """Sends simple turns to one provider first and complex ones to another; a ``TurnRoute``.

    The score of a turn is from 0 to 1, and less than ``threshold`` is simple. It grows with the
    turn's length, the number of questions, words of reasoning, figures where tools are offered, and
    if the caller corrects the answer before. Within a call the order only changes from simple to
    complex: later turns often refer to a complex one.
    """

    def __init__(
        self,
        *,
        simple: str,
        complex: str,
        threshold: float = 0.3,
        reasoning: str | re.Pattern[str] = REASONING,
        correction: str | re.Pattern[str] = CORRECTION,
    ):
        """Name the providers.

        Args:
            simple: The provider that comes first in simple turns.
            complex: The provider that comes first in complex turns.
            threshold: The score from which a turn is complex, from 0 to 1.
            reasoning: A regular expression for words of reasoning; the default is English.
            correction: A regular expression for the beginning of a correction; the default is
                English.

        Raises:
            ConfigurationError: If the threshold is out of range or an expression is invalid.
        """
        remedy = "0.3 is the default, 0 finds every turn complex"
        require_number("threshold", threshold, "from 0 to 1", remedy, lambda x: 0 <= x <= 1)
        for field, name in (("simple", simple), ("complex", complex)):
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{field} must be a provider's name, got {name!r}")
        self.simple, self.complex, self.threshold = simple, complex, threshold
        self._reasoning = _compiled("reasoning", reasoning)
        self._correction = _compiled("correction", correction)

    def __call__(self, turn: RoutedTurn) -> RouteChoice:
        """Return the provider that comes first."""
        score = self.score(turn)
        if self.complex in turn.routed_to and score < self.threshold:
            why = f"complexity {score:.2f}, and the call was complex before: {self.complex}"
            return RouteChoice((self.complex,), why, score)
        name = self.simple if score < self.threshold else self.complex
        return RouteChoice((name,), f"complexity {score:.2f}: {name}", score)

    def score(self, turn: RoutedTurn) -> float:
        """Return a turn's complexity, from 0 to 1."""
        text = turn.last_words[:MOST_CHARS]
        score = LONG * min(len(text.split()) / MANY_WORDS, 1.0)
        score += QUESTIONS * min(max(len(ASKING.findall(text)) - 1, 0), 2)
        score += TOOLS * (turn.has_tools and any(char.isdigit() for char in text))
        score += REASONS * min(len(self._reasoning.findall(text)), 2)
        score += CORRECTS * (self._correction.match(text) is not None)
        return min(score, 1.0)


def _compiled(field: str, pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern, re.IGNORECASE) if isinstance(pattern, str) else pattern
        compiled.match("")  # one for bytes cannot
        return compiled
    except (re.error, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{field} is no regular expression: {error}") from None


def _text(content: Any) -> str:
    """The text of a message, which may be a list of parts."""
    if isinstance(content, str):
        return content
    parts: Sequence[Any] = content if isinstance(content, list) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return " ".join(text for text in texts if isinstance(text, str))
