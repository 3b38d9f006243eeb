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


class AwaitedTools:
    """The tool calls of one turn."""

    def __init__(self) -> None:
        self._calls: dict[str, bool] = {}
        """By ID, whether the call is awaited: not if it runs on in the background."""
        self._runs_llm_again = False

    def __bool__(self) -> bool:
        """Whether a tool runs, or has returned and the LLM is about to run again."""
        return self._runs_llm_again or any(self._calls.values())

    def take(self, frame: Frame) -> None:
        """Process a frame."""
        if isinstance(frame, FunctionCallsStartedFrame):
            self._calls.update(dict.fromkeys((c.tool_call_id for c in frame.function_calls), True))
        elif isinstance(frame, FunctionCallInProgressFrame):
            self._calls[frame.tool_call_id] = frame.cancel_on_interruption
        elif isinstance(frame, FunctionCallResultFrame):
            is_final = frame.properties is None or frame.properties.is_final
            self._returned(frame.tool_call_id, is_final, _runs_llm_again(frame))
        elif isinstance(frame, FunctionCallCancelFrame):
            self._returned(frame.tool_call_id, True, frame.run_llm)
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._runs_llm_again = False

    def _returned(self, tool_call_id: str, is_final: bool, runs_llm_again: bool) -> None:
        is_awaited = self._calls.get(tool_call_id)
        if is_awaited is not None:  # not of an earlier turn
            self._runs_llm_again = self._runs_llm_again or runs_llm_again
            if is_final and is_awaited:
                del self._calls[tool_call_id]


def _runs_llm_again(frame: FunctionCallResultFrame) -> bool:
    """Decide as Pipecat's assistant aggregator does."""
    if not frame.result:
        return False
    if frame.properties is not None and frame.properties.run_llm is not None:
        return frame.properties.run_llm
    return frame.run_llm is not False
