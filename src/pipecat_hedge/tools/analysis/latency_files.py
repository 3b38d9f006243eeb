"""Reads latencies for ``whatif`` and ``bench``: turn logs, and CSV or JSONL with a column of them.

`read_latencies` describes which columns are read, and in which unit. An unusable line is counted
and named.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from pipecat_hedge.race import AttemptReport, TurnReport
from pipecat_hedge.tools.analysis.statistics import Bools, Floats, Ints
from pipecat_hedge.tools.analysis.turn_log import (
    MOST_SECS,
    NAMED,
    ReadingError,
    figure,
    named,
    parse_turn,
    printable,
)

Unit: TypeAlias = Literal["s", "ms"]

COLUMN = "latency"
"""The column of a file without a header, one figure per line."""
KNOWN_COLUMNS = ("ttft_ms", "ttft_secs", "ms", "secs")
"""Columns that are read unasked; the first of them that a file has."""
MOST_MEDIAN_SECS = 30.0
"""A median above this many seconds is invalid if neither the name nor the user says the unit."""
AT = "at"
"""The column of times that is read unasked: turn logs have one of that name."""
FACTORS = {"s": 1.0, "secs": 1.0, "ms": 1e-3}


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
        unit: ``ms`` if a column was read as milliseconds, else ``s``.
        prompt_tokens: The mean size of a prompt, if logged.
        lost_tokens: The mean output of an attempt that lost, if logged.
        lost_usd: The mean cost of an attempt that lost, if logged.
        usd_per_mtok: Providers' prices per million ``(input, output)`` tokens, if tokens and costs
            are logged.
        usd_per_answer: By provider, the mean cost of a request that won, if logged.
        routed: The first provider and the ``route_score`` of each turn that has one.
        asked_at: When each turn was asked, in seconds, ascending; shape (turns,). None if that is
            not known of every turn: then the turns are in the order of the files.
    """

    providers: dict[str, Measured]
    turns: int
    skipped: int = 0
    named_skips: tuple[str, ...] = ()
    unit: Unit = "s"
    prompt_tokens: float | None = None
    lost_tokens: float | None = None
    lost_usd: float | None = None
    usd_per_mtok: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    usd_per_answer: Mapping[str, float] = field(default_factory=dict[str, float])
    routed: Sequence[tuple[str, float]] = ()
    asked_at: Floats | None = None


def read_latencies(
    paths: Sequence[str | Path],
    *,
    unit: Unit | None = None,
    columns: Sequence[str] = (),
    at: str | None = None,
    at_unit: Unit | None = None,
) -> Recorded:
    """Read files as one sequence of turns, in the order of their times, or else as given.

    Args:
        paths: Turn logs, CSV files, and JSONL files with an object per line. A column ``provider``
            names the provider; otherwise the latency column does.
        unit: The unit of columns whose names do not end in ``_ms`` or ``_secs``; None is seconds,
            unless half of them would be over 30 s.
        columns: The latency columns, one per provider; empty is one of `KNOWN_COLUMNS`, or the
            only column.
        at: The column of times: figures, or dates of ISO 8601. None is `AT`, where there is one.
        at_unit: The unit of figures in it, if its name does not end in ``_ms`` or ``_secs``; None
            is seconds.

    Raises:
        ReadingError: If a file cannot be read or has no such column, no file has a latency, or a
            unit is implausible.
    """
    reader = _Reader()
    for path in map(Path, paths):
        with named(path), path.open(encoding="utf-8-sig", newline="") as file:
            for number, record in _records(file):
                try:
                    if isinstance(record, ValueError):
                        raise record
                    if "attempts" in record:
                        reader.take_turn(parse_turn(record), figure(record, AT))
                    elif "anchor" not in record:  # a line of TurnLatencyObserver(log=...)
                        asked_at = _time(record, at, at_unit)
                        names = _latency_columns(record, columns, at or AT)
                        reader.take_columns(record, names, unit, asked_at)
                except ValueError as e:
                    reader.skip(path, number, str(e))
    if not reader.turns:
        why = reader.named[0] if reader.named else "give a turn log, or a file with a column"
        raise ReadingError(f"there is no latency in {', '.join(map(str, paths))}: {why}")
    return reader.recorded()


