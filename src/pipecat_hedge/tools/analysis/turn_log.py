"""Reads turn logs: JSON lines, as ``HedgedLLMService(turn_log=...)`` appends them.

An unusable line is counted and named by file, line and field, without its content. Unknown fields
are ignored, and logs written before the renames of 0.1.0 are read until 0.2.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from pipecat_hedge.policy import HedgePolicy, has_left, is_degraded, policy_of
from pipecat_hedge.race import AttemptReport, HedgeError, TurnReport

NAMED = 5
"""The number of unusable lines that are named; the others are only counted."""
MOST_CHARS = 200
"""Longer names are cut."""
_TURN = TypeAdapter(TurnReport)
MOST_SECS = 1e11
"""The largest valid figure: in seconds since the epoch the year 5138."""
_OLD_NAMES = {
    "order_reason": "routing_reason",
    "prior_share": "prior_weight",
    "is_cold": "new_connection",
    "rests_secs": "retry_after_secs",
}


class ReadingError(HedgeError, ValueError):
    """A file has nothing to read; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn from a log.

    Parameters:
        report: The turn's report.
        at: Its end, in seconds since the epoch; None if not logged.
        policy: The policy, recreated from its settings; None if not logged.
    """

    report: TurnReport
    at: float | None = None
    policy: HedgePolicy | None = None

    @property
    def began_at(self) -> float | None:
        """The turn's beginning, in seconds since the epoch."""
        return None if self.at is None else self.at - self.report.duration_secs

    @property
    def sent(self) -> list[AttemptReport]:
        """The attempts that sent a request."""
        return [a for a in self.report.attempts if a.sent_secs is not None]

    @property
    def given_up(self) -> bool:
        """Whether the caller interrupted or hung up before the first token."""
        report = self.report
        is_cut = report.outcome == "interrupted" and report.ttft_secs is None
        return (is_cut and report.degraded_reason is None) or has_left(report)

    @property
    def unanswered(self) -> bool:
        """Whether the caller waited and did not get a complete answer."""
        return is_degraded(self.report)

    @property
    def succeeded(self) -> bool:
        """Whether the caller got the complete answer."""
        outcome = self.report.outcome
        return outcome in ("answered", "answered_with_tools") and not self.unanswered


@dataclass(frozen=True, slots=True)
class VoiceTurn:
    """A line of ``TurnLatencyObserver(log=...)``.

    Parameters:
        secs: From the end of the caller's speech to the answer's first sound, or the caller's wait
            without one.
        answered: Whether the answer was audible.
    """

    secs: float
    answered: bool


@dataclass(slots=True)
class Log:
    """The contents of the files, in the order of time if every line has a time.

    Attributes:
        files: The files' names, without their folders.
        turns: The turns, without those that were speculative and withdrawn: no caller waited.
        withdrawn: How many of those there were.
        voice_turns: Voice latencies, if one of the files has them.
        skipped: The number of unusable lines.
        named_skips: The first of them, with file, line and field.
    """

    files: tuple[str, ...]
    turns: list[LoggedTurn] = field(default_factory=list[LoggedTurn])
    voice_turns: list[VoiceTurn] = field(default_factory=list[VoiceTurn])
    withdrawn: int = 0
    skipped: int = 0
    named_skips: list[str] = field(default_factory=list[str])

    def skip(self, path: Path, number: int, why: str) -> None:
        """Count an unusable line."""
        self.skipped += 1
        if len(self.named_skips) < NAMED:
            self.named_skips.append(f"{printable(path.name)}:{number}: {why}")


def read_logs(paths: Sequence[str | Path]) -> Log:
    """Read logs as one sequence of turns.

    Args:
        paths: Turn logs, and logs of ``TurnLatencyObserver``.

    Raises:
        ReadingError: If a file cannot be read, or no file has a turn.
    """
    log = Log(tuple(dict.fromkeys(printable(Path(path).name) for path in paths)))
    policies: dict[str, HedgePolicy | None] = {}
    for path in map(Path, paths):
        with named(path), path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    record = _record_of(line)
                    if "anchor" in record and "attempts" not in record:
                        log.voice_turns += _voice_turns(record)
                    else:
                        turn = _logged(record, policies)
                        is_void = turn.report.outcome == "withdrawn"
                        log.withdrawn += is_void
                        log.turns += [] if is_void else [turn]
                except ValueError as e:
                    log.skip(path, number, str(e))
                except RecursionError:
                    log.skip(path, number, "nested too deep")
    if not log.turns:
        lines = "1 line" if log.skipped == 1 else f"{log.skipped} lines"
        detail = f" ({lines} skipped; {log.named_skips[0]})" if log.skipped else ""
        raise ReadingError(
            f"there is no turn in {', '.join(map(str, paths))}{detail}: give a log that "
            'HedgedLLMService(turn_log="turns.jsonl") wrote'
        )
    if all(turn.at is not None for turn in log.turns):
        log.turns.sort(key=lambda turn: turn.began_at or 0.0)
    return log


