"""What the lines of a file say of latencies: turns with attempts, columns, plain figures.

Law: a line that cannot be used is counted and named, never guessed at.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecat_hedge.race.errors import SHED
from pipecat_hedge.tools.analysis.whatif.charges import Charges
from pipecat_hedge.tools.analysis.whatif.tables import (
    COLUMN,
    FACTORS,
    Failure,
    Line,
    Seconds,
    printable,
    shortened,
)

__all__ = ["Latencies", "LatencyLines"]

NAMED = 5
"""So many bad lines are named; the rest are counted."""
ABSURD = 1e12
"""No latency is as large as that in any unit."""
_NO_LATENCY = re.compile(
    r"|at|ts|time|timestamp|turn|row|date|index|status|.*(^|_)(id|at|tokens?|count|code)", re.I
)
"""Columns of numbers that are no latencies; one without a name is an index."""
_UNIT = re.compile(r"(.*?)(?:_|\s?[(\[]|\s)(ms|us|µs|ns|secs|seconds|sec|s)[)\]]?", re.I)
"""A column's name, and the unit that it names."""
_LATENCY = re.compile(r".*(ttft|latency|first_token).*", re.I)


@dataclass(slots=True)
class Latencies:
    """What was found of one provider, in the order of time; every list is as long.

    Attributes:
        secs: Times to first token, in the unit of its column; NaN is as long as the slowest.
        censored: Which of them were cut short, and would have taken longer.
        failed: Which of them are not an answer but a failure.
        row: The turn that each belongs to.
    """

    secs: list[float] = field(default_factory=list[float])
    censored: list[bool] = field(default_factory=list[bool])
    failed: list[bool] = field(default_factory=list[bool])
    row: list[int] = field(default_factory=list[int])

    def add(self, secs: float, row: int, *, censored: bool = False, failed: bool = False) -> None:
        """Add one."""
        self.secs.append(secs)
        self.censored.append(censored)
        self.failed.append(failed)
        self.row.append(row)