def recorded_from(reports: Iterable[TurnReport]) -> Recorded:
    """Collect the latencies of turns that are already parsed.

    Args:
        reports: The turns, in the order of time.

    Raises:
        ReadingError: If no turn has a request.
    """
    reader = _Reader()
    for report in reports:
        reader.take_turn(report)
    if not reader.turns:
        raise ReadingError("no turn has a request: there is no latency to replay")
    return reader.recorded()


class _Reader:
    """Collects observations, record by record."""

    def __init__(self) -> None:
        self._found: dict[str, list[tuple[float, bool, bool, int]]] = {}
        self._unit: Unit = "s"
        self._unstated = dict[str, str]()
        self._firsts = Counter[str]()
        self._attempts: list[AttemptReport] = []
        self._prompts: list[int] = []
        self._routed: list[tuple[str, float]] = []
        self._asked_at: list[float | None] = []
        self.turns = self.skipped = 0
        self.named: list[str] = []

    def skip(self, path: Path, number: int, why: str) -> None:
        self.skipped += 1
        if len(self.named) < NAMED:
            self.named.append(f"{printable(str(path))}:{number}: {why}")

    def take_turn(self, report: TurnReport, ended_at: float | None = None) -> None:
        sent = [a for a in report.attempts if a.sent_secs is not None]
        if not sent:
            if report.attempts or report.degraded_reason is not None:
                return
            raise ValueError("a turn without attempts")
        for attempt in sent:
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
        self._asked_at.append(None if ended_at is None else ended_at - report.duration_secs)
        self.turns += 1

    def take_columns(
        self,
        record: Mapping[str, Any],
        columns: Sequence[str],
        unit: Unit | None,
        asked_at: float | None,
    ) -> None:
        found = {name: value for name in columns if (value := figure(record, name)) is not None}
        if not found:
            raise ValueError(f"{', '.join(columns)}: empty")
        provider = record.get("provider")
        for column, value in found.items():
            name, factor = _named_unit(column)
            if isinstance(provider, str) and len(columns) == 1:
                name = provider
            if factor is None and unit is None:
                self._unstated[name] = column
            factor = factor or FACTORS[unit or "s"]
            if factor < 1:
                self._unit = "ms"
            self._add(name, factor * value)
        self._asked_at.append(asked_at)
        self.turns += 1

    def _add(self, name: str, secs: float, *, censored: bool = False, failed: bool = False) -> None:
        self._found.setdefault(name, []).append((secs, censored, failed, self.turns))

    def recorded(self) -> Recorded:
        order = sorted(self._found, key=lambda n: (-self._firsts[n], -len(self._found[n])))
        asked_at, place = _in_order(self._asked_at)
        providers = {name: _measured(name, self._found[name], place) for name in order}
        for name, column in self._unstated.items():
            if (median := float(np.median(providers[name].secs))) > MOST_MEDIAN_SECS:
                raise ReadingError(
                    f"half of the figures of {column} are over {median:,.0f}: give --unit ms, "
                    "or --unit s if they are seconds"
                )
        lost = [a for a in self._attempts if a.outcome == "superseded"]
        return Recorded(
            providers,
            self.turns,
            self.skipped,
            tuple(self.named),
            self._unit,
            _mean(self._prompts),
            _mean([a.output_tokens for a in lost]),
            _mean([a.usd for a in lost]),
            _prices(self._attempts),
            {name: cost for name in order if (cost := self._usd_of(name)) is not None},
            self._routed,
            asked_at,
        )

    def _usd_of(self, name: str) -> float | None:
        return _mean([a.usd for a in self._attempts if a.provider == name and a.outcome == "won"])


