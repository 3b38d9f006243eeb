"""Reads latencies for ``whatif``: from turn logs, and from plain files of numbers.

Plain files are JSONL (a number, a list or an object per line), a JSON list, or CSV with or without
a header: one number per line, or one column per provider. The unit is in the cell (``487 ms``), in
the column's name (``ttft_ms``) or given with ``unit``; else a median above 30 means milliseconds.
An unusable line is counted and named.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from pipecat_hedge.race import AttemptReport, TurnReport
from pipecat_hedge.tools.analysis.statistics import Bools, Floats, Ints
from pipecat_hedge.tools.analysis.turn_log import NAMED, ReadingError, named, parse_turn, printable

Unit: TypeAlias = Literal["auto", "s", "ms", "us", "ns"]

COLUMN = "latency"
"""The provider's name if a file has none."""
SURELY_MS, MAX_MEDIAN_SECS, MAX_FIGURE = 30.0, 60.0, 1e12
_FACTORS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_UNIT = r"(ms|us|µs|ns|secs|seconds|sec|s)"
_CELL = re.compile(rf"([-+]?[\d.]+(?:e[-+]?\d+)?)\s*{_UNIT}", re.I)
_NAME = re.compile(rf"(.*?)(?:_|\s?[(\[]|\s){_UNIT}[)\]]?", re.I)
_FAILED = re.compile(r"(timed?[ _-]?out)|error|failed|failure|exception", re.I)
_IS_LATENCY = re.compile(r".*(ttft|latency|first_token).*", re.I)
_NO_LATENCY = re.compile(
    r"|at|ts|time|timestamp|turn|row|date|index|status|.*(^|_)(id|at|tokens?|count|code)", re.I
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One provider's observations, in the order of time.

    Parameters:
        name: The provider's name.
        secs: Times to first token in seconds; shape (n,).
        censored: Whether each was cut short (a lower bound); shape (n,).
        failed: Whether each ended in a failure; shape (n,).
        row: The turn of each; shape (n,).
    """

    name: str
    secs: Floats
    censored: Bools
    failed: Bools
    row: Ints

    @property
    def answers(self) -> int:
        """The number of answers."""
        return int((~self.censored & ~self.failed).sum())

    def only(self, index: Ints) -> Measured:
        """Return a part of the observations.

        Args:
            index: Their indices; shape (m,).
        """
        flags = self.censored[index], self.failed[index]
        return Measured(self.name, self.secs[index], *flags, self.row[index])


@dataclass(frozen=True, slots=True)
class Recorded:
    """The contents of the files.

    Parameters:
        providers: By name; the most frequent first provider comes first.
        turns: The number of turns.
        skipped: The number of unusable lines.
        named_skips: The first of them, with file, line and fault.
        unit: The unit of the figures: ``s``, ``ms``, ``us`` or ``ns``.
        prompt_tokens: The mean size of a prompt, if logged.
        lost_tokens: The mean output of an attempt that lost, if logged.
        lost_usd: The mean cost of an attempt that lost, if logged.
        ignored: Numeric columns that are not latencies.
        usd_per_mtok: Providers' prices per million ``(input, output)`` tokens, if tokens and costs
            are logged.
        usd_per_answer: By provider, the mean cost of a request that won, if logged.
        routed: The first provider and the ``route_score`` of each turn that has one.
    """

    providers: dict[str, Measured]
    turns: int
    skipped: int = 0
    named_skips: tuple[str, ...] = ()
    unit: str = "s"
    prompt_tokens: float | None = None
    lost_tokens: float | None = None
    lost_usd: float | None = None
    ignored: tuple[str, ...] = ()
    usd_per_mtok: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    usd_per_answer: Mapping[str, float] = field(default_factory=dict[str, float])
    routed: Sequence[tuple[str, float]] = ()


def read_latencies(
    paths: Sequence[str | Path], *, unit: Unit = "auto", columns: Sequence[str] = ()
) -> Recorded:
    """Read files as one sequence of turns, in the order given.

    Args:
        paths: Turn logs, JSONL or CSV.
        unit: The unit of plain figures; ``auto`` infers it from names and size.
        columns: The latency columns; empty infers them from their names.

    Raises:
        ReadingError: If a file cannot be read, no file has a latency, or a unit is implausible.
    """
    reader = _Reader(columns)
    for path in map(Path, paths):
        with named(path), path.open(encoding="utf-8-sig", newline="") as file:
            for number, record in _records(path, file):
                reader.take(path, number, record)
    if not reader.turns:
        detail = f"; {reader.named[0]}" if reader.named else ""
        raise ReadingError(
            f"there is no latency in {', '.join(map(str, paths))} ({reader.skipped} bad lines"
            f"{detail}): give a turn log, or one number per line or column"
        )
    return reader.recorded(unit)


def recorded_from(reports: Iterable[TurnReport]) -> Recorded:
    """Collect the latencies of turns that are already parsed.

    Args:
        reports: The turns, in the order of time.

    Raises:
        ReadingError: If no turn has a request.
    """
    reader = _Reader(())
    for report in reports:
        reader.take_turn(report)
    if not reader.turns:
        raise ReadingError("no turn has a request: there is no latency to replay")
    return reader.recorded("s")


@dataclass(frozen=True, slots=True)
class _Failure:
    """A cell that stands for a failure; a timeout took as long as the slowest answer."""

    is_timeout: bool


class _Seconds(float):
    """A figure whose cell has a unit."""


class _Reader:
    """Collects observations, record by record."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._found: dict[str, list[tuple[float, bool, bool, int]]] = {}
        self._units: dict[str, str] = {}
        self._firsts = Counter[str]()
        self._attempts: list[AttemptReport] = []
        self._prompts: list[int] = []
        self._ignored: dict[str, None] = {}
        self._routed: list[tuple[str, float]] = []
        self.turns = self.skipped = 0
        self.named: list[str] = []

    def take(self, path: Path, number: int, record: Any) -> None:
        try:
            if isinstance(record, ValueError):
                raise record
            if isinstance(record, dict) and "attempts" in record:
                self.take_turn(parse_turn(record))
            elif isinstance(record, dict) and "anchor" in record:
                pass  # a line of TurnLatencyObserver(log=...)
            elif isinstance(record, dict):
                self._take_columns(record)
            elif isinstance(record, list):
                self._take_columns({f"{COLUMN} {n}": value for n, value in enumerate(record, 1)})
            else:
                self._take_columns({COLUMN: record})
        except ValueError as e:
            self.skipped += 1
            if len(self.named) < NAMED:
                self.named.append(f"{printable(str(path))}:{number}: {e}")

    def take_turn(self, report: TurnReport) -> None:
        sent = [a for a in report.attempts if a.sent_secs is not None]
        if not sent:
            if report.attempts or report.degraded_reason is not None:
                return
            raise ValueError("a turn without attempts")
        for attempt in sent:
            self._units[attempt.provider] = "s"
            if attempt.ttft_secs is not None:
                self._add(attempt.provider, attempt.ttft_secs)
                continue
            waited = max(attempt.ended_secs - attempt.launched_secs, 0.0)
            censored = attempt.error_category in (None, "timeout", "stalled", "deadline")
            self._add(attempt.provider, waited, censored=censored, failed=not censored)
        self._firsts[sent[0].provider] += 1
        if sent[0].input_tokens is not None:
            self._prompts.append(sent[0].input_tokens)
        if report.route_score is not None:
            self._routed.append((sent[0].provider, report.route_score))
        self._attempts += sent
        self.turns += 1

    def _take_columns(self, record: dict[str, Any]) -> None:
        numeric = {
            name: value
            for name, value in record.items()
            if isinstance(value, (int, float, _Failure)) and not isinstance(value, bool)
        }
        taken = [name for name in self._columns if name in numeric]
        if not self._columns:
            # A text such as "error" is a failure only in a column that also has numbers.
            taken = [
                name
                for name in _latency_columns(list(numeric))
                if not isinstance(numeric[name], _Failure) or _split(name)[0] in self._found
            ]
        others = (n for n, v in numeric.items() if n not in taken and not isinstance(v, _Failure))
        self._ignored.update(dict.fromkeys(others))
        if not taken:
            wanted = f" called {' or '.join(self._columns)}" if self._columns else ""
            raise ValueError(f"no field{wanted} is a number")
        for value in (numeric[name] for name in taken):
            if not isinstance(value, _Failure) and not 0 <= value <= MAX_FIGURE:
                raise ValueError(f"{str(value)[:20]} is not a latency")
        provider = record.get("provider")
        for name in taken:
            value, (column, unit) = numeric[name], _split(name)
            if isinstance(provider, str) and len(taken) == 1:
                column = provider
            if isinstance(value, _Failure):
                self._add(column, math.nan if value.is_timeout else 0.0, failed=True)
                continue
            if isinstance(value, _Seconds) or unit is not None:
                self._units[column] = "s" if isinstance(value, _Seconds) else unit or "s"
            self._add(column, float(value))
        self.turns += 1

    def _add(self, name: str, secs: float, *, censored: bool = False, failed: bool = False) -> None:
        self._found.setdefault(name, []).append((secs, censored, failed, self.turns))

    def recorded(self, unit: Unit) -> Recorded:
        order = sorted(self._found, key=lambda n: (-self._firsts[n], -len(self._found[n])))
        units = {name: self._unit_of(name, unit) for name in order}
        lost = [a for a in self._attempts if a.outcome == "superseded"]
        return Recorded(
            {name: _measured(name, self._found[name], _FACTORS[units[name]]) for name in order},
            self.turns,
            self.skipped,
            tuple(self.named),
            next((each for each in units.values() if each != "s"), "s"),
            _mean(self._prompts),
            _mean([a.output_tokens for a in lost]),
            _mean([a.usd for a in lost]),
            tuple(self._ignored),
            _prices(self._attempts),
            {name: cost for name in order if (cost := self._usd_of(name)) is not None},
            self._routed,
        )

    def _usd_of(self, name: str) -> float | None:
        return _mean([a.usd for a in self._attempts if a.provider == name and a.outcome == "won"])

    def _unit_of(self, name: str, unit: Unit) -> str:
        if name in self._units:
            return self._units[name]
        if unit != "auto":
            return unit
        answers = [secs for secs, _, failed, _ in self._found[name] if not failed]
        median = float(np.median(answers)) if answers else 0.0
        guess = "ms" if median > SURELY_MS else "s"
        if (secs := median * _FACTORS[guess]) > MAX_MEDIAN_SECS:
            raise ReadingError(
                f"half of the latencies of {name} would be over {secs:,.0f} s: give their unit, "
                "such as --unit us"
            )
        return guess


def _measured(name: str, found: list[tuple[float, bool, bool, int]], factor: float) -> Measured:
    secs, censored, failed, row = (list(column) for column in zip(*found, strict=True))
    times = np.asarray(secs, np.float64) * factor
    times = np.where(np.isnan(times), float(np.nanmax(times, initial=0.0)), times)
    flags = np.asarray(censored, np.bool_), np.asarray(failed, np.bool_)
    return Measured(name, times, *flags, np.asarray(row, np.int64))


def _prices(attempts: Sequence[AttemptReport]) -> dict[str, tuple[float, float]]:
    """Estimate prices per million tokens: least squares of costs over tokens."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for a in attempts:
        if a.input_tokens is not None and a.output_tokens is not None and a.usd is not None:
            rows.setdefault(a.provider, []).append((a.input_tokens, a.output_tokens, a.usd))
    found = dict[str, tuple[float, float]]()
    for name, known in rows.items():
        table = np.asarray(known)
        prices = np.linalg.lstsq(table[:, :2], table[:, 2], rcond=1e-9)[0] * 1e6
        found[name] = (max(float(prices[0]), 0.0), max(float(prices[1]), 0.0))
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _latency_columns(names: list[str]) -> list[str]:
    """Return the columns named as latencies, else those with a unit, else all candidates."""
    possible = [name for name in names if not _NO_LATENCY.fullmatch(name)]
    named = [name for name in possible if _IS_LATENCY.fullmatch(name)]
    return named or [name for name in possible if _split(name)[1]] or possible


def _split(name: str) -> tuple[str, str | None]:
    """Split a column's name into name and unit, if it has one."""
    found = _NAME.fullmatch(name)
    return (name, None) if found is None else (found[1] or COLUMN, _unit(found[2]))


def _unit(name: str) -> str:
    lower = name.lower().replace("µ", "u")
    return lower if lower in _FACTORS else "s"


def _records(path: Path, file: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """Yield each record with its line, or its index in a JSON list; a ValueError for a bad line."""
    lines = ((number, line.strip()) for number, line in enumerate(file, 1))
    filled = ((number, line) for number, line in lines if line)
    first = next(filled, None)
    if first is None:
        return
    rest = itertools.chain([first], filled)
    if first[1].startswith("["):
        kept = list(rest)
        try:
            yield from enumerate(printable(json.loads(" ".join(line for _, line in kept))), 1)
            return
        except (ValueError, RecursionError):
            rest = iter(kept)
    elif not (first[1].startswith("{") or path.suffix in (".jsonl", ".ndjson", ".json")):
        yield from _csv_records(rest)
        return
    for number, line in rest:
        try:
            yield number, printable(json.loads(line))
        except (ValueError, RecursionError):
            yield number, ValueError("not JSON")


def _csv_records(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    header, separator = list[str](), ","
    for number, line in lines:
        if not header:
            separator = next((s for s in ";\t|" if s in line), ",")
            header = _cells(line, separator)
            if not any(isinstance(_cell(cell, separator), float) for cell in header):
                continue
            several = len(header) > 1
            header = [f"{COLUMN} {n + 1}" if several else COLUMN for n in range(len(header))]
        cells = _cells(line, separator)
        if len(cells) > len(header):
            yield number, ValueError(f"{len(cells)} cells under {len(header)} columns")
            continue
        given = zip(header, cells, strict=False)
        yield number, {name: _cell(cell, separator) for name, cell in given if cell}


def _cells(line: str, separator: str) -> list[str]:
    return [printable(cell.strip()) for cell in next(csv.reader([line], delimiter=separator))]


def _cell(cell: str, separator: str) -> float | str | _Failure:
    """Parse a cell: a figure (in seconds if it has a unit), a failure, or text."""
    if (failed := _FAILED.fullmatch(cell)) is not None:
        return _Failure(is_timeout=failed[1] is not None)
    # A comma in a cell is a decimal point, or in comma-separated files a thousands separator.
    plain = cell.replace(",", "" if separator == "," else ".")
    try:
        if (found := _CELL.fullmatch(plain)) is not None:
            return _Seconds(float(found[1]) * _FACTORS[_unit(found[2])])
        return float(plain)
    except ValueError:
        return cell
