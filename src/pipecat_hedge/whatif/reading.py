"""Latencies from files: the turn logs of the service, and whatever else people have.

Law: a line that cannot be used is counted and named, never guessed at.

Read are

- turn logs, as ``HedgedLLMService(turn_log=...)`` writes them: each attempt is an observation of
  its provider. One that was cancelled before its first token is *longer than so much*; one that
  failed is a failure;
- JSONL, or a JSON list: a number a turn, or an object whose numeric fields are columns;
- CSV, with or without a header: a number a line, or a column a provider. Columns are separated by
  commas, semicolons, tabs, bars or blanks.

Seconds or milliseconds: as the cell says (``487 ms``), or the column's name (``…_ms``, ``…_secs``),
or as the median tells, because nobody waits half a minute for the usual answer; ``unit`` says it
for columns that do not.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pipecat_hedge.errors import SHED, HedgeError
from pipecat_hedge.reports import TurnReport
from pipecat_hedge.whatif.charges import Charges
from pipecat_hedge.whatif.tables import (
    COLUMN,
    FACTORS,
    Failure,
    Line,
    Seconds,
    read_lines,
    shortened,
)

__all__ = ["Measured", "ReadingError", "Recorded", "Unit", "read_latencies", "recorded_from"]

Unit: TypeAlias = Literal["auto", "s", "ms", "us", "ns"]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NAMED = 5
"""So many bad lines are named; the rest are counted."""
SURELY_MS = 30.0
"""A median above this is taken for milliseconds."""
ABSURD_SECS = 60.0
"""Nobody waits so long for the usual answer."""
ABSURD = 1e12
"""No latency is as large as that in any unit."""
_NO_LATENCY = re.compile(
    r"|at|ts|time|timestamp|turn|row|date|index|status|.*(^|_)(id|at|tokens?|count|code)", re.I
)
"""Columns of numbers that are no latencies; one without a name is an index."""
_UNIT = re.compile(r"(.*?)(?:_|\s?[(\[]|\s)(ms|us|µs|ns|secs|seconds|sec|s)[)\]]?", re.I)
"""A column's name, and the unit that it names."""
_OF_AN_ATTEMPT = (
    "provider",
    "ttft_secs",
    "launched_secs",
    "ended_secs",
    "error_category",
    "outcome",
    "input_tokens",
    "output_tokens",
    "usd",
)
"""What is read of an attempt."""
_LATENCY = re.compile(r".*(ttft|latency|first_token).*", re.I)


