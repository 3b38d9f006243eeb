"""Turn logs from files. Law: a line that cannot be used is counted and named, never guessed at.

It is named by its file, its number and its field: what stood there may be what somebody said, and
is told to nobody.

Read are the lines of ``HedgedLLMService(turn_log=...)`` and, for what callers heard in the end,
those of ``TurnLatencyObserver(log=...)``. The last line of a log may be half of one, because the
process was killed in mid-line; older logs lack fields, and newer ones have some that are not known
here. Text that a line might hold beside names and figures is not taken up at all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.settings import policy_of
from pipecat_hedge.race.events import AttemptOutcome, LaunchReason, TurnOutcome
from pipecat_hedge.race.reports import AttemptReport, StageReport, TurnReport
from pipecat_hedge.tools.analysis.report.candidates import RacedTurn
from pipecat_hedge.tools.analysis.report.turns import HeardTurn, Log, LoggedTurn
from pipecat_hedge.tools.analysis.whatif.reading import ReadingError
from pipecat_hedge.tools.analysis.whatif.tables import printable, read_lines
from pipecat_hedge.voice.turn_timeline import TurnLatency

__all__ = ["read_logs", "turn_of"]

NAMED = 5
"""So many skipped lines are named; the rest are counted."""
MOST = 1e11
"""No figure is larger: in seconds since the epoch that is the year 5138."""
NAME_CHARS = 80
"""Names are cut off there: a provider's name is no place for a text."""
_TURN_FIELDS = frozenset(field.name for field in dataclasses.fields(TurnReport))
_LATER_FIELDS = _TURN_FIELDS | {"sent_secs"}
_STAGES = tuple(field.name for field in dataclasses.fields(StageReport))
_OUTCOMES = frozenset(get_args(TurnOutcome))
_ATTEMPT_OUTCOMES = frozenset(get_args(AttemptOutcome))
_REASONS = frozenset(get_args(LaunchReason))


def read_logs(
    paths: Sequence[str | Path], *, progress: Callable[[int], None] = lambda count: None
) -> Log:
    """Read logs as one stretch of turns.

    Args:
        paths: Turn logs, and maybe logs of what callers heard.
        progress: Told from time to time how many lines have been read.

    Returns:
        What they hold; ordered by time if every turn says when it was.

    Raises:
        ReadingError: If a file cannot be read, or there is no turn in any; with the remedy.
    """
    turns, heard, skips = list[LoggedTurn](), list[HeardTurn](), list[str]()
    skipped, number = 0, 0
    seen: dict[frozenset[str], frozenset[str]] = {}
    policies: dict[str, HedgePolicy | None] = {}
    for path in map(Path, paths):
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                for line in read_lines(path, file):
                    number += 1
                    if number % 5000 == 0:
                        progress(number)
                    try:
                        if line.wrong is not None or not isinstance(line.record, dict):
                            raise ValueError(line.wrong or "no turn")
                        if "anchor" in line.record and "attempts" not in line.record:
                            heard += _heard(line.record, seen)
                        else:
                            turns.append(turn_of(line.record, seen, policies))
                    except ValueError as e:
                        skipped += 1
                        if len(skips) < NAMED:
                            skips.append(f"{printable(path.name)}:{line.number}: {e}")
        except OSError as e:
            raise ReadingError(f"{path} cannot be read: {e.strerror}") from e
        except UnicodeDecodeError as e:
            raise ReadingError(f"{path} is not text: give a turn log") from e
    if not turns:
        named = ", ".join(map(str, paths))
        detail = f", {skipped} lines skipped; {skips[0]}" if skips else ""
        raise ReadingError(
            f"there is no turn in {named}{detail}: give a log that "
            'HedgedLLMService(turn_log="turns.jsonl") has written'
        )
    if all(turn.at is not None for turn in turns):
        turns.sort(key=lambda turn: turn.began_at or 0.0)
    files = tuple(dict.fromkeys(printable(Path(path).name) for path in paths))
    return Log(files, tuple(turns), tuple(heard), skipped, tuple(skips))


