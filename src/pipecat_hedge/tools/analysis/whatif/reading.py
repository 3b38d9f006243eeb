"""Latencies from files: the turn logs of the service, and whatever else people have.

Law: a line that cannot be used is counted and named, and what figures were taken to be is said.

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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.tools.analysis.whatif.latency_lines import Latencies, LatencyLines
from pipecat_hedge.tools.analysis.whatif.tables import FACTORS, Line, read_lines

__all__ = ["Measured", "ReadingError", "Recorded", "Unit", "read_latencies", "recorded_from"]

Unit: TypeAlias = Literal["auto", "s", "ms", "us", "ns"]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

SURELY_MS = 30.0
"""A median above this is taken for milliseconds."""
ABSURD_SECS = 60.0
"""Nobody waits so long for the usual answer."""
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
    reader = LatencyLines(columns)
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
    reader = LatencyLines(())
    for number, turn in enumerate(turns, 1):
        attempts = [
            {name: getattr(attempt, name) for name in _OF_AN_ATTEMPT} for attempt in turn.attempts
        ]
        told = {"attempts": attempts, "degraded_reason": turn.degraded_reason}
        reader.take(Path("turns"), Line(number, told))
    if not reader.turns:
        raise ReadingError("there is no latency in these turns: nobody was asked in any of them")
    return _recorded(reader, "s")


def _unit_of(name: str, found: Latencies, reader: LatencyLines, unit: Unit) -> str:
    """What a provider's figures are: as its column says, as the user says, or by their size."""
    if name in reader.named_units:
        return reader.named_units[name]
    if unit != "auto":
        return unit
    return "ms" if _median(found) > SURELY_MS else "s"


def _median(found: Latencies) -> float:
    answers = [secs for secs, failed in zip(found.secs, found.failed, strict=True) if not failed]
    return float(np.median(answers)) if answers else 0.0


def _recorded(reader: LatencyLines, unit: Unit) -> Recorded:
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


def _measured(name: str, found: Latencies, factor: float) -> Measured:
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
