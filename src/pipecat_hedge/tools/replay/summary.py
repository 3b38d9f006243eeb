"""What a replay comes to: percentiles by recording and over all, and how sure they are. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.tools.replay.conversation import HeardTurn
from pipecat_hedge.tools.replay.told import STAGES

__all__ = ["Figures", "Pacing", "Summary", "summarise"]

FELL_BEHIND_SECS = 0.02
"""A caller whose frames are later than the length of one does not speak in real time."""
BOT_FELL_BEHIND_SECS = 0.06
"""A bot whose sound comes so late may be heard to stutter; less is what packets and sockets do."""


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
    """Whether the machines kept up with real time.

    Parameters:
        late_secs: How late the callers' frames were: the worst turn's 99th percentile, in seconds.
        bot_late_secs: How late the bot's were, likewise.
        turns_behind: In how many turns the callers' were later than ``FELL_BEHIND_SECS``.
        bot_turns_behind: In how many the bot's were later than ``BOT_FELL_BEHIND_SECS``.
        turns: Of how many.
    """

    late_secs: float
    bot_late_secs: float
    turns_behind: int
    bot_turns_behind: int
    turns: int

    @property
    def kept_up(self) -> bool:
        """Whether the figures are the bot's, and not a busy machine's."""
        return not self.turns_behind and not self.bot_turns_behind

    @property
    def told(self) -> str:
        """The verdict, for a person to read."""
        late, bot_late = f"{1000 * self.late_secs:.0f} ms", f"{1000 * self.bot_late_secs:.0f} ms"
        if self.kept_up:
            return (
                f"both sides kept real time (99 % of the caller's frames at most {late} late, of "
                f"the bot's {bot_late})"
            )
        found: list[str] = []
        if self.turns_behind:
            found.append(
                f"the machine, not the bot, was the bottleneck in {self.turns_behind} of "
                f"{self.turns} turns: the caller's frames were up to {late} late; call from "
                "another machine, or with fewer callers"
            )
        if self.bot_turns_behind:
            found.append(
                f"the bot's machine was the bottleneck in {self.bot_turns_behind} of {self.turns} "
                f"turns: its sound came up to {bot_late} late, as from a process that does not "
                "get the processor; call with fewer callers, or give it more"
            )
        return "; ".join(found)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a replay comes to.

    Parameters:
        everything: All turns together.
        recordings: By recording, in the order of their first turn.
        stages: When each stage of an answered turn ended, as the bots' messages tell: medians, in
            seconds from the caller's last sound; see ``told.STAGES``. The last is ``heard``, the
            answer's own. Empty if no bot tells.
        pacing: Whether the machine kept up.
    """

    everything: Figures
    recordings: tuple[Figures, ...]
    stages: dict[str, float]
    pacing: Pacing

    @property
    def stages_told(self) -> str:
        """The stages, for a person to read; empty if there are none."""
        return ", ".join(
            f"{name.replace('_', ' ')} {secs:.2f} s" for name, secs in self.stages.items()
        )


def summarise(turns: Sequence[HeardTurn]) -> Summary:
    """Put turns together.

    Args:
        turns: The turns of a replay; not empty.
    """
    names = dict.fromkeys(turn.recording for turn in turns)
    late = [turn.late_secs for turn in turns]
    bot_late = [turn.bot_late_secs for turn in turns]
    return Summary(
        _figures("all", turns),
        tuple(_figures(n, [turn for turn in turns if turn.recording == n]) for n in names),
        _stages(turns),
        Pacing(
            max(late),
            max(bot_late),
            sum(secs > FELL_BEHIND_SECS for secs in late),
            sum(secs > BOT_FELL_BEHIND_SECS for secs in bot_late),
            len(turns),
        ),
    )


def _stages(turns: Sequence[HeardTurn]) -> dict[str, float]:
    """Medians over the same turns, or a stage might come out before the one that it follows.

    They are the turns that have the stages which most turns have.
    """
    told = [
        {**turn.stages, "heard": turn.voice_to_voice_secs}
        for turn in turns
        if turn.stages and turn.voice_to_voice_secs is not None
    ]
    if not told:
        return {}
    ((usual, _),) = Counter(frozenset(times) for times in told).most_common(1)
    same = [times for times in told if usual <= times.keys()]
    return {
        stage: statistics.median_low([times[stage] for times in same])
        for stage in (*STAGES.values(), "heard")
        if stage in usual
    }


def _figures(name: str, turns: Sequence[HeardTurn]) -> Figures:
    secs = [t.voice_to_voice_secs for t in turns if t.voice_to_voice_secs is not None]
    silent = [t.silent_after_secs for t in turns if t.silent_after_secs is not None]
    return Figures(
        name,
        len(turns),
        len(secs),
        *(percentile(secs, p) for p in (0.5, 0.95, 1.0)),
        *(percentile(silent, p) for p in (0.5, 1.0)),
    )
