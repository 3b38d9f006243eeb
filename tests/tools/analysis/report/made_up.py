"""Made-up turns, as a log has them."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipecat_hedge.race.reports import AttemptReport, StageReport, TurnReport
from pipecat_hedge.tools.analysis.report.reading import turn_of
from pipecat_hedge.tools.analysis.report.turns import HeardTurn, LoggedTurn
from pipecat_hedge.voice.turn_timeline import TurnLatency

BEGIN_AT = 1_772_456_400.0
"""2026-03-02 13:00 UTC."""


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
    """A request; it ends half a second after its first token where nothing else is said."""
    if ended is None:
        ended = launched + (ttft or 0.0) + 0.5
    fields.setdefault("sent_secs", launched)
    return AttemptReport(
        provider=provider,
        model=fields.pop("model", "model-of-" + provider),
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
    policy: str = "adaptive(10 %)",
    **fields: Any,
) -> dict[str, Any]:
    """A line of a turn log; ``at`` is when the turn began."""
    attempts = attempts or (attempt(ttft=ttft),)
    duration = fields.pop("duration_secs", max(a.ended_secs for a in attempts))
    report = TurnReport(
        turn=1,
        winner=next((a.provider for a in attempts if a.outcome == "won"), None),
        outcome=outcome,  # type: ignore[arg-type]
        ttft_secs=ttft,
        ttfs_secs=fields.pop("ttfs_secs", None if ttft is None else ttft + 0.2),
        duration_secs=duration,
        attempts=attempts,
        **{name: fields.pop(name) for name in list(fields) if name in TURN_FIELDS},
    )
    told: dict[str, Any] = {"policy": policy, **dataclasses.asdict(report), **fields}
    told["attempts"] = list(told["attempts"])
    return told if at is None else {"at": at + duration, **told}


TURN_FIELDS = {field.name for field in dataclasses.fields(TurnReport)}


def turn(*attempts: AttemptReport, **fields: Any) -> LoggedTurn:
    """A turn, read from its line."""
    return turn_of(line(*attempts, **fields))


def hedged(ttft: float, hedge_at: float = 0.7, **fields: Any) -> LoggedTurn:
    """A turn whose hedge won."""
    lost = attempt(ttft=None, ended=ttft, outcome="superseded", usd=0.001)
    won = attempt(
        "two", ttft - hedge_at, launched=hedge_at, reason="hedge", ended=ttft + 0.5, usd=0.002
    )
    return turn(lost, won, ttft=ttft, **fields)


def cold(secs: float, *, new_connection: bool = True, headers: float | None = None) -> StageReport:
    """Stages of a request for which a connection was opened in so many seconds."""
    return StageReport(
        new_connection=new_connection,
        tcp_secs=secs if new_connection else None,
        headers_secs=headers,
    )


def heard(
    answer: float | None, *, at: float | None = None, tier: str | None = None, **fields: Any
) -> HeardTurn:
    """A turn as a caller lived it; one race of it answered, where nothing else is said."""
    fields.setdefault("reports", (turn().report,))
    latency = TurnLatency(1, at or 0.0, "user_silence", first_answer_secs=answer, **fields)
    return HeardTurn(latency, at, tier)
