"""What a processor can find out about its conversation."""

from __future__ import annotations

from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregator
from pipecat.processors.frame_processor import FrameProcessor

from pipecat_hedge.service.tts_output import upstream_of

__all__ = ["answers_a_tool", "context_of"]


def context_of(processor: FrameProcessor) -> LLMContext | None:
    """The context of the nearest aggregator before a processor of a built pipeline, or None."""
    for found in upstream_of(processor):
        if isinstance(found, LLMContextAggregator):
            return found.context
    return None


def answers_a_tool(context: LLMContext) -> bool:
    """Whether the next answer continues from a tool result, and not from the caller's speech."""
    last = context.messages[-1] if context.messages else None
    return isinstance(last, dict) and last.get("role") == "tool"