def _measured(name: str, found: list[tuple[float, bool, bool, int]], place: Ints) -> Measured:
    secs, censored, failed, row = (np.asarray(column) for column in zip(*found, strict=True))
    return Measured(name, secs, censored, failed, place[row]).only(
        np.argsort(place[row], kind="stable")
    )


def _in_order(asked_at: Sequence[float | None]) -> tuple[Floats | None, Ints]:
    """Return the times in their order, and each turn's place in it; None if one is unknown."""
    known = [at for at in asked_at if at is not None]
    if len(known) < len(asked_at):
        return None, np.arange(len(asked_at))
    order = np.argsort(known, kind="stable")
    return np.asarray(known)[order], np.argsort(order)


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


def _time(record: Mapping[str, Any], name: str | None, unit: Unit | None) -> float | None:
    """Return when a turn was asked, in seconds; None if it has no time and none was wanted.

    Raises:
        ValueError: If it has none that can be read; the message names the column.
    """
    column = name or AT
    value = record.get(column)
    if value is None and name is None:
        return None
    if value is None:
        raise ValueError(f"no {column}: name the column of times with --at")
    if isinstance(value, str):
        try:
            date = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{column}: neither a figure nor a date of ISO 8601") from None
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    factor = _named_unit(column)[1] or FACTORS[unit or "s"]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if factor == 1 and value > MOST_SECS:
            raise ValueError(f"{column}: too large for seconds: give --at-unit ms")
        value *= factor
    return figure({column: value}, column)


def _latency_columns(record: Mapping[str, Any], wanted: Sequence[str], at: str) -> Sequence[str]:
    """Return the columns to read: the wanted ones, a known one, or the only one."""
    others = [name for name in record if name not in ("provider", at)]
    columns = [name for name in wanted or KNOWN_COLUMNS if name in record]
    if not columns and not wanted and len(others) == 1:
        return others
    if not columns:
        missing = f"no column {' or '.join(wanted)}" if wanted else "several columns"
        raise ValueError(
            f"{missing}: name that of the latencies with --column; found: {', '.join(record)}"
        )
    return columns if wanted else columns[:1]


def _named_unit(column: str) -> tuple[str, float | None]:
    """Split a column's name into the provider's name, and its unit in seconds if it has one."""
    name, _, unit = column.rpartition("_")
    return (name or COLUMN, FACTORS[unit]) if unit in ("ms", "secs") else (column, None)


def _records(file: Iterable[str]) -> Iterator[tuple[int, dict[str, Any] | ValueError]]:
    """Yield each record with its line: JSONL if the first line is an object, else CSV."""
    numbered = enumerate(file, 1)
    begin, first = next(((n, line) for n, line in numbered if line.strip()), (1, ""))
    lines = itertools.chain([first], (line for _, line in numbered))
    if first.lstrip().startswith("{"):
        for number, line in enumerate(lines, begin):
            if line.strip():
                yield number, _parsed(line)
        return
    has_header = not isinstance(_cell(first), float)
    if ";" in first and "," not in first:
        yield begin, ValueError("the columns are separated by semicolons: separate them by commas")
        return
    rows = csv.DictReader(lines, None if has_header else [COLUMN])
    if rows.fieldnames is not None:
        rows.fieldnames = [printable(name.strip()) for name in rows.fieldnames]
    for row in rows:
        cells = {name: _cell(cell) for name, cell in row.items() if isinstance(name, str)}
        number, is_whole = begin + rows.line_num - 1, len(cells) == len(row)
        yield number, cells if is_whole else ValueError("more cells than columns")


def _parsed(line: str) -> dict[str, Any] | ValueError:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return ValueError("not JSON")
    return printable(record) if isinstance(record, dict) else ValueError("not an object")


def _cell(text: str | None) -> float | str | None:
    """Parse a CSV file's cell; None is empty."""
    plain = (text or "").strip()
    try:
        return float(plain) if plain else None
    except ValueError:
        return printable(plain)