class LatencyLines:
    """Reads lines, one after the other.

    Attributes:
        wanted: The columns that are latencies; none is to tell by their names.
        found: What was found, by provider.
        firsts: In how many turns each was asked first.
        turns: How many turns there were.
        bad: How many lines could not be used.
        named: The first of them, each with its file, its number and what is wrong.
        prompt_tokens: The size of each prompt that is told.
        lost_tokens: The output of each attempt that lost, where it is told.
        lost_usd: Its price, where it is told.
        charges: What attempts cost, by provider.
        named_units: By provider, the unit that its column or its figures name.
        ignored: Columns of numbers that were not taken for latencies, in the order of their coming.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        """Begin without a line.

        Args:
            columns: The columns that are latencies; none is to tell by their names.
        """
        self.wanted = columns
        self.found: dict[str, Latencies] = {}
        self.firsts: Counter[str] = Counter()
        self.turns = 0
        self.bad = 0
        self.named: list[str] = []
        self.prompt_tokens: list[float] = []
        self.lost_tokens: list[float] = []
        self.lost_usd: list[float] = []
        self.charges: dict[str, Charges] = {}
        self.named_units: dict[str, str] = {}
        self.ignored: dict[str, None] = {}

    def take(self, path: Path, line: Line) -> None:
        """Read a line.

        Args:
            path: Whose.
            line: The line.
        """
        record = line.record
        try:
            if line.wrong is not None:
                raise ValueError(line.wrong)
            if isinstance(record, dict) and "attempts" in record:
                self._turn(record)
            elif isinstance(record, dict):
                self._columns(record)
            elif isinstance(record, list):
                self._columns({f"{COLUMN} {i + 1}": value for i, value in enumerate(record)})
            else:
                self._add(COLUMN, _latency(record))
                self.turns += 1
        except KeyError as e:
            self._bad_line(path, line.number, f"no {e.args[0]} in it")
        except (ValueError, TypeError) as e:
            self._bad_line(path, line.number, str(e))

    def _bad_line(self, path: Path, number: int, why: str) -> None:
        self.bad += 1
        if len(self.named) < NAMED:
            self.named.append(f"{printable(str(path))}:{number}: {why}")

    def _add(self, name: str, secs: float, **kind: bool) -> None:
        self.found.setdefault(name, Latencies()).add(secs, self.turns, **kind)

    def _columns(self, record: dict[str, Any]) -> None:
        numeric = {
            name: value
            for name, value in record.items()
            if isinstance(value, (int, float, Failure)) and not isinstance(value, bool)
        }
        taken = [name for name in self.wanted if name in numeric]
        if not self.wanted:
            # A word such as "error" is a failure only where figures stand otherwise.
            taken = _latency_columns(numeric)
            taken = [n for n in taken if not isinstance(numeric[n], Failure) or self._knows(n)]
        ignored = (n for n, value in numeric.items() if not isinstance(value, Failure))
        self.ignored.update(dict.fromkeys(name for name in ignored if name not in taken))
        if not taken:
            wanted = f" called {' or '.join(self.wanted)}" if self.wanted else ""
            found = ", ".join(_told(value) for value in record.values())
            raise ValueError(f"no latency in it: no field{wanted} is a number, but {found}")
        provider = record.get("provider")
        for name in taken:
            _check(numeric[name])
        for name in taken:
            value = numeric[name]
            whose, unit = _named_unit(name, value)
            if isinstance(provider, str) and len(taken) == 1:
                whose = provider
            if isinstance(value, Failure):
                # How long it took is not told: a timeout as long as the slowest answer.
                self._add(whose, math.nan if value.is_late else 0.0, failed=True)
                continue
            if unit is not None:
                self.named_units[whose] = unit
            self._add(whose, float(value))
        self.turns += 1

    def _knows(self, column: str) -> bool:
        return _named_unit(column)[0] in self.found

    def _turn(self, record: dict[str, Any]) -> None:
        attempts = record["attempts"]
        if not isinstance(attempts, list):
            raise ValueError("a turn without attempts")
        # Where there was no room, no request was made: that says nothing of any provider.
        attempts = [a for a in attempts if not _was_shed(a)]
        if not attempts:
            if record.get("degraded_reason") is None:
                raise ValueError("a turn without attempts")
            return
        parsed = [self._attempt(attempt) for attempt in attempts]
        self.named_units.update({name: "s" for name, *_ in filter(None, parsed)})
        for number, observed in enumerate(parsed):
            if observed is not None:
                name, secs, kind = observed
                self._add(name, secs, **kind)
                if number == 0:
                    self.firsts[name] += 1
        for attempt in attempts:
            if attempt.get("outcome") == "superseded":
                _note(self.lost_tokens, attempt.get("output_tokens"))
                _note(self.lost_usd, attempt.get("usd"))
            self._charge(attempt)
        _note(self.prompt_tokens, attempts[0].get("input_tokens"))
        self.turns += 1

    def _charge(self, attempt: dict[str, Any]) -> None:
        told: list[float] = []
        for name in ("input_tokens", "output_tokens", "usd"):
            _note(told, attempt.get(name))
        if len(told) == 3:
            self.charges.setdefault(attempt["provider"], Charges()).add(*told)

    def _attempt(self, attempt: Any) -> tuple[str, float, dict[str, bool]] | None:
        if not isinstance(attempt, dict) or not isinstance(attempt.get("provider"), str):
            raise ValueError("an attempt without a provider")
        name, ttft = attempt["provider"], attempt.get("ttft_secs")
        if ttft is not None:
            return name, _latency(ttft), {}
        waited = _latency(attempt["ended_secs"] - attempt["launched_secs"])
        if attempt.get("error_category") in (None, "timeout", "stalled", "deadline"):
            return name, waited, {"censored": True}
        return name, waited, {"failed": True}


def _was_shed(attempt: Any) -> bool:
    return isinstance(attempt, dict) and attempt.get("error_category") == SHED


def _latency_columns(numeric: dict[str, Any]) -> list[str]:
    """Which columns are latencies: those that say so, if any does, else all that may be."""
    possible = [name for name in numeric if not _NO_LATENCY.fullmatch(name)]
    for says_so in (_LATENCY.fullmatch, lambda name: _named_unit(name)[1]):
        if named := [name for name in possible if says_so(name)]:
            return named
    return possible


def _named_unit(name: str, value: Any = None) -> tuple[str, str | None]:
    """A column's name without its unit, and the unit that the figure or the name says, if any."""
    named = _UNIT.fullmatch(name)
    whose, unit = (name, None) if named is None else (named[1] or COLUMN, named[2].lower())
    if unit is not None:
        unit = unit.replace("µ", "u") if unit.replace("µ", "u") in FACTORS else "s"
    return whose, "s" if isinstance(value, Seconds) else unit


def _told(value: Any) -> str:
    return "a failure" if isinstance(value, Failure) else shortened(repr(value))


def _check(value: Any) -> None:
    if not isinstance(value, Failure):
        _latency(value)


def _latency(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{shortened(repr(value))} is not a number")
    if not math.isfinite(value) or value < 0 or value > ABSURD:
        raise ValueError(f"{value} is not a latency")
    return float(value)


def _note(values: list[float], value: Any) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        values.append(float(value))
