"""What a service promises its callers, and who is told how it is kept: the process's board."""

from __future__ import annotations

from pipecat_hedge.limits.priority import Tier
from pipecat_hedge.policy.hedge_policy import Adaptive, HedgePolicy
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.policy.slo_outcome import has_left, is_degraded, judge_wait
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.telemetry.slo_attainment import SloStatus
from pipecat_hedge.telemetry.slo_board import SloBoard
from pipecat_hedge.voice.turn_timeline import TurnLatency

__all__ = ["SloTracker", "judge_voice"]


class SloTracker:
    """A service's promise to its tier, if it has made one.

    Attributes:
        slo: What is promised; None is nothing.
    """

    def __init__(self, slo: Slo | None, policy: HedgePolicy, tier: Tier, board: SloBoard):
        """Make it.

        Args:
            slo: What the user promises; None is what the policy was told, if anything.
            policy: The service's policy.
            tier: To whose callers.
            board: Who counts.

        Raises:
            ConfigurationError: If it is no promise, or the policy was told of another.
        """
        if slo is not None and not isinstance(slo, Slo):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"slo must be a Slo, got {slo!r}: write Slo(ttft_secs=0.8)")
        aimed_at = policy.rule.slo if isinstance(policy.rule, Adaptive) else None
        if slo is not None and aimed_at is not None and slo != aimed_at:
            raise ConfigurationError(
                f"slo is {slo}, but the policy aims at {aimed_at}: give both the same, or only the "
                "policy"
            )
        self.slo = slo or aimed_at
        self._tier: Tier = tier
        self._board = board
        if self.slo is not None:
            board.promise(tier, self.slo)

    def ended(self, report: TurnReport) -> None:
        """A turn of the LLM is over.

        Args:
            report: The turn.
        """
        if self.slo is not None:
            self._board.record(self._tier, self.slo, report)

    def heard(self, turn: TurnLatency) -> None:
        """A turn of the call is over.

        Args:
            turn: The turn, as the caller lived it.
        """
        within = None if self.slo is None else self.slo.voice_to_voice_secs
        if self.slo is None or within is None:
            return
        kept = judge_voice(within, turn)
        if kept is not None:
            self._board.count(self._tier, self.slo, {"voice_to_voice": kept})

    def status(self) -> tuple[SloStatus, ...]:
        """How it is kept, by all who have made it to this tier."""
        return () if self.slo is None else self._board.status(self._tier, self.slo)


def judge_voice(within_secs: float, turn: TurnLatency) -> bool | None:
    """Whether the answer was heard as promised; None if that cannot be said.

    Args:
        within_secs: Within what time from the caller's last sound; nothing is said of other turns.
        turn: The turn, as the caller lived it.
    """
    if turn.anchor != "user_silence":
        return None
    is_silent = turn.first_answer_secs is None and not turn.interrupted
    if is_silent and (turn.may_wait or not turn.reports):
        return None
    return judge_wait(
        within_secs,
        turn.first_answer_secs,
        turn.ended_secs,
        is_cut=turn.interrupted or any(map(has_left, turn.reports)),
        is_degraded=any(map(is_degraded, turn.reports)),
    )