def turn_of(
    record: dict[str, Any],
    seen: dict[frozenset[str], frozenset[str]] | None = None,
    policies: dict[str, HedgePolicy | None] | None = None,
) -> LoggedTurn:
    """A turn, as its line tells it.

    Args:
        record: The line.
        seen: What lines lack, by what they have, so that turns share it.
        policies: Policies by what lines tell of them, so that turns share them too.

    Raises:
        ValueError: If it is no turn, or a figure in it is none; with the field, not what it holds.
    """
    attempts = record.get("attempts")
    if not isinstance(attempts, list):
        raise ValueError("no turn: it has no attempts")
    outcome = _word(record, "outcome", _OUTCOMES)
    report = TurnReport(
        turn=_count(record, "turn") or 0,
        winner=_name(record, "winner"),
        outcome=outcome,  # pyright: ignore[reportArgumentType]
        ttft_secs=_figure(record, "ttft_secs"),
        ttfs_secs=_figure(record, "ttfs_secs"),
        duration_secs=_needed(record, "duration_secs"),
        attempts=tuple(_attempt(each) for each in attempts),
        commit_reason=_name(record, "commit_reason"),
        prompt_tokens=_count(record, "prompt_tokens"),
        queued_secs=_figure(record, "queued_secs") or 0.0,
        degraded_reason=None if record.get("degraded_reason") is None else "degraded",
        tier=_name(record, "tier") or "standard",  # pyright: ignore[reportArgumentType]
    )
    has = frozenset(record)
    if all(isinstance(each, dict) and "sent_secs" in each for each in attempts):
        has |= {"sent_secs"}
    lacks = _LATER_FIELDS - has
    if seen is not None:
        lacks = seen.setdefault(lacks, lacks)
    session = record.get("session", record.get("call"))
    told = (
        report,
        _figure(record, "at"),
        _name(record, "policy"),
        None if session is None else str(session)[:NAME_CHARS],
        lacks,
    )
    settings = record.get("policy_settings")
    if settings is None:
        return LoggedTurn(*told)
    policies = {} if policies is None else policies
    key = repr(settings)
    if key not in policies:
        policies[key] = policy_of(settings)
    return RacedTurn(*told, raced_by=policies[key])


def _attempt(record: Any) -> AttemptReport:
    if not isinstance(record, dict) or not isinstance(record.get("provider"), str):
        raise ValueError("an attempt without a provider")
    return AttemptReport(
        provider=record["provider"][:NAME_CHARS],
        model=_name(record, "model"),
        launched_secs=_needed(record, "launched_secs"),
        launch_reason=_word(record, "launch_reason", _REASONS),  # pyright: ignore[reportArgumentType]
        ttft_secs=_figure(record, "ttft_secs"),
        ended_secs=_needed(record, "ended_secs"),
        outcome=_word(record, "outcome", _ATTEMPT_OUTCOMES),  # pyright: ignore[reportArgumentType]
        error_category=_name(record, "error_category"),
        input_tokens=_count(record, "input_tokens"),
        output_tokens=_count(record, "output_tokens"),
        tokens_estimated=record.get("tokens_estimated") is True,
        usd=_figure(record, "usd"),
        ttfs_secs=_figure(record, "ttfs_secs"),
        sent_secs=_figure(record, "sent_secs"),
        stages=_stages(record.get("stages")),
    )


def _stages(record: Any) -> StageReport | None:
    if not isinstance(record, dict):
        return None
    figures: dict[str, Any] = {
        name: _figure(record, name) for name in _STAGES if name.endswith("_secs")
    }
    new_connection = record.get("new_connection")
    return StageReport(
        new_connection=new_connection if isinstance(new_connection, bool) else None,
        server_source=_name(record, "server_source"),
        **figures,
    )


def _heard(record: dict[str, Any], seen: dict[frozenset[str], frozenset[str]]) -> list[HeardTurn]:
    """What was heard; nothing where it is not known when the caller fell silent."""
    if record["anchor"] != "user_silence":
        return []
    told = record.get("reports") or []
    if not isinstance(told, list) or not all(isinstance(each, dict) for each in told):
        raise ValueError("reports are no turns")
    races = [turn_of(each, seen) for each in told]
    ended = _figure(record, "ended_secs")
    if ended is None:  # an older line: it went on at least until the last that is known of it
        known = [s for n in record if n.endswith("_secs") and (s := _first(record[n])) is not None]
        ended = max(known, default=None)
    at = _figure(record, "at")
    turn = TurnLatency(
        turn=_count(record, "turn") or 0,
        at=at or 0.0,
        anchor="user_silence",
        first_answer_secs=_figure(record, "first_answer_secs"),
        interrupted=record.get("interrupted") is True,
        reports=tuple(race.report for race in races),
        ended_secs=ended,
        may_wait=record.get("may_wait") is True,
    )
    return [HeardTurn(turn, at, races[-1].tier if races else None)]


def _first(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _figure(record: dict[str, Any], name: str) -> float | None:
    value = record.get(name)
    if value is None or (type(value) is float and 0.0 <= value <= MOST):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is no number")
    if not 0 <= value <= MOST:
        raise ValueError(f"{name} is negative, or too large")
    return float(value)


def _needed(record: dict[str, Any], name: str) -> float:
    value = _figure(record, name)
    if value is None:
        raise ValueError(f"no {name} in it")
    return value


def _count(record: dict[str, Any], name: str) -> int | None:
    value = _figure(record, name)
    return None if value is None else int(value)


def _name(record: dict[str, Any], name: str) -> str | None:
    value = record.get(name)
    return value[:NAME_CHARS] if isinstance(value, str) else None


def _word(record: dict[str, Any], name: str, known: frozenset[str]) -> str:
    value = record.get(name)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is none that is known")
    return value
