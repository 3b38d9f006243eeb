"""What one attempt has produced, counted while it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from pipecat.metrics.metrics import LLMTokenUsage

from pipecat_hedge.limits.rate_limit_headers import RateLimits
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.service.stages import Stages

__all__ = ["AttemptStats"]


@dataclass(slots=True)
class AttemptStats:
    """What one attempt has produced so far. Times are the loop's.

    Parameters:
        usage: The provider's own count of tokens, once it has sent one.
        chars: Characters produced: answer text, reasoning and tool arguments.
        completed: Whether the answer ended by itself, so that ``usage`` is final.
        mended_context: Whether the service took a message out of its copy of the context that no
            provider would accept.
        first_text_at: When its first answer text came; known only when ``keeps_text``.
        text: The answer's text, kept only when ``keeps_text``.
        keeps_text: Whether the text is wanted afterwards.
        silent_text: What came before anything usable: white space and markers.
        first_answer_at: When the first usable text or complete tool call came.
        has_response: Whether a response to it has begun, where the service's client shows it.
        error: Why it failed, if it is the service that has said so.
        rate_limit: What the latest response to it told of the provider's rate limit, if anything.
        rate_limit_at: When that response began.
        on_answer: Called once, when the first usable text or complete tool call has come.
        on_rate_limit: Called each time ``rate_limit`` has come.
        stages: Where its time went.
    """

    usage: LLMTokenUsage | None = None
    chars: int = 0
    completed: bool = False
    mended_context: bool = False
    first_text_at: float | None = None
    text: str = ""
    keeps_text: bool = False
    silent_text: str = ""
    first_answer_at: float | None = None
    has_response: bool = False
    error: AttemptError | None = None
    rate_limit: RateLimits | None = None
    rate_limit_at: float | None = None
    on_answer: Callable[[], None] | None = None
    on_rate_limit: Callable[[], None] | None = None
    stages: Stages = field(default_factory=Stages)

    @property
    def has_answer(self) -> bool:
        """Whether anything usable came."""
        return self.first_answer_at is not None

    @property
    def has_begun(self) -> bool:
        """Whether the provider has begun to respond, as far as that is known."""
        return self.has_response or self.chars > 0

    @property
    def is_empty(self) -> bool:
        """Whether the answer ended by itself and had nothing usable in it."""
        return self.completed and not self.has_answer

    def record_answer(self) -> None:
        """Take note that something usable has come now."""
        if self.first_answer_at is None:
            self.first_answer_at = asyncio.get_running_loop().time()
            self.stages.record_token()
            if self.on_answer is not None:
                self.on_answer()

    def record_response(self, limits: RateLimits | None) -> None:
        """Take note that a response has begun now, and of what it told.

        Args:
            limits: What it told of a rate limit; None if it told nothing.
        """
        self.has_response = True
        if limits is None:
            return
        self.rate_limit, self.rate_limit_at = limits, asyncio.get_running_loop().time()
        if self.on_rate_limit is not None:
            self.on_rate_limit()