class ReadingError(HedgeError, ValueError):
    """A file that nothing can be learned from; the message says why, and the remedy."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of one provider, in the order of time.

    Parameters:
        name: What it is called.
        secs: Times to first token in seconds; shape (n,).
        censored: Which of them were cut short, and would have taken longer; shape (n,).
        failed: Which of them are not an answer but a failure; shape (n,).
        row: The turn that each belongs to; shape (n,).
    """

    name: str
    secs: Floats
    censored: Bools
    failed: Bools
    row: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What files hold.

    Parameters:
        providers: By name, those measured first in a turn before the others.
        turns: How many turns there were.
        bad_lines: How many lines could not be used.
        named_bad_lines: The first of them, each with its file, its number and what is wrong.
        unit: ``s``, ``ms``, ``us`` or ``ns``: what the figures were taken to be.
        prompt_tokens: The mean size of a prompt, where logs tell.
        lost_tokens: The mean output of an attempt that lost, where logs tell.
        lost_usd: The mean price of an attempt that lost, where logs tell.
        ignored: Columns of numbers that were not taken for latencies.
        usd_per_mtok: What providers charge per million ``(input, output)`` tokens, as far as logs
            tell: a budget counts a hedge for what it costs.
    """

    providers: dict[str, Measured]
    turns: int
    bad_lines: int
    named_bad_lines: tuple[str, ...]
    unit: str
    prompt_tokens: float | None = None
    lost_tokens: float | None = None
    lost_usd: float | None = None
    ignored: tuple[str, ...] = ()
    usd_per_mtok: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )


@dataclass(slots=True)
class _Found:
    secs: list[float] = field(default_factory=list[float])
    censored: list[bool] = field(default_factory=list[bool])
    failed: list[bool] = field(default_factory=list[bool])
    row: list[int] = field(default_factory=list[int])

    def add(self, secs: float, row: int, *, censored: bool = False, failed: bool = False) -> None:
        self.secs.append(secs)
        self.censored.append(censored)
        self.failed.append(failed)
        self.row.append(row)


class _Reader:
    def __init__(self, columns: Sequence[str]) -> None:
        self.wanted = columns
        self.found: dict[str, _Found] = {}
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

    def _bad_line(self, path: Path, number: int, why: str) -> None:
        self.bad += 1
        if len(self.named) < NAMED:
            self.named.append(f"{path}:{number}: {why}")

    def add(self, name: str, secs: float, **kind: bool) -> None:
        self.found.setdefault(name, _Found()).add(secs, self.turns, **kind)

    def take(self, path: Path, line: Line) -> None:
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
                self.add(COLUMN, _latency(record))
                self.turns += 1
        except KeyError as e:
            self._bad_line(path, line.number, f"no {e.args[0]} in it")
        except (ValueError, TypeError) as e:
            self._bad_line(path, line.number, str(e))

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
                self.add(whose, math.nan if value.is_late else 0.0, failed=True)
                continue
            if unit is not None:
                self.named_units[whose] = unit
            self.add(whose, float(value))
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
                self.add(name, secs, **kind)
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


def read_latencies(
    paths: Sequence[str | Path], *, unit: Unit = "auto", columns: Sequence[str] = ()
) -> Recorded:
    """Read files, as one stretch of turns in the order given.

    Args:
        paths: Turn logs, JSONL or CSV.
        unit: What plain figures are: ``s``, ``ms``, ``us``, ``ns``, or ``auto`` to tell by names
            and size.
        columns: The columns that are latencies; none is to tell by their names.

    Returns:
        What they hold.

    Raises:
        ReadingError: If a file cannot be read, there is no latency in any, or they cannot be in
            the unit that they seem to be in.
    """
    reader = _Reader(columns)
    for path in map(Path, paths):
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                for line in read_lines(path, file):
                    reader.take(path, line)
        except OSError as e:
            raise ReadingError(f"{path} cannot be read: {e.strerror}") from e
        except UnicodeDecodeError as e:
            raise ReadingError(f"{path} is not text: give a turn log, JSONL or CSV") from e
    if not reader.turns:
        named = ", ".join(map(str, paths))
        detail = f"; {reader.named[0]}" if reader.named else ""
        raise ReadingError(
            f"there is no latency in {named} ({reader.bad} bad lines{detail}): "
            "give a turn log, or one number a line or column"
        )
    return _recorded(reader, unit)


def recorded_from(turns: Iterable[TurnReport]) -> Recorded:
    """What turns hold that have been read already; the same as of a log with their lines.

    Args:
        turns: The turns, in the order of time.

    Raises:
        ReadingError: If there is no latency in any.
    """
    reader = _Reader(())
    for number, turn in enumerate(turns, 1):
        attempts = [
            {name: getattr(attempt, name) for name in _OF_AN_ATTEMPT} for attempt in turn.attempts
        ]
        told = {"attempts": attempts, "degraded_reason": turn.degraded_reason}
        reader.take(Path("turns"), Line(number, told))
    if not reader.turns:
        raise ReadingError("there is no latency in these turns: nobody was asked in any of them")
    return _recorded(reader, "s")


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


def _unit_of(name: str, found: _Found, reader: _Reader, unit: Unit) -> str:
    """What a provider's figures are: as its column says, as the user says, or by their size."""
    if name in reader.named_units:
        return reader.named_units[name]
    if unit != "auto":
        return unit
    return "ms" if _median(found) > SURELY_MS else "s"


def _median(found: _Found) -> float:
    answers = [secs for secs, failed in zip(found.secs, found.failed, strict=True) if not failed]
    return float(np.median(answers)) if answers else 0.0


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


def _recorded(reader: _Reader, unit: Unit) -> Recorded:
    units = {name: _unit_of(name, found, reader, unit) for name, found in reader.found.items()}
    for name, found in reader.found.items():
        is_guessed = unit == "auto" and name not in reader.named_units
        if is_guessed and (median := _median(found) * FACTORS[units[name]]) > ABSURD_SECS:
            raise ReadingError(
                f"half of the latencies of {name} would be over {median:,.0f} s: say what the "
                "figures are, as with --unit us"
            )
    names = sorted(
        reader.found, key=lambda name: (-reader.firsts[name], -len(reader.found[name].secs))
    )
    return Recorded(
        {name: _measured(name, reader.found[name], FACTORS[units[name]]) for name in names},
        reader.turns,
        reader.bad,
        tuple(reader.named),
        next((found for found in units.values() if found != "s"), "s"),
        _mean(reader.prompt_tokens),
        _mean(reader.lost_tokens),
        _mean(reader.lost_usd),
        tuple(reader.ignored),
        {name: charges.usd_per_mtok() for name, charges in reader.charges.items()},
    )


def _measured(name: str, found: _Found, factor: float) -> Measured:
    secs = np.asarray(found.secs, np.float64) * factor
    slowest = float(np.nanmax(secs, initial=0.0))
    return Measured(
        name,
        np.where(np.isnan(secs), slowest, secs),
        np.asarray(found.censored, np.bool_),
        np.asarray(found.failed, np.bool_),
        np.asarray(found.row, np.int64),
    )


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
