"""Whether two answers to the same turn say the same, by checks that need no model. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CHECKS", "Said", "disagreements"]

LENGTHS = 4.0
"""An answer that is this many times as long says something else."""
SHORT_CHARS = 40
"""Below this length a factor means nothing."""
_TENS = {"noon": 12, "midnight": 0, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50}
_UNITS = "zero one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
_NUMBERS = {
    word: str(number) for word, number in ({w: n for n, w in enumerate(_UNITS)} | _TENS).items()
}
_FIGURE = re.compile(r"\d+(?:[.,:]\d+)*")
_DAY = re.compile(
    r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|today|tomorrow|tonight|yesterday|january"
    r"|february|march|april|june|july|august|september|october|november|december"
    r"|may(?=\s+\d)|(?<=\b(?:in|of) )may)s?\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_MERIDIEM = re.compile(r"\b(\d{1,2})(?::(\d\d))?\s*(a|p)\.?m\b\.?", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:no|not|never|none|nothing|neither|nor|without|unfortunately|cannot|closed|unavailable"
    r"|\w+n['’]t)\b",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\bi(?:['’]m| am) (?:sorry|afraid|unable|not able)\b|\bas an ai\b"
    r"|\bi (?:can['’]t|cannot) (?:help|assist|do|provide|answer|discuss)\b"
    r"|\bi do(?:n['’]t| not) have (?:access|information)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Said:
    """One answer.

    Parameters:
        text: Its text.
        tool_calls: The tools that it called, as JSON: a list of ``[name, arguments]``.
    """

    text: str
    tool_calls: str = "[]"


def disagreements(one: Said, other: Said) -> list[str]:
    """Return the names of the checks by which two answers differ; empty if they agree."""
    return [name for name, check in CHECKS.items() if check(one) != check(other)] + (
        [] if _alike_in_length(one.text, other.text) else ["length"]
    )


def _tools(said: Said) -> Any:
    """The tools and their arguments, in any order."""
    calls = [[name, _normal(arguments)] for name, arguments in json.loads(said.tool_calls)]
    return sorted(json.dumps(call, sort_keys=True) for call in calls)


def _normal(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, Mapping):
        return {key: _normal(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [_normal(each) for each in value] if isinstance(value, list) else value


def _figures(said: Said) -> Counter[str]:
    """The numbers, times and prices, however they are written."""
    text = _MERIDIEM.sub(_in_24_hours, said.text.casefold())
    found = Counter(_plain(figure) for figure in _FIGURE.findall(text))
    found.update(_NUMBERS[word] for word in _WORD.findall(text) if word in _NUMBERS)
    del found["1"]  # "one" is mostly not a number
    return Counter(set(found))


def _in_24_hours(match: re.Match[str]) -> str:
    hour = int(match[1]) % 12 + (12 if match[3].casefold() == "p" else 0)
    return f"{hour}:{match[2]}" if match[2] else str(hour)


def _plain(figure: str) -> str:
    figure = (
        figure.replace(",", "") if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", figure) else figure
    )
    figure = figure.replace(",", ".")
    return re.sub(r"[.:]0+$", "", figure)


def _dates(said: Said) -> set[str]:
    """The days and months that are named."""
    return {day.casefold().rstrip("s") for day in _DAY.findall(said.text)}


def _polarity(said: Said) -> bool:
    """Whether the first sentence denies something."""
    first = re.split(r"(?<=[.!?])\s", said.text.strip(), maxsplit=1)[0]
    return _NEGATION.search(first) is not None


def _refusal(said: Said) -> bool:
    return _REFUSAL.search(said.text) is not None


def _alike_in_length(one: str, other: str) -> bool:
    shorter, longer = sorted((len(one), len(other)))
    return longer < SHORT_CHARS or longer <= LENGTHS * max(shorter, 1)


CHECKS: Mapping[str, Callable[[Said], Any]] = {
    "tools": _tools,
    "figures": _figures,
    "dates": _dates,
    "polarity": _polarity,
    "refusal": _refusal,
}
"""What must be equal in two answers; beside their lengths."""
