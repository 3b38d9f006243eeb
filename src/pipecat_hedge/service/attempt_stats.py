"""What one attempt has produced so far."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipecat.metrics.metrics import LLMTokenUsage

from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.service.stages import Stages


@dataclass(slots=True)
class AttemptStats:
    """What one attempt has produced so far. Times are the loop's.

    Parameters:
        usage: The provider's token counts, once sent.
        chars: The characters produced: answer text, reasoning and tool arguments.
        completed: Whether the answer ended normally, so that ``usage`` is final.
        mended_context: Whether the service removed a message that no provider would accept from its
            copy of the context.
        text: The answer's text; set only with ``keeps_text``.
        tool_calls: The tools called, with their arguments.
        keeps_text: Whether the text is needed later.
        silent_text: The text before anything usable: white space and markers.
        first_answer_at: When the first usable text or complete tool call came.
        error: Why it failed, if the service reported an error.
        on_answer: Called once, when the first usable text or complete tool call has come.
        stages: How the request's time divides.
    """

    usage: LLMTokenUsage | None = None
    chars: int = 0
    completed: bool = False
    mended_context: bool = False
    text: str = ""
    tool_calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    keeps_text: bool = False
    silent_text: str = ""
    first_answer_at: float | None = None
    error: AttemptError | None = None
    on_answer: Callable[[], None] | None = None
    stages: Stages = field(default_factory=Stages)

    @property
    def has_answer(self) -> bool:
        """Whether anything usable came."""
        return self.first_answer_at is not None

    @property
    def has_begun(self) -> bool:
        """Whether the provider is known to have begun to respond."""
        return self.stages.has_response or self.chars > 0

    @property
    def is_empty(self) -> bool:
        """Whether the answer ended normally without anything usable."""
        return self.completed and not self.has_answer

    def record_answer(self) -> None:
        """Record that something usable came now."""
        if self.first_answer_at is None:
            self.first_answer_at = asyncio.get_running_loop().time()
            self.stages.record_token()
            if self.on_answer is not None:
                self.on_answer()
