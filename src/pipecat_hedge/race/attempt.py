"""The race's record of one request."""

from __future__ import annotations

from pipecat_hedge.race.errors import SHED, AttemptError
from pipecat_hedge.race.events import AttemptOutcome, LaunchReason, Slot

__all__ = ["EMPTY_ANSWER", "MISSED_DEADLINE", "STALLED", "TIMED_OUT", "UNSURE_LAG_SECS", "Attempt"]

EMPTY_ANSWER = AttemptError("empty", "the answer ended without any text or tool call")
STALLED = AttemptError("stalled", "the stream stalled after the answer had begun")
TIMED_OUT = AttemptError("timeout", "no usable token within the timeout")
MISSED_DEADLINE = AttemptError("deadline", "the turn's deadline passed without an answer")
UNSURE_LAG_SECS = 0.1
"""A token that was read while the event loop was so far behind may have come at any time before."""


class Attempt:
    """What the race knows of one request. Written by the race alone.

    Attributes:
        number: Its number within the turn, from 0.
        provider: The provider's name.
        slot: Its place in the lineup.
        reason: Why it was launched.
        detail: What the launch rule said to it, if it was asked.
        launched_at: When, on the race's clock.
        opened_at: When its request was on its way, or None.
        stall_secs: The silence after which somebody else is asked, or None.
        timeout_secs: The silence after which it counts as failed, or None.
        first_token_at: When its first usable token came, or None.
        last_token_at: When its latest usable token came, or None.
        progressed_at: When the latest of what it has not handed on yet came, or None.
        speakable_at: When it had a speakable unit, or None.
        called_tools: Whether it produced complete tool calls.
        lag_secs: How far the event loop was behind when its first token was read.
        ended_at: When it ended or was cancelled, or None while it is live.
        outcome: How it ended, or None while it is live.
        error: Why it failed, or None.
    """

    __slots__ = (
        "called_tools",
        "detail",
        "ended_at",
        "error",
        "first_token_at",
        "lag_secs",
        "last_token_at",
        "launched_at",
        "number",
        "opened_at",
        "outcome",
        "progressed_at",
        "provider",
        "reason",
        "slot",
        "speakable_at",
        "stall_secs",
        "timeout_secs",
    )

    def __init__(
        self,
        number: int,
        slot: Slot,
        reason: LaunchReason,
        launched_at: float,
        detail: str | None = None,
    ):
        """Record a launch."""
        self.number = number
        self.slot = slot
        self.provider = slot.provider
        self.stall_secs = slot.stall_secs
        self.timeout_secs = slot.timeout_secs
        self.reason: LaunchReason = reason
        self.detail = detail
        self.launched_at = launched_at
        self.opened_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.progressed_at: float | None = None
        self.speakable_at: float | None = None
        self.called_tools = False
        self.lag_secs = 0.0
        self.ended_at: float | None = None
        self.outcome: AttemptOutcome | None = None
        self.error: AttemptError | None = None

    @property
    def is_unsure(self) -> bool:
        """Whether its first token may have come well before it was read."""
        return self.lag_secs >= UNSURE_LAG_SECS

    @property
    def is_sent(self) -> bool:
        """Whether its request is or was on its way, and not only waits for room."""
        return self.opened_at is not None

    @property
    def was_rejected(self) -> bool:
        """Whether it was rejected: there was no room for it, and it was not sent."""
        return self.error is not None and self.error.category == SHED

    @property
    def last_usable_at(self) -> float:
        """When something usable was last heard of it; its launch if nothing was."""
        return self.launched_at if self.last_token_at is None else self.last_token_at

    @property
    def last_progress_at(self) -> float:
        """Its last sign of life: something usable, or another delta."""
        return max(self.last_usable_at, self.progressed_at or self.launched_at)
