"""Tracks the tool calls that a turn waits for: the answer after them belongs to the same turn.

Running the LLM again may take a while: Pipecat's assistant aggregator waits until the bot is
silent. A tool that an interruption does not cancel is not awaited.
"""

from __future__ import annotations

from pipecat.frames.frames import (
    Frame,
    FunctionCallCancelFrame,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    FunctionCallsStartedFrame,
    LLMFullResponseStartFrame,
)

__all__ = ["AwaitedTools"]


class AwaitedTools:
    """The tool calls of one turn."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._in_background: set[str] = set()
        self._runs_llm_again = False

    def __bool__(self) -> bool:
        """Whether a tool runs, or has returned and the LLM is about to run again."""
        return self._runs_llm_again or bool(self._running)

    def take(self, frame: Frame) -> None:
        """Process a frame."""
        if isinstance(frame, FunctionCallsStartedFrame):
            self._running.update(call.tool_call_id for call in frame.function_calls)
        elif isinstance(frame, FunctionCallInProgressFrame):
            if frame.cancel_on_interruption:
                self._running.add(frame.tool_call_id)
            else:
                self._running.discard(frame.tool_call_id)
                self._in_background.add(frame.tool_call_id)
        elif isinstance(frame, FunctionCallResultFrame) and self._is_known(frame.tool_call_id):
            if frame.properties is None or frame.properties.is_final:
                self._running.discard(frame.tool_call_id)
            self._runs_llm_again = self._runs_llm_again or _runs_llm_again(frame)
        elif isinstance(frame, FunctionCallCancelFrame) and self._is_known(frame.tool_call_id):
            self._running.discard(frame.tool_call_id)
            self._runs_llm_again = self._runs_llm_again or frame.run_llm
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._runs_llm_again = False

    def _is_known(self, tool_call_id: str) -> bool:
        return tool_call_id in self._running or tool_call_id in self._in_background


def _runs_llm_again(frame: FunctionCallResultFrame) -> bool:
    """Decide as Pipecat's assistant aggregator does."""
    if not frame.result:
        return False
    if frame.properties is not None and frame.properties.run_llm is not None:
        return frame.properties.run_llm
    return frame.run_llm is not False
