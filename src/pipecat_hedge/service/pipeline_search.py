"""Finds other processors of a built pipeline: the text-to-speech and the context aggregator.

The text-to-speech decides how an answer is committed and released.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipecat.pipeline.pipeline import PipelineSink, PipelineSource
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregator
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.tts_service import TTSService

from pipecat_hedge.race.events import CommitOn
from pipecat_hedge.service.pipecat_private import (
    collects_sentences,
    processor_around,
    text_aggregator,
)


@dataclass(frozen=True, slots=True)
class Output:
    """How the answer's text becomes speech downstream.

    Parameters:
        commit_on: A sentence if nothing but whole sentences is spoken, or else a token.
        language: The language of its sentence rules; None is English.
        collector: The processor that assembles sentences, or None.
    """

    commit_on: CommitOn = "first_token"
    language: str | None = None
    collector: FrameProcessor | None = None

    @property
    def needs_lookahead(self) -> bool:
        """Whether it must see the start of the next sentence to speak the one before."""
        return self.collector is not None


def find_output(processor: FrameProcessor) -> Output:
    """Find how the text that ``processor`` pushes becomes speech, in a built pipeline.

    Returns:
        That of a text-to-speech service, or of a processor that divides text for one. Without
        either, text is streamed token by token.
    """
    for found in downstream_of(processor):
        if isinstance(found, (LLMTextProcessor, TTSService)):
            aggregator = text_aggregator(found)
            if collects_sentences(aggregator):
                return Output("first_sentence", aggregator.language, collector=found)
            return Output("first_token", aggregator.language)
    return Output()


def context_of(processor: FrameProcessor) -> LLMContext | None:
    """The context of the nearest aggregator before a processor of a built pipeline, or None."""
    for found in upstream_of(processor):
        if isinstance(found, LLMContextAggregator):
            return found.context
    return None


def downstream_of(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    """Everything after a processor of a built pipeline, in order."""
    after = processor.next
    while after is not None:
        yield from _with_inner(after)
        if isinstance(after, PipelineSink):  # continue in the enclosing pipeline
            after = processor_around(after)
        after = None if after is None else after.next


def upstream_of(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    """Everything before a processor of a built pipeline, nearest first."""
    before = processor.previous
    while before is not None:
        yield from _with_inner(before)
        if isinstance(before, PipelineSource):
            before = processor_around(before)
        before = None if before is None else before.previous


def _with_inner(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    yield processor
    for inner in processor.processors:
        yield from _with_inner(inner)
