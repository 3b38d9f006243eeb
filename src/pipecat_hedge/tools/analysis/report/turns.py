"""The turns of a log, and what was heard in them: as logged, nothing made up.

Law: what a line does not tell is unknown. A log of an older version lacks fields that came later;
those are named in ``lacks``, so that their defaults are never taken for figures.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipecat_hedge.race.errors import SHED
from pipecat_hedge.race.reports import AttemptReport, TurnReport
from pipecat_hedge.voice.turn_timeline import TurnLatency

__all__ = ["HeardTurn", "Log", "LoggedTurn", "connecting_secs", "waited_secs", "was_sent"]


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn as its line tells it.

    Parameters:
        report: What the race did.
        at: When the turn was over, in seconds since the epoch; None if the line does not say.
        policy: The policy's name; None if the line does not say.
        session: Whose call it was, where the line says (``session`` or ``call``).
        lacks: Fields of the report that the line does not have.
    """

    report: TurnReport
    at: float | None = None
    policy: str | None = None
    session: str | None = None
    lacks: frozenset[str] = frozenset()

    @property
    def began_at(self) -> float | None:
        """When the turn began, in seconds since the epoch."""
        return None if self.at is None else self.at - self.report.duration_secs

    @property
    def tier(self) -> str | None:
        """Whose turn it was; None if the line does not say."""
        return None if "tier" in self.lacks else self.report.tier

    @property
    def is_degraded(self) -> bool:
        """Whether the caller heard the fallback text, alone or after a part of an answer."""
        return self.report.degraded_reason is not None

    @property
    def has_left(self) -> bool:
        """Whether the caller went while waiting for room: nobody was asked, nothing was wrong."""
        is_failed = self.report.outcome == "failed"
        return is_failed and not (self.report.attempts or self.is_degraded)

    @property
    def was_given_up(self) -> bool:
        """Whether the caller spoke again, or went, before there was a token of the answer."""
        is_cut = self.report.outcome == "interrupted" and self.report.ttft_secs is None
        return (is_cut and not self.is_degraded) or self.has_left

    @property
    def is_unanswered(self) -> bool:
        """Whether the caller waited for an answer and did not get one, or not all of it."""
        return self.is_degraded or (self.report.outcome == "failed" and not self.has_left)

    @property
    def is_success(self) -> bool:
        """Whether the caller had the whole answer."""
        is_answered = self.report.outcome in ("answered", "answered_with_tools")
        return is_answered and not self.is_degraded


@dataclass(frozen=True, slots=True)
class HeardTurn:
    """A turn as the caller lived it, from a ``TurnLatencyObserver``'s log.

    Parameters:
        latency: What was heard of it and when, and what its races did.
        at: When the caller's last sound was, in seconds since the epoch; None if the line does not
            say.
        tier: Whose turn it was; None if there was no race, or it does not say.
    """

    latency: TurnLatency
    at: float | None = None
    tier: str | None = None

    @property
    def voice_to_voice_secs(self) -> float | None:
        """To the first sound of the answer; None if it was not heard."""
        return self.latency.voice_to_voice_secs


@dataclass(frozen=True, slots=True)
class Log:
    """What files hold, in the order of time where they tell it.

    Parameters:
        files: The files' names, without their folders.
        turns: The turns.
        heard: What callers heard, where one of the files is such a log.
        skipped: How many lines could not be used.
        named_skips: The first of them, each with its file, its number and what is wrong.
    """

    files: tuple[str, ...]
    turns: tuple[LoggedTurn, ...]
    heard: tuple[HeardTurn, ...] = ()
    skipped: int = 0
    named_skips: tuple[str, ...] = ()


def was_sent(attempt: AttemptReport, lacks: frozenset[str]) -> bool:
    """Whether a request was made for an attempt.

    Args:
        attempt: The attempt.
        lacks: What its line lacks: an older log does not tell when a request was sent, and there
            every attempt has sent one but those for which there was no room.
    """
    if "sent_secs" in lacks:
        return attempt.error_category != SHED
    return attempt.sent_secs is not None


def waited_secs(attempt: AttemptReport) -> tuple[float, bool]:
    """How long an attempt was waited for, and whether it was still silent then.

    Args:
        attempt: The attempt.
    """
    if attempt.ttft_secs is not None:
        return attempt.ttft_secs, False
    return max(attempt.ended_secs - attempt.launched_secs, 0.0), True


def connecting_secs(attempt: AttemptReport) -> float | None:
    """How long it took to open a connection for an attempt.

    Args:
        attempt: The attempt.

    Returns:
        Seconds; 0 if one was open, None if that is not known.
    """
    stages = attempt.stages
    if stages is None or stages.new_connection is None:
        return None
    if not stages.new_connection:
        return 0.0
    known = [s for s in (stages.dns_secs, stages.tcp_secs, stages.tls_secs) if s is not None]
    return sum(known) if known else None