def parse_turn(record: Mapping[str, Any]) -> TurnReport:
    """Parse a turn's report from its line, of this or an older release.

    Args:
        record: The line's object.

    Raises:
        ValueError: If it is not a turn; the message names the field, without its content.
    """
    if not isinstance(record.get("attempts"), (list, tuple)):
        raise ValueError("attempts: not a list")
    values = {"turn": 0, "winner": None, "ttfs_secs": None, **_renamed(record)}
    values["attempts"] = [_attempt(each) for each in values["attempts"]]
    try:
        report = _TURN.validate_python(values)
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    _check_figures(report, "")
    for number, attempt in enumerate(report.attempts):
        _check_figures(attempt, f"attempts.{number}.")
    return report


def printable(value: Any) -> Any:
    """Remove terminal control characters from the texts of JSON values, and cut long ones."""
    if isinstance(value, str):
        text = value if value.isprintable() else "".join(filter(str.isprintable, value))
        return text if len(text) <= MOST_CHARS else f"{text[: MOST_CHARS - 1]}…"
    if isinstance(value, list):
        return [printable(each) for each in value]
    if isinstance(value, dict):
        return {printable(name): printable(each) for name, each in value.items()}
    return value


@contextlib.contextmanager
def named(path: Path, wanted: str = "a turn log, JSONL or CSV") -> Iterator[None]:
    """Convert errors while reading a file to one that names it.

    Args:
        path: The file.
        wanted: What it should be.

    Raises:
        ReadingError: In their place.
    """
    try:
        yield
    except OSError as e:
        raise ReadingError(f"{path} cannot be read: {e.strerror}") from e
    except UnicodeDecodeError as e:
        raise ReadingError(f"{path} is not text: give {wanted}") from e


def _record_of(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return printable(record)


def _logged(record: dict[str, Any], policies: dict[str, HedgePolicy | None]) -> LoggedTurn:
    settings = record.get("policy_settings")
    key = repr(settings)
    if key not in policies:
        policies[key] = policy_of(settings)
    return LoggedTurn(parse_turn(record), figure(record, "at"), policies[key])


def _voice_turns(record: dict[str, Any]) -> list[VoiceTurn]:
    """Return the voice latency of a line; nothing without known caller speech."""
    answer, ended = figure(record, "first_answer_secs"), figure(record, "ended_secs")
    if record["anchor"] != "user_silence" or (answer is None and not record.get("interrupted")):
        return []
    secs = ended if answer is None else answer
    return [] if secs is None else [VoiceTurn(secs, answer is not None)]


def _attempt(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ValueError("attempts: one of them is not an object")
    values = {"model": None, **_renamed(record)}
    if "sent_secs" not in values:
        values["sent_secs"] = values.get("launched_secs")  # logs of earlier versions
    if isinstance(values.get("stages"), dict):
        values["stages"] = _renamed(values["stages"])
    return values


def _renamed(record: Mapping[str, Any]) -> dict[str, Any]:
    return {_OLD_NAMES.get(name, name): value for name, value in record.items()}


def figure(record: Mapping[str, Any], name: str) -> float | None:
    """Return a field's figure; None if it has none.

    Raises:
        ValueError: If it is not a number, negative, or too large; the message names the field.
    """
    value = record.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name}: not a number")
    if not 0 <= value <= MOST_SECS:
        raise ValueError(f"{name}: negative, or too large")
    return float(value)


_FIGURES = {
    TurnReport: ("ttft_secs", "ttfs_secs", "duration_secs"),
    AttemptReport: (
        *("launched_secs", "ttft_secs", "ended_secs", "sent_secs"),
        *("input_tokens", "output_tokens", "usd"),
    ),
}


def _check_figures(report: TurnReport | AttemptReport, prefix: str) -> None:
    for name in _FIGURES[type(report)]:
        value = getattr(report, name)
        if value is not None and not (0 <= value <= MOST_SECS and math.isfinite(value)):
            raise ValueError(f"{prefix}{name}: negative, or too large")
