"""A turn as a timeline: a lane for each request, from when it was launched to its end. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo
from html import escape

from pipecat_hedge.race.errors import SHED
from pipecat_hedge.race.reports import AttemptReport
from pipecat_hedge.tools.analysis.report.causes import SlowTurn
from pipecat_hedge.tools.analysis.report.charts import legend
from pipecat_hedge.tools.analysis.report.turns import connecting_secs
from pipecat_hedge.tools.analysis.report.wording import clock, secs

__all__ = ["key_to", "timeline"]


def key_to(turns: Iterable[SlowTurn]) -> str:
    """What the colours of these turns' timelines mean.

    Args:
        turns: The turns.
    """
    new_connection = any(connecting_secs(attempt) for turn in turns for attempt in turn.attempts)
    return legend(
        [
            ("wait", "waiting for the first token"),
            *([("open", "of it, opening a connection")] if new_connection else []),
            ("talk", "answering"),
            ("mark", "the caller's wait ends"),
        ]
    )


def timeline(turn: SlowTurn, zone: tzinfo | None) -> str:
    """A turn's requests, one below the other, and why it was slow.

    Args:
        turn: The turn.
        zone: The time zone of hours.
    """
    until = max([turn.waited_secs, *(a.ended_secs for a in turn.attempts)]) or 1.0
    when = f"turn {turn.place}" if turn.at is None else clock(turn.at, zone)
    facts = [when, *([] if turn.tier is None else [turn.tier]), turn.outcome.replace("_", " ")]
    lanes = "".join(_lane(attempt, turn, until) for attempt in turn.attempts)
    waited = escape(secs(turn.waited_secs, at_least=turn.given_up))
    return (
        f'<div class="turn"><h3>{waited} <span class="about">· '
        f"{escape(' · '.join(facts))}</span></h3><p>{escape(turn.told)}.</p>{lanes}"
        f'<div class="lane"><div class="ends"><span>0 s</span><span>{secs(until)}</span></div>'
        "</div></div>"
    )


def _lane(attempt: AttemptReport, turn: SlowTurn, until: float) -> str:
    def x(at: float) -> float:
        return 100 * min(max(at / until, 0.0), 1.0)

    def bar(kind: str, begin: float, end: float) -> str:
        width = max(x(end) - x(begin), 0.3)
        return f'<rect class="{kind}" x="{x(begin):.2f}" y="10" width="{width:.2f}" height="80"/>'

    parts = list[str]()
    launched, ended = attempt.launched_secs, max(attempt.ended_secs, attempt.launched_secs)
    token = None if attempt.ttft_secs is None else launched + attempt.ttft_secs
    if attempt.error_category != SHED or attempt.sent_secs is not None:
        parts.append(bar("wait", launched, ended if token is None else min(token, ended)))
        if opening := connecting_secs(attempt):
            sent = attempt.sent_secs or launched
            parts.append(bar("open", sent, min(sent + opening, ended)))
        if token is not None:
            parts.append(bar("talk", min(token, ended), ended))
    at = x(turn.waited_secs)
    parts.append(f'<line class="mark" x1="{at:.2f}" x2="{at:.2f}" y1="0" y2="100"/>')
    what = attempt.outcome
    if attempt.outcome == "failed" and attempt.error_category:
        what = f"failed, {attempt.error_category.replace('_', ' ')}"
    name = f"{attempt.provider} · {attempt.launch_reason} · {what}"
    return (
        f'<div class="lane"><span>{escape(name)}</span><svg viewBox="0 0 100 100" '
        f'preserveAspectRatio="none" aria-hidden="true">{"".join(parts)}</svg></div>'
    )
