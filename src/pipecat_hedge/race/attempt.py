"""The race's record of one attempt."""

from __future__ import annotations

from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.events import AttemptOutcome, LaunchReason, Slot

EMPTY_ANSWER = AttemptError("empty", "the answer ended without any text or tool call")
STALLED = AttemptError("stalled", "the stream stalled after the answer had begun")
TIMED_OUT = AttemptError("timeout", "no usable token within the timeout")
MISSED_DEADLINE = AttemptError("deadline", "the turn's deadline passed without an answer")
UNSURE_LAG_SECS = 0.1
"""With the event loop this far behind, the time at which a token came is unknown."""


class Attempt:
    """The race's state of one request. Only the race changes it.

    Attributes:
        number: Its number within the turn, from 0.
        provider: The provider's name.
        slot: Its slot.
        reason: Why it was launched.
        detail: The launch rule's reason, if it was consulted.
        launched_at: When it was launched, in the race's clock.
        stall_secs: The silence after which another provider gets a request, or None.
        first_token_at: When its first usable token came, or None.
        last_token_at: When its latest usable token came, or None.
        calling_at: When the latest part of an unfinished tool call came, or None.
        progressed_at: When its latest undelivered output (reasoning, arguments) came, or None.
        speakable_at: When it had a speakable unit, or None.
        called_tools: Whether it produced complete tool calls.
        lag_secs: How far the event loop was behind when its first token was read.
        ended_at: When it ended or was cancelled, or None while it is live.
        outcome: How it ended, or None while it is live.
        error: Why it failed, or None.
        is_repeated: Whether it failed and another attempt repeats its request.
        is_whole: Whether its stream has marked the end of an answer without tool calls.
    """

    __slots__ = (
        "called_tools",
        "calling_at",
        "detail",
        "ended_at",
        "error",
        "first_token_at",
        "is_repeated",
        "is_whole",
        "lag_secs",
        "last_token_at",
        "launched_at",
        "number",
        "outcome",
        "progressed_at",
        "provider",
        "reason",
        "slot",
        "speakable_at",
        "stall_secs",
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
        self.reason: LaunchReason = reason
        self.detail = detail
        self.launched_at = launched_at
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.calling_at: float | None = None
        self.progressed_at: float | None = None
        self.speakable_at: float | None = None
        self.called_tools = False
        self.lag_secs = 0.0
        self.ended_at: float | None = None
        self.outcome: AttemptOutcome | None = None
        self.error: AttemptError | None = None
        self.is_repeated = self.is_whole = False

    @property
    def is_complete(self) -> bool:
        """Whether its answer is complete, though its stream may still be open."""
        return self.called_tools or self.is_whole

    @property
    def is_unsure(self) -> bool:
        """Whether its first token may have come well before it was read."""
        return self.lag_secs >= UNSURE_LAG_SECS

    @property
    def has_sign(self) -> bool:
        """Whether anything came: an answer, reasoning, or a tool call's arguments."""
        return self.first_token_at is not None or self.progressed_at is not None

    @property
    def last_usable_at(self) -> float:
        """When its latest usable token came; its launch if none has come."""
        return self.launched_at if self.last_token_at is None else self.last_token_at

    @property
    def last_progress_at(self) -> float:
        """When its latest output of any kind came; its launch if none has come."""
        return max(self.last_usable_at, self.progressed_at or self.launched_at)
