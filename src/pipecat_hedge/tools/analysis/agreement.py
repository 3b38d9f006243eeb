"""Whether two answers to the same turn say the same, by checks that need no model. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from text_to_num import alpha2digit

LENGTHS = 4.0
"""An answer that is this many times as long says something else."""
SHORT_CHARS = 40
"""Below this length a factor means nothing."""
_FIGURE = re.compile(r"\d+(?:[.,:]\d+)*")
_DAY = re.compile(
    r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day|today|tomorrow|tonight|yesterday|january"
    r"|february|march|april|june|july|august|september|october|november|december"
    r"|may(?=\s+\d)|(?<=\b(?:in|of) )may)s?\b",
    re.IGNORECASE,
)
_NAMED_HOURS = {"noon": "12", "midnight": "0"}
_MERIDIEM = re.compile(r"\b(\d{1,2})(?::(\d\d))?\s*(a|p)\.?m\b\.?", re.IGNORECASE)
_NEGATION = re.compile(
    r"\b(?:no|not|never|none|nothing|neither|nor|without|unfortunately|cannot|closed|unavailable"
    r"|\w+n['’]t)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?:\S+\s+){2,}?\S+[.!?](?=\s|$)|\S.*", re.DOTALL)
"""It has at least three words: "No." belongs to the next one."""
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
        text = value.strip().casefold()
        with suppress(ValueError, RecursionError):  # models write 3 as "3", and true as "true"
            if not isinstance(read := json.loads(text), (str, list, dict)):
                return _normal(read)
        return text
    if isinstance(value, Mapping):
        return {key: _normal(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return [_normal(each) for each in value] if isinstance(value, list) else value


def _figures(said: Said) -> set[str]:
    """The numbers, times and prices in digits or words; ``seven thirty`` is not read as a time."""
    text = said.text.casefold().encode(errors="ignore").decode()  # it takes no lone surrogates
    text = alpha2digit(text, "en", threshold=0)
    text = re.sub(r"(?<=\d) +(?=\d)", "", text)  # a number told digit by digit
    for name, hour in _NAMED_HOURS.items():
        text = re.sub(rf"\b{name}\b", hour, text)
    text = _MERIDIEM.sub(_in_24_hours, text)
    return {_plain(figure) for figure in _FIGURE.findall(text)} - {"1"}  # "one" is mostly no number


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


def _polarity(said: Said) -> int:
    """How many sentences deny something."""
    return sum(_NEGATION.search(each) is not None for each in _SENTENCE.findall(said.text))


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
