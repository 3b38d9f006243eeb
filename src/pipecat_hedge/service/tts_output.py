"""What speaks the answer, and so how it should be committed and released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipecat.pipeline.pipeline import PipelineSink, PipelineSource
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.tts_service import TextAggregationMode, TTSService

from pipecat_hedge.race.events import CommitOn

__all__ = ["Output", "downstream_of", "find_output", "upstream_of"]


@dataclass(frozen=True, slots=True)
class Output:
    """How the text is turned into speech downstream.

    Parameters:
        commit_on: What suits it: a sentence where sentences are spoken, else a token.
        language: The language by whose rules it finds sentences; None is English.
        collector: What puts the sentences together, or None if nothing does.
    """

    commit_on: CommitOn = "first_token"
    language: str | None = None
    collector: FrameProcessor | None = None

    @property
    def needs_lookahead(self) -> bool:
        """Whether it must see the next sentence begin to speak the one before."""
        return self.collector is not None


def find_output(processor: FrameProcessor) -> Output:
    """Look for what speaks the text that ``processor`` pushes.

    Args:
        processor: A processor in a pipeline that has been built.

    Returns:
        What was found: a text-to-speech service, or a processor that puts sentences together for
        one. Without either the text streams token by token.
    """
    for found in downstream_of(processor):
        if isinstance(found, LLMTextProcessor):
            return Output("first_sentence", collector=found)
        if isinstance(found, TTSService):
            if found._text_aggregation_mode is TextAggregationMode.TOKEN:
                return Output("first_token", language=found.text_aggregation_language)
            return Output("first_sentence", found.text_aggregation_language, collector=found)
    return Output()


def downstream_of(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    """Everything behind a processor, in the order of the pipeline.

    Args:
        processor: A processor in a pipeline that has been built.
    """
    after = processor.next
    while after is not None:
        yield from _with_inner(after)
        if isinstance(after, PipelineSink):  # what it hands on comes out of the pipeline around it
            after = getattr(after._downstream_push_frame, "__self__", None)
        after = after.next if isinstance(after, FrameProcessor) else None


def upstream_of(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    """Everything in front of a processor, the nearest first.

    Args:
        processor: A processor in a pipeline that has been built.
    """
    before = processor.previous
    while before is not None:
        yield from _with_inner(before)
        if isinstance(before, PipelineSource):
            before = getattr(before._upstream_push_frame, "__self__", None)
        before = before.previous if isinstance(before, FrameProcessor) else None


def _with_inner(processor: FrameProcessor) -> Iterator[FrameProcessor]:
    yield processor
    for inner in processor.processors:
        yield from _with_inner(inner)
