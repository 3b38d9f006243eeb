"""What a replay comes to: percentiles by recording and over all, and how sure they are. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipecat_hedge.replay.conversation import HeardTurn

__all__ = ["Figures", "Pacing", "Summary", "summarise"]

FELL_BEHIND_SECS = 0.02
"""A caller whose frames are later than the length of one does not speak in real time."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Some turns together.

    Parameters:
        name: The recording's name, or "all".
        turns: How many.
        answered: How many of them were answered.
        p50: Voice-to-voice latency of those, in seconds; None if there are none. So with the next.
        p95: Its 95th percentile: the least under which so many stayed.
        most: The slowest.
        silent_p50: Of interruptions, the median time until the bot was silent.
        silent_most: The longest.
    """

    name: str
    turns: int
    answered: int
    p50: float | None
    p95: float | None
    most: float | None
    silent_p50: float | None = None
    silent_most: float | None = None


@dataclass(frozen=True, slots=True)
class Pacing:
    """Whether the machine that was called from kept up.

    Parameters:
        late_secs: How late the callers' frames were: the worst turn's 99th percentile.
        turns_behind: In how many turns it was more than ``FELL_BEHIND_SECS``.
        turns: Of how many.
    """

    late_secs: float
    turns_behind: int
    turns: int

    @property
    def kept_up(self) -> bool:
        """Whether the figures are the bot's, and not the machine's."""
        return not self.turns_behind

    @property
    def told(self) -> str:
        """The verdict, for a person to read."""
        late = f"{1000 * self.late_secs:.0f} ms"
        if self.kept_up:
            return f"the caller kept real time (99 % of frames at most {late} late)"
        return (
            f"the machine, not the bot, was the bottleneck in {self.turns_behind} of {self.turns} "
            f"turns: frames of the caller were up to {late} late, so these figures are too slow; "
            "call from another machine, or with fewer callers"
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a replay comes to.

    Parameters:
        everything: All turns together.
        recordings: By recording, in the order of their first turn.
        pacing: Whether the machine kept up.
    """

    everything: Figures
    recordings: tuple[Figures, ...]
    pacing: Pacing


def summarise(turns: Sequence[HeardTurn]) -> Summary:
    """Put turns together.

    Args:
        turns: The turns of a replay; not empty.
    """
    names = dict.fromkeys(turn.recording for turn in turns)
    late = [turn.late_secs for turn in turns]
    return Summary(
        _figures("all", turns),
        tuple(_figures(n, [turn for turn in turns if turn.recording == n]) for n in names),
        Pacing(max(late), sum(secs > FELL_BEHIND_SECS for secs in late), len(turns)),
    )


def _figures(name: str, turns: Sequence[HeardTurn]) -> Figures:
    secs = [t.voice_to_voice_secs for t in turns if t.voice_to_voice_secs is not None]
    silent = [t.silent_after_secs for t in turns if t.silent_after_secs is not None]
    return Figures(
        name,
        len(turns),
        len(secs),
        *(_percentile(secs, p) for p in (0.5, 0.95, 1.0)),
        *(_percentile(silent, p) for p in (0.5, 1.0)),
    )


def _percentile(values: Sequence[float], p: float) -> float | None:
    """The least value under which a share p of them lies."""
    return sorted(values)[max(math.ceil(p * len(values)) - 1, 0)] if values else None
