"""Percentiles of a replay by recording and overall, and whether the machines kept real time."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipecat_hedge.tools.replay.conversation import TurnResult
from pipecat_hedge.tools.replay.rtvi import STAGES

CALLER_LATE_SECS = 0.02
"""A caller whose frames are later than one frame's length does not speak in real time."""
BOT_LATE_SECS = 0.06
"""Bot audio later than this may stutter audibly; packets and sockets account for less."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of several turns.

    Parameters:
        name: The recording's name, or "all".
        turns: The number of turns.
        answered: The answered ones.
        p50: Their voice-to-voice latency, in seconds; None without any.
        p95: Its 95th percentile, by nearest rank; likewise.
        max: The slowest; likewise.
        silent_p50: Of interruptions, the median time until the bot was silent.
        silent_max: The longest.
    """

    name: str
    turns: int
    answered: int
    p50: float | None
    p95: float | None
    max: float | None
    silent_p50: float | None = None
    silent_max: float | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a replay.

    Parameters:
        overall: All turns.
        recordings: By recording, in the order of their first turn.
        stages: Medians of the ends of each stage of answered turns, by the bots' messages, in
            seconds from the caller's last sound; see ``rtvi.STAGES``. The last one is ``heard``,
            the answer's first sound. Empty without messages.
        kept_up: Whether the machines kept real time, so that the figures are the bot's.
        pacing: The same as text, with the delays of frames.
    """

    overall: Figures
    recordings: tuple[Figures, ...]
    stages: dict[str, float]
    kept_up: bool
    pacing: str


def summarise(turns: Sequence[TurnResult]) -> Summary:
    """Summarise turns.

    Args:
        turns: The turns of a replay; not empty.
    """
    names = dict.fromkeys(turn.recording for turn in turns)
    return Summary(
        _figures("all", turns),
        tuple(_figures(n, [turn for turn in turns if turn.recording == n]) for n in names),
        _stages(turns),
        *_pacing(turns),
    )


def _figures(name: str, turns: Sequence[TurnResult]) -> Figures:
    secs = [t.voice_to_voice_secs for t in turns if t.voice_to_voice_secs is not None]
    silent = [t.silent_after_secs for t in turns if t.silent_after_secs is not None]

    def percentiles(values: list[float], *shares: float) -> list[float | None]:
        if not values:
            return [None for _ in shares]
        return [float(q) for q in np.quantile(values, shares, method="inverted_cdf")]

    return Figures(
        name,
        len(turns),
        len(secs),
        *percentiles(secs, 0.5, 0.95, 1.0),
        *percentiles(silent, 0.5, 1.0),
    )


def _stages(turns: Sequence[TurnResult]) -> dict[str, float]:
    """Return medians over the same turns, so that no stage ends before the one it follows.

    Only turns with the most common set of stages count.
    """
    answered = [
        {**turn.stages, "heard": turn.voice_to_voice_secs}
        for turn in turns
        if turn.stages and turn.voice_to_voice_secs is not None
    ]
    if not answered:
        return {}
    ((usual, _),) = Counter(frozenset(times) for times in answered).most_common(1)
    same = [times for times in answered if usual <= times.keys()]
    return {
        stage: statistics.median_low([times[stage] for times in same])
        for stage in (*STAGES.values(), "heard")
        if stage in usual
    }


def _pacing(turns: Sequence[TurnResult]) -> tuple[bool, str]:
    late, bot_late = [t.late_secs for t in turns], [t.bot_late_secs for t in turns]
    behind = sum(secs > CALLER_LATE_SECS for secs in late)
    bot_behind = sum(secs > BOT_LATE_SECS for secs in bot_late)
    late_ms, bot_late_ms = f"{1000 * max(late):.0f} ms", f"{1000 * max(bot_late):.0f} ms"
    found: list[str] = []
    if behind:
        found.append(
            f"the machine, not the bot, was the bottleneck in {behind} of {len(turns)} turns: the "
            f"caller's frames were up to {late_ms} late; use another machine, or fewer callers"
        )
    if bot_behind:
        found.append(
            f"the bot's machine was the bottleneck in {bot_behind} of {len(turns)} turns: its "
            f"audio was up to {bot_late_ms} late, as from a starved process; use fewer callers, "
            "or a faster machine"
        )
    kept_up = (
        f"both sides kept real time (99 % of the caller's frames at most {late_ms} late, of the "
        f"bot's {bot_late_ms})"
    )
    return not found, "; ".join(found) or kept_up
