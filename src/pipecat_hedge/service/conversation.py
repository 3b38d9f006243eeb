"""What a processor can find out about the conversation that it is in."""

from __future__ import annotations

from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregator
from pipecat.processors.frame_processor import FrameProcessor

from pipecat_hedge.service.tts_output import upstream_of

__all__ = ["answers_a_tool", "context_of"]


def context_of(processor: FrameProcessor) -> LLMContext | None:
    """The context that will reach a processor: that of the nearest aggregator in front of it.

    Args:
        processor: A processor in a pipeline that has been built.

    Returns:
        The context, or None if no aggregator is there.
    """
    for found in upstream_of(processor):
        if isinstance(found, LLMContextAggregator):
            return found.context
    return None


def answers_a_tool(context: LLMContext) -> bool:
    """Whether the next answer goes on from a tool's result, not from what the caller said."""
    last = context.messages[-1] if context.messages else None
    return isinstance(last, dict) and last.get("role") == "tool"
