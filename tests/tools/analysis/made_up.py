"""Made-up turns, as a log has them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipecat_hedge import HedgePolicy
from pipecat_hedge.providers import PROFILES
from pipecat_hedge.race import AttemptReport, StageReport, TurnReport
from pipecat_hedge.telemetry import TurnLines
from pipecat_hedge.tools.analysis.turn_log import LoggedTurn, parse_turn

BEGIN_AT = 1_772_456_400.0
"""2026-03-02 13:00 UTC."""
LINES = TurnLines(HedgePolicy.adaptive(0.1), "one call")


def attempt(
    provider: str = "one",
    ttft: float | None = 0.5,
    *,
    launched: float = 0.0,
    ended: float | None = None,
    reason: str = "primary",
    outcome: str = "won",
    **fields: Any,
) -> AttemptReport:
    """A request; it ends half a second after its first token by default."""
    if ended is None:
        ended = launched + (ttft or 0.0) + 0.5
    fields.setdefault("sent_secs", launched)
    fields.setdefault("model", None)
    return AttemptReport(
        provider=provider,
        launched_secs=launched,
        launch_reason=reason,  # type: ignore[arg-type]
        ttft_secs=ttft,
        ended_secs=ended,
        outcome=outcome,  # type: ignore[arg-type]
        **fields,
    )


def line(
    *attempts: AttemptReport,
    ttft: float | None = 0.5,
    at: float | None = BEGIN_AT,
    outcome: str = "answered",
    **fields: Any,
) -> dict[str, Any]:
    """A line of a turn log; ``at`` is when the turn began."""
    attempts = attempts or (attempt(ttft=ttft),)
    duration = fields.pop("duration_secs", max(a.ended_secs for a in attempts))
    names = {field.name for field in dataclasses.fields(TurnReport)}
    report = TurnReport(
        turn=1,
        winner=next((a.provider for a in attempts if a.outcome == "won"), None),
        outcome=outcome,  # type: ignore[arg-type]
        ttft_secs=ttft,
        ttfs_secs=fields.pop("ttfs_secs", None if ttft is None else ttft + 0.2),
        duration_secs=duration,
        attempts=attempts,
        **{name: fields.pop(name) for name in list(fields) if name in names},
    )
    record = {**LINES.line(report, (at or 0.0) + duration), **fields}
    return record if at is not None else {k: v for k, v in record.items() if k != "at"}


def turn(*attempts: AttemptReport, at: float | None = BEGIN_AT, **fields: Any) -> LoggedTurn:
    """A turn, read from its line."""
    record = line(*attempts, at=at, **fields)
    return LoggedTurn(parse_turn(record), record.get("at"))


def cold(secs: float, *, new_connection: bool = True, headers: float | None = None) -> StageReport:
    """Stages of a request for which a connection was opened in so many seconds."""
    tcp = secs if new_connection else None
    return StageReport(new_connection=new_connection, tcp_secs=tcp, headers_secs=headers)


def two_hours(name: str = "one", count: int = 300) -> list[dict[str, Any]]:
    """Lines of two hours, twenty minutes of them slow; some hedged, some failed, some cold."""
    made = list[dict[str, Any]]()
    for n, wait in enumerate(PROFILES["claude-haiku-4-5"].samples(count, 1).tolist()):
        ttft = wait * (6 if 100 <= n < 150 else 1)
        tier = ("premium", "standard", "economy")[n % 3]
        fields: dict[str, Any] = {"at": BEGIN_AT + 24.0 * n, "tier": tier}
        if n % 40 == 7:
            bad = attempt(name, None, ended=0.3, outcome="failed", error_category="rate_limit")
            more = attempt("two", 0.4, launched=0.3, reason="failure", usd=0.002)
            made.append(line(bad, more, ttft=0.7, **fields))
        elif ttft > 2:
            lost = attempt(name, None, ended=1.6, outcome="superseded", usd=0.001)
            won = attempt("two", 0.6, launched=1.0, ended=2.4, reason="hedge", usd=0.002)
            made.append(line(lost, won, ttft=1.6, **fields))
        else:
            stages = cold(0.12, new_connection=n % 5 == 0)
            made.append(line(attempt(name, ttft, usd=0.001, stages=stages), ttft=ttft, **fields))
    return made


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path
