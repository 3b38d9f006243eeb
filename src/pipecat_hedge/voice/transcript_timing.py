"""Learns how long a recogniser takes for its last transcript, and tells the turn strategies.

Pipecat waits for an utterance's last transcript by a constant of the recogniser's class, in every
turn, unless transcripts are marked as final. What is announced in its place is the learned p99:

1. At most the constant, unless the recogniser's median is longer: then the constant is not true of
   it, and turns would be split.
2. At once if it rises, from ``STEP_SECS`` on if it falls.
3. Never less than ``least_wait_secs``, nor than the VAD takes to notice the end of speech.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    StartFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.stt_service import STTService

from pipecat_hedge.policy.arguments import require, require_known, require_number
from pipecat_hedge.providers.backends import Backend, Measures
from pipecat_hedge.race.reports import TranscriptReport
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.pipeline_search import downstream_of, upstream_of
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.voice.utterance import Utterance

KIND: Measures = "transcript"
STEP_SECS = 0.03
"""A shorter wait is announced from this difference on: each announcement costs a frame."""
SLACK_SECS = 0.02
"""A transcript takes a moment from here to the strategies. And Pipecat warns of a wait that ends
when the VAD notices the end of speech."""


class TranscriptTiming(FrameProcessor):
    """Stands between any ``STTService`` and the user's aggregator.

    It changes nothing until ``LEAST_UTTERANCES`` of the recogniser are known, in this call or from
    earlier ones (``ProviderStats``). A recogniser that sends one transcript after the end of speech
    has it marked as final, so that nothing more is waited for. A recogniser that finds the ends of
    turns itself is left alone.

    Event handlers available:

    - on_transcript_report: Called with a ``TranscriptReport`` for each utterance.

    Example::

        Pipeline([transport.input(), stt, TranscriptTiming(), user_aggregator, llm, ...])
    """

    def __init__(
        self,
        *,
        least_wait_secs: float = 0.0,
        recogniser: str | None = None,
        stats: ProviderStats | None = None,
        **kwargs: Any,
    ):
        """Create the processor.

        Args:
            least_wait_secs: The shortest wait that is announced, in seconds from the end of speech.
                Pipecat's constant also kept a turn open during a short pause of the caller; this
                keeps such a window, and marks nothing as final.
            recogniser: The name of its statistics, such as for a language of its own. Defaults to
                that of the service's class.
            stats: What is known of recognisers. Defaults to that of a hedged service downstream, or
                the process's own.
            **kwargs: Further arguments of ``FrameProcessor``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        require_known(kwargs, owner=TranscriptTiming, base=FrameProcessor)
        require("stats", stats, ProviderStats, "write ProviderStats()")
        require("recogniser", recogniser, str, "write a name, such as deepgram-fr")
        what, remedy = "0 or more seconds", "leave it out for the shortest wait"
        require_number(
            "least_wait_secs", least_wait_secs, what, remedy, lambda x: 0 <= x < math.inf
        )
        super().__init__(**kwargs)
        self._least_wait_secs, self._recogniser = least_wait_secs, recogniser
        self._rescue: Callable[[], tuple[bool, int, bool]] = lambda: (False, 0, False)
        self._given, self._stats = stats, stats
        self._events: EventHub | None = None
        self._metadata: STTMetadataFrame | None = None
        self._backend: Backend | None = None
        self._announced_secs: float | None = None
        self._stop_secs = 0.0
        self._utterance: Utterance | None = None
        self._is_reported = False
        self._register_event_handler("on_transcript_report")

    def report_rescues(self, rescue: Callable[[], tuple[bool, int, bool]]) -> None:
        """Have reports tell what a ``HedgedSTTService`` did for the utterance.

        Args:
            rescue: Returns ``is_rescued``, ``dropped`` and ``was_replaced``.
        """
        self._rescue = rescue

    @property
    def announced_secs(self) -> float | None:
        """The wait that was last announced, in seconds from the end of speech; None if none was."""
        return self._announced_secs

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Learn from transcripts, and push every frame on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, StartFrame):
            self._attach()
        elif isinstance(frame, VADUserStartedSpeakingFrame):
            await self._end_utterance()
            self._utterance = Utterance()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._stop_secs = frame.stop_secs
            if self._utterance is not None:
                self._utterance.stop(_now(), frame.stop_secs)
        elif isinstance(frame, UserStoppedSpeakingFrame):
            await self._report()
        elif isinstance(frame, InterimTranscriptionFrame):
            if self._utterance is not None:
                self._utterance.take_interim(frame.text)
        elif isinstance(frame, TranscriptionFrame):
            self._take_final(frame)
        await self.push_frame(frame, direction)
        if isinstance(frame, STTMetadataFrame) and direction is FrameDirection.DOWNSTREAM:
            self._follow(frame)
        if isinstance(frame, (StartFrame, STTMetadataFrame)):
            await self._announce()

    async def cleanup(self) -> None:
        """Learn from the last utterance."""
        await self._end_utterance()
        if self._events is not None and self._stats is not None:
            self._events = None
            await asyncio.to_thread(self._stats.save)
            await self._stats.end_session()
        await super().cleanup()

    # ---- the recogniser

    def _attach(self) -> None:
        hedged = next((p for p in downstream_of(self) if isinstance(p, HedgedLLMService)), None)
        if self._events is None:
            self._stats = self._given or (hedged.stats if hedged else shared_stats())
            self._stats.begin_session([self._backend] if self._backend else [])
            own = hedged is not None and hedged.stats is self._stats
            self._events = hedged.events if hedged and own else self._stats.events

    def _follow(self, frame: STTMetadataFrame) -> None:
        """Take the recogniser that is active from now on."""
        self._metadata, self._announced_secs = frame, None
        service = next(
            (
                found
                for found in upstream_of(self)
                if isinstance(found, STTService) and found.name == frame.service_name
            ),
            None,
        )
        name = self._recogniser or name_of(frame.service_name)
        self._backend = Backend(name, None if service is None else model_of(service), measures=KIND)

    @property
    def _has_times(self) -> bool:
        """Whether the recogniser is one that Pipecat waits for."""
        return self._metadata is not None and self._metadata.ttfs_p99_latency > 0

    async def _announce(self) -> None:
        """Announce the wait, if it is known and has changed."""
        if self._metadata is None or self._backend is None or self._stats is None:
            return
        times = self._stats.transcripts(self._backend)
        if not self._has_times or times is None:
            return
        secs, constant = times.p99_secs + SLACK_SECS, self._metadata.ttfs_p99_latency
        if times.p50_secs <= constant:
            secs = min(secs, constant)
        secs = max(secs, self._least_wait_secs, self._stop_secs + SLACK_SECS)
        before = self._announced_secs
        if before is None or secs > before or secs <= before - STEP_SECS:
            self._announced_secs = secs
            name = self._metadata.service_name
            await self.push_frame(STTMetadataFrame(service_name=name, ttfs_p99_latency=secs))

    # ---- utterances

    def _take_final(self, frame: TranscriptionFrame) -> None:
        utterance = self._utterance
        if utterance is None or not frame.text.strip():
            return
        is_only = utterance.take_final(frame.text, _now())
        if not is_only or self._least_wait_secs or self._backend is None or self._stats is None:
            return
        times = self._stats.transcripts(self._backend)
        if self._has_times and times is not None and times.sends_one:
            frame.finalized = True

    async def _end_utterance(self) -> None:
        """Report the utterance, and learn from it: no further transcript of it will come."""
        await self._report()
        utterance, self._utterance, self._is_reported = self._utterance, None, False
        if utterance is None or self._backend is None or self._stats is None:
            return
        if self._has_times and (secs := utterance.transcript_secs) is not None:
            self._stats.record_transcript(self._backend, secs, utterance.since_first_secs)
        await self._announce()

    async def _report(self) -> None:
        utterance = self._utterance
        if self._is_reported or utterance is None or utterance.ended_at is None:
            return
        if self._backend is None or self._events is None:
            return
        self._is_reported = True
        report = TranscriptReport(
            self._backend.provider,
            utterance.transcript_secs,
            utterance.finals,
            self._announced_secs,
            *self._rescue(),
        )
        self._events.publish(report)
        await self._call_event_handler("on_transcript_report", report)


def name_of(service: str) -> str:
    """The name of a recogniser's statistics, from that of its service."""
    return service.partition("#")[0].removesuffix("Service").removesuffix("STT").lower()


def model_of(service: STTService) -> str | None:
    """The model of a recogniser; None if it is the service's own choice."""
    model = service.settings.model
    return model if isinstance(model, str) else None


def _now() -> float:
    return asyncio.get_running_loop().time()
