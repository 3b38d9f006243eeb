"""What is used of Pipecat that is not public, each with a name of its own.

What is private of the providers' SDKs, and how Pipecat's LLM services use them, is in
``provider_client.py``. Versions that are newer than those in ``TESTED`` are warned of at import.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from importlib import metadata
from typing import Any

import pipecat
from loguru import logger
from pipecat.pipeline.pipeline import PipelineSink, PipelineSource
from pipecat.processors.aggregators.llm_text_processor import LLMTextProcessor
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallRegistryItem, LLMService
from pipecat.services.tts_service import TextAggregationMode, TTSService, WebsocketTTSService
from pipecat.utils.text.base_text_aggregator import BaseTextAggregator, TextType
from pipecat.utils.text.pattern_pair_aggregator import MatchAction, PatternPairAggregator
from pipecat.utils.text.simple_text_aggregator import SimpleTextAggregator
from pipecat.utils.text.skip_tags_aggregator import SkipTagsAggregator

TESTED = {"Pipecat": (1, 14), "openai": (3,), "anthropic": (1,), "google-genai": (2,)}
"""The newest versions with which the tests have run: of Pipecat to the minor, of SDKs to the major
version."""


def _warn_if_newer(package: str, version: str) -> None:
    tested = TESTED[package]
    if tuple(map(int, re.findall(r"\d+", version)[: len(tested)])) > tested:
        logger.warning(
            f"{package} {version} is newer than {'.'.join(map(str, tested))}, with which this "
            "release of pipecat-hedge was tested"
        )


_warn_if_newer("Pipecat", pipecat.__version__)
for _sdk in [*TESTED][1:]:
    with suppress(metadata.PackageNotFoundError):  # each is an extra of Pipecat's
        _warn_if_newer(_sdk, metadata.version(_sdk))


# ---- pipelines


def processor_around(end: PipelineSource | PipelineSink) -> FrameProcessor | None:
    """The pipeline that an end of a pipeline belongs to."""
    is_sink = isinstance(end, PipelineSink)
    push = end._downstream_push_frame if is_sink else end._upstream_push_frame
    found = getattr(push, "__self__", None)
    return found if isinstance(found, FrameProcessor) else None


# ---- LLM services


def tool_handlers(service: LLMService[Any]) -> Mapping[str | None, FunctionCallRegistryItem]:
    """The tool handlers of a service, by the tool's name; None is the handler of all others."""
    return service._functions


def remove_system_instruction(service: LLMService[Any], text: str) -> None:
    """Undo ``append_system_instruction``."""
    service._appended_system_instructions.remove(text)
    service._compose_system_instruction()


# ---- text-to-speech services


def speaks_tokens(service: TTSService) -> bool:
    """Whether a service is given single tokens, and not sentences."""
    return service._text_aggregation_mode is TextAggregationMode.TOKEN


def text_aggregator(collector: LLMTextProcessor | TTSService) -> BaseTextAggregator:
    """What divides an answer's text into what is spoken at once."""
    return collector._text_aggregator


def collects_sentences(aggregator: BaseTextAggregator) -> bool:
    """Whether an aggregator is known to yield nothing before a sentence is whole."""
    if aggregator.aggregation_type is not TextType.SENTENCE:
        return False
    if isinstance(aggregator, PatternPairAggregator) and any(
        pattern["action"] is MatchAction.AGGREGATE for pattern in aggregator._patterns.values()
    ):
        return False
    known = SimpleTextAggregator, SkipTagsAggregator, PatternPairAggregator
    return any(type(aggregator).aggregate is each.aggregate for each in known)


def pauses_for_audio(service: TTSService) -> bool:
    """Whether a service takes no text while audio is due, which does not name its request."""
    return service._pause_frame_processing


def turn_context(service: TTSService) -> str | None:
    """The audio context of the turn whose text a service is given."""
    return service._turn_context_id


def is_interruptible(service: TTSService, context_id: str) -> bool:
    """Whether an interruption ends an audio context."""
    return service._tts_contexts[context_id].interruptible


def latest_text(service: TTSService) -> Any:
    """The slot of the text that a service was given last, in the order of what is spoken."""
    return service._aggregated_frame_sequencer._slots[-1]


async def start_words(service: TTSService, at_nanosecs: int) -> None:
    """Time the words of an audio context from a time of the pipeline's clock on."""
    for cached in service._word_timestamp_tracker.start(at_nanosecs):
        spaced = cached.includes_inter_frame_spaces
        await service._add_word_timestamps(
            [(cached.word, cached.timestamp)], cached.context_id, spaced
        )


async def end_text(service: TTSService, slot: Any, at_secs: float, *, is_whole: bool) -> None:
    """End a text that was spoken: with the rest of its words, or with no more of them.

    Args:
        service: The service.
        slot: The text's, by ``latest_text``.
        at_secs: When it ends, in seconds from the start of its context's audio.
        is_whole: Whether all of it was spoken.
    """
    if slot.complete:
        return
    sequencer, times = service._aggregated_frame_sequencer, service._word_timestamp_tracker
    if is_whole:
        rest = slot.tracker.get_remaining_tts_text()
        now = service.get_clock().get_time()
        at = max(times.pts(at_secs), times.last_pts) if times.started else now
        await service._push_word_frames(sequencer.process_word(rest, at, slot.context_id))
    if not slot.complete:
        slot.complete = True
        await service._push_word_frames(sequencer.flush())


def forget_text(service: TTSService, context_id: str, others: Collection[str]) -> None:
    """Forget an audio context and its texts.

    Args:
        service: The service.
        context_id: The context.
        others: The contexts that are still in use.
    """
    service._tts_contexts.pop(context_id, None)
    if service._turn_context_id == context_id:  # another request may be in it
        service._turn_context_id = None
    service._aggregated_frame_sequencer.clear(keep_contexts=set(others))


def allow_silence(service: TTSService) -> None:
    """Have a service never be written off for contexts without audio."""
    service._max_consecutive_zero_audio_contexts = 0


def on_connection_lost(service: TTSService, callback: Callable[[], Awaitable[None]]) -> None:
    """Call this in place of ending the audio contexts, where a service has a connection."""
    if isinstance(service, WebsocketTTSService):
        service._close_connection_contexts = callback  # pyright: ignore[reportAttributeAccessIssue]


def connect_one_by_one(service: TTSService) -> None:
    """Both the reader and the next request renew a lost connection; one would stay open."""
    lock = asyncio.Lock()

    def one_by_one(change: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def changed() -> None:
            async with lock:
                await change()

        return changed

    if isinstance(service, WebsocketTTSService):
        for method in ("_connect_websocket", "_disconnect_websocket"):
            setattr(service, method, one_by_one(getattr(service, method)))


def has_connection(service: TTSService) -> bool:
    """Whether ``disconnect`` and ``connect`` apply to a service."""
    return hasattr(service, "_connect")


def has_no_reader(service: TTSService) -> bool:
    """Whether nothing would read the connection that a service opens for its next request.

    So it is when its connections were lost three times within seconds of being opened, and while
    it is about to open the next one itself, which takes the place of any other.
    """
    if not isinstance(service, WebsocketTTSService):
        return False
    reader: asyncio.Task[None] | None = getattr(service, "_receive_task", None)
    return (reader is not None and reader.done()) or service._reconnect_in_progress


async def disconnect(service: Any) -> None:
    """Close a service's connection."""
    await service._disconnect()


async def connect(service: Any) -> None:
    """Open a service's connection, and have it read."""
    await service._connect()
    service._disconnecting = False  # where a service's ``_connect`` forgets it, as Resemble's
