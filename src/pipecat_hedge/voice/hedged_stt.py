"""A recogniser with a second one: what the first does not say in time, the second says.

Both are hosted: what they forward is dropped, and what they say themselves is passed on. The audio
passes by the primary, so that one that does not read its socket holds up nothing.
"""

from __future__ import annotations

import asyncio
import copy
import math
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    LLMContextAssistantTurnFrame,
    StartFrame,
    STTMetadataFrame,
    STTMuteFrame,
    STTUpdateSettingsFrame,
    TranscriptionFrame,
    UserMuteStartedFrame,
    UserMuteStoppedFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline, PipelineSink, PipelineSource
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService, STTService
from pipecat.utils.types import is_given

from pipecat_hedge.policy.arguments import require, require_number
from pipecat_hedge.policy.budget_accounts import BudgetAccounts
from pipecat_hedge.policy.priced_delay import PricedDelay
from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import InFlight, Waiting
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.pipeline_search import downstream_of
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.voice.rescue_requests import RescueRequests
from pipecat_hedge.voice.transcript_rescue import TranscriptRescue
from pipecat_hedge.voice.transcript_timing import KIND, TranscriptTiming, model_of, name_of

BEFORE_SECS = 0.5
"""Audio from before the VAD's start that the rescue gets, too: the VAD misses soft beginnings."""
MOST_SECS = 120.0
"""The longest utterance that is kept."""
SILENCE_SECS = 3.0
"""The latest deadline, as ``silence_secs`` of ``HedgePolicy``; Pipecat ends a turn after 5 s."""
GRACE_SECS = 0.05
"""Most transcripts of a recogniser come at nearly the same time: the deadline lies behind them."""
AFTER_SECS = 1.0
"""Silence that a rescue that streams hears after an utterance: some find its end by that alone."""
HOLD_SECS = 0.5
"""A rescue that streams may send several transcripts: they are said so long after its last message,
or when one is marked as final."""
END_SECS = 2.0
"""How long the end of a call waits for a recogniser's last transcripts."""
MOST_FED = 10_000
"""Frames that a recogniser may be behind: three minutes of audio."""

Recogniser: TypeAlias = STTService | Callable[[], STTService]


_NOT_FORWARDED = (StartFrame, VADUserStartedSpeakingFrame, STTMuteFrame)


class HedgedSTTService(Pipeline):
    """Stands in the place of a speech-to-text service.

    The primary hears everything, and what it says passes. If something of an utterance is missing
    at a deadline that is learned, the rescue gets the utterance's audio, and the first of both that
    completes it counts. Includes a ``TranscriptTiming``.

    Event handlers available:

    - on_transcript_report: Called with a ``TranscriptReport`` for each utterance.

    Example::

        stt = HedgedSTTService(
            lambda: DeepgramSTTService(api_key=...), OpenAISTTService(api_key=...)
        )
        pipeline = Pipeline([transport.input(), stt, user_aggregator, llm, ...])
    """

    def __init__(
        self,
        primary: Recogniser,
        rescue: STTService,
        *,
        budget: float = 0.2,
        least_wait_secs: float = 0.0,
        stats: ProviderStats | None = None,
    ):
        """Create the service.

        Args:
            primary: The recogniser; or what creates one, so that a stuck one is replaced.
            rescue: The second recogniser: one that transcribes segments, or one that streams.
            budget: The share of utterances that may be rescued, from 0 to 1.
            least_wait_secs: See ``TranscriptTiming``.
            stats: See ``TranscriptTiming``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        require("stats", stats, ProviderStats, "write ProviderStats()")
        require_number("budget", budget, "from 0 to 1", "0.2 is a fifth", lambda x: 0 <= x <= 1)
        create: Callable[[], STTService] | None = None
        if isinstance(primary, STTService):
            service = primary
        elif callable(primary):
            create, service = primary, primary()
        else:
            raise ConfigurationError(
                f"primary must be an STTService or a function that creates one, got {primary!r}: "
                "write lambda: DeepgramSTTService(...)"
            )
        for field, each in (("primary", service), ("rescue", rescue)):
            require(field, each, STTService, "give a speech-to-text service", may_be_none=False)
        if service is rescue:
            raise ConfigurationError("rescue is the primary itself: give another service")
        self._host = _Host(service, create, rescue, budget, stats, self._usable_changed)
        name = f"{name_of(service.name)}+{name_of(rescue.name)}"
        timing = TranscriptTiming(
            least_wait_secs=least_wait_secs, recogniser=name, stats=stats, enable_direct_mode=True
        )
        timing.report_rescues(self._host.outcome)
        super().__init__([self._host, timing])
        self._register_event_handler("on_transcript_report")
        timing.add_event_handler("on_transcript_report", self._reported)

    @property
    def primary(self) -> STTService:
        """The primary recogniser now."""
        return self._host.primary

    @property
    def is_usable(self) -> bool:
        """Whether one of the recognisers can still do its job."""
        return self._host.is_usable

    async def set_usable(self, is_usable: bool) -> None:
        """Bring both recognisers back, or give up both."""
        await self.primary.set_usable(is_usable)
        await self._host.rescue.set_usable(is_usable)

    async def _usable_changed(self, *_: object) -> None:
        await super().set_usable(self.is_usable)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Settings that are addressed to this service are for its recognisers."""
        if isinstance(frame, STTUpdateSettingsFrame) and frame.service is self:
            frame = replace(frame, service=None)
        await super().process_frame(frame, direction)

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        """Push a frame; a ``ServiceSwitcher`` knows this service, not its recognisers."""
        if isinstance(frame, STTMetadataFrame):
            frame.service_name = self.name
        elif isinstance(frame, ErrorFrame) and not self.is_usable:
            frame.processor = self
        await super().push_frame(frame, direction)

    async def _reported(self, _: object, report: object) -> None:
        await self._call_event_handler("on_transcript_report", report)


class _Member:
    """A hosted recogniser: what it forwards is dropped, what it says is passed on."""

    def __init__(
        self,
        service: STTService,
        say: Callable[[Frame, FrameDirection], Any],
    ):
        self.service = service
        self.is_closed = False
        self._say = say
        self._fed: OrderedDict[int, None] = OrderedDict()
        self._ended = asyncio.Event()
        self._opening = TaskScope()
        self._backlog: deque[Frame] | None = deque()  # until it is set up
        self._line = Pipeline(
            [service],
            source=PipelineSource(self._pushed, name=f"{service}::Source"),
            sink=PipelineSink(self._pushed, name=f"{service}::Sink"),
        )

    def open(self, setup: FrameProcessorSetup) -> None:
        """Set it up beside the call: its handshake may take long, or hang."""
        mine = copy.copy(setup)
        mine.observer = None  # it would see the caller twice
        self.is_closed, self._backlog = False, deque()  # it may have served a pipeline before
        self._ended.clear()
        self._opening.start(self._open(mine), name=f"opens {self.service}")

    async def _open(self, setup: FrameProcessorSetup) -> None:
        try:
            await self._line.setup(setup)
        except Exception as e:
            error = ErrorFrame(f"set-up failed: {e}", exception=e, processor=self.service)
            await self._say(error, FrameDirection.UPSTREAM)
            return
        while self._backlog:
            await self._feed(self._backlog.popleft())
        self._backlog = None

    async def feed(self, frame: Frame) -> None:
        if self._backlog is None:
            await self._feed(frame)
        elif len(self._backlog) < MOST_FED:
            self._backlog.append(frame)

    async def _feed(self, frame: Frame) -> None:
        if not isinstance(frame, (STTMuteFrame, STTUpdateSettingsFrame)):  # they are not forwarded
            self._fed[frame.id] = None
            if len(self._fed) > MOST_FED:
                self._fed.popitem(last=False)
        await self._line.queue_frame(frame, FrameDirection.DOWNSTREAM)

    async def end(self, frame: Frame) -> None:
        """End it, and wait for its last transcripts."""
        if self._backlog is not None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(END_SECS):
                await self.feed(frame)
                await self._ended.wait()

    async def close(self) -> None:
        """Release its resources, whatever it is at."""
        self.is_closed = True
        await self._opening.close()
        if not self._ended.is_set():  # some services end their tasks only so
            await self.service.cancel(CancelFrame())
        await self._line.cleanup()

    async def _pushed(self, frame: Frame, direction: FrameDirection) -> None:
        if frame.id not in self._fed:
            if not self.is_closed:
                await self._say(frame, direction)
            return
        del self._fed[frame.id]
        if isinstance(frame, (EndFrame, CancelFrame)):
            self._ended.set()


class _Host(FrameProcessor):
    """Feeds both recognisers, and says what ``TranscriptRescue`` decides."""

    def __init__(
        self,
        primary: STTService,
        create: Callable[[], STTService] | None,
        rescue: STTService,
        budget: float,
        stats: ProviderStats | None,
        usable_changed: Callable[..., Any],
    ):
        super().__init__(name=f"Hedged{primary.name}")
        self._create, self._given, self._budget = create, stats, budget
        self._usable_changed = usable_changed
        self._primary = _Member(primary, self._primary_said)
        self._rescue = _Member(rescue, self._rescue_said)
        for service in (primary, rescue):
            service.add_event_handler("on_usable_changed", usable_changed)
        self._backend = Backend(name_of(primary.name), model_of(primary), measures=KIND)
        spare = f"{name_of(rescue.name)} (rescue)"
        self._spare = Backend(spare, model_of(rescue), measures=KIND)
        self._requests = RescueRequests(rescue, self._spare)
        self._held: list[TranscriptionFrame] = []
        self._accounts = BudgetAccounts()
        self._transcripts = TranscriptRescue()
        self._audio: deque[InputAudioRawFrame] = deque()
        self._spoken: tuple[InputAudioRawFrame, ...] = ()
        self._audio_secs, self._before_secs = 0.0, BEFORE_SECS
        self._is_speaking = self._is_muted = False
        self._unmuted = asyncio.Event()  # by the turns' mute strategies, which drop transcripts
        self._unmuted.set()
        self._was_unmuted = True  # at some moment of the utterance
        self._has_interims = self._was_replaced = False
        self._silences = 0
        self._dropped: TranscriptionFrame | None = None
        self._started: list[Frame] = []  # what a fresh primary is to know: start, settings, mute
        self._say_at = 0.0
        self._saying: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None
        self._deadline, self._holding, self._closing = TaskScope(), TaskScope(), TaskScope()

    @property
    def primary(self) -> STTService:
        return self._primary.service

    @property
    def rescue(self) -> STTService:
        return self._rescue.service

    @property
    def is_usable(self) -> bool:
        return self.primary.is_usable or self.rescue.is_usable

    def outcome(self) -> tuple[bool, int, bool]:
        """See ``TranscriptTiming.report_rescues``."""
        transcripts, was_replaced = self._transcripts, self._was_replaced
        self._was_replaced = False
        return transcripts.is_asked, transcripts.dropped, was_replaced

    # ---- life cycle

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        llm = next((p for p in downstream_of(self) if isinstance(p, HedgedLLMService)), None)
        self._transcripts, self._is_speaking = TranscriptRescue(), False
        self._stats = self._given or (llm.stats if llm else shared_stats())
        self._primary.open(setup)
        self._rescue.open(setup)
        self._requests.open(self._stats)

    async def cleanup(self) -> None:
        await self._deadline.close()
        await self._holding.close()
        self._requests.close()
        for ended_at in self._transcripts.take_lost():
            self._learn(ended_at, censored=True)
        await self._closing.join()
        await asyncio.gather(self._primary.close(), self._rescue.close())
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, (EndFrame, CancelFrame)):
            await self._deadline.close()
            await asyncio.gather(self._primary.end(frame), self._rescue.end(frame))
            await self._say_held()
            await self.push_frame(frame, direction)
            return
        if isinstance(frame, StartFrame):
            self._started = [frame, *(f for f in self._started if not isinstance(f, StartFrame))]
            await self.push_frame(frame, direction)  # a handshake holds up nothing
            await self._rescue.feed(frame)
        elif isinstance(frame, InputAudioRawFrame):
            self._keep(frame)
            await self._watch()
        elif isinstance(frame, VADUserStartedSpeakingFrame):
            await self.push_frame(frame, direction)  # the utterance before is reported
            await self._speech_started(frame)
        elif isinstance(frame, STTMuteFrame):
            if not self._is_speaking and not self._is_pending:
                self._trim(0.0)
            self._is_muted = frame.mute
            self._started.append(frame)
            self._was_unmuted = self._was_unmuted or (self._is_speaking and self._is_listened_to)
        elif isinstance(frame, UserMuteStartedFrame):
            self._unmuted.clear()
        elif isinstance(frame, UserMuteStoppedFrame):
            self._unmuted.set()
            self._transcripts.unmute()
            self._was_unmuted = self._was_unmuted or (self._is_speaking and self._is_listened_to)
            if self._held and self._held[-1].finalized:
                await self._say_held()
        elif isinstance(frame, STTUpdateSettingsFrame):
            await self._update(frame, direction)
            return
        elif isinstance(frame, LLMContextAssistantTurnFrame):
            await self._rescue.feed(frame)  # some recognise more with what was said before
        await self._primary.feed(frame)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            await self._speech_stopped(frame)
        if not isinstance(frame, _NOT_FORWARDED):
            await self.push_frame(frame, direction)

    def processors_with_metrics(self) -> list[FrameProcessor]:
        services = (self._primary.service, self._rescue.service)
        return [service for service in services if service.can_generate_metrics()]

    async def _update(self, frame: STTUpdateSettingsFrame, direction: FrameDirection) -> None:
        """Settings without a service are the primary's; their language is the rescue's, too."""
        rescue = self._rescue.service
        if frame.service not in (None, self.primary, rescue):
            await self.push_frame(frame, direction)
            return
        if frame.service is rescue:
            await self._rescue.feed(frame)
            return
        language = (frame.delta or STTSettings.from_mapping(frame.settings)).language
        if frame.service is None and is_given(language):
            delta = STTSettings(language=language)
            await self._rescue.feed(STTUpdateSettingsFrame(delta=delta))
        self._started.append(replace(frame, service=None))
        await self._primary.feed(frame)

    # ---- the caller

    def _keep(self, frame: InputAudioRawFrame) -> None:
        if self._is_muted:
            return
        self._audio.append(frame)
        self._audio_secs += _secs(frame)
        is_kept = self._is_speaking or self._is_pending
        self._trim(MOST_SECS if is_kept else self._before_secs)

    def _trim(self, most_secs: float) -> None:
        while self._audio and self._audio_secs > most_secs:
            self._audio_secs -= _secs(self._audio.popleft())

    async def _speech_started(self, frame: VADUserStartedSpeakingFrame) -> None:
        first, first_spoken = next(iter(self._audio), None), next(iter(self._spoken), None)
        goes_on = self._is_pending and first is first_spoken  # the rescue would hear both
        if not goes_on:
            self._trim(self._before_secs)
        await self._deadline.close()
        await self._say_held()
        if not self._transcripts.is_asked or self._transcripts.is_rescued:  # else it may answer yet
            await self._give_back(goes_on=goes_on)
        self._before_secs = BEFORE_SECS + frame.start_secs
        self._is_speaking, self._was_unmuted = True, self._is_listened_to
        was_rescued = self._transcripts.is_rescued
        before = self._transcripts.start(_now(), self._before_secs, goes_on=goes_on)
        if before is not None and not was_rescued and not self._is_turn_based:
            self._learn_secs(before.transcript_secs)
        if self._transcripts.ahead and self._dropped is not None:
            self._dropped.text, self._dropped.finalized = self._transcripts.ahead, False
            await self.push_frame(self._dropped)

    async def _speech_stopped(self, frame: VADUserStoppedSpeakingFrame) -> None:
        if not self._is_speaking:  # it was switched to in mid-speech
            return
        self._is_speaking, self._spoken = False, tuple(self._audio)
        now = _now()
        self._accounts.begin_turn(self._budget, now)
        self._transcripts.stop(now, frame.stop_secs, self._deadline_secs())
        if not self._is_muted and not self._is_turn_based:
            self._wait()

    @property
    def _is_listened_to(self) -> bool:
        return not self._is_muted and self._unmuted.is_set()

    @property
    def _is_pending(self) -> bool:
        """Whether the rescue may yet be asked for what the caller has said."""
        is_waiting = self._waiting is not None and not self._waiting.done()
        return is_waiting and self._transcripts.is_missing and not self._transcripts.is_asked

    @property
    def _is_turn_based(self) -> bool:
        return not self.primary.supports_ttfs

    def _deadline_secs(self) -> float:
        """When the rescue is worth its price, in seconds from the end of speech."""
        backends = self._backend, self._spare
        estimates = self._stats.estimates(backends, None, by_sentence=False)
        first, second = (backend.provider for backend in backends)
        shares = {second: self._accounts.share(self._budget, 1.0)}
        rule = PricedDelay(estimates, shares, benefits=self._accounts.benefits)
        waiting = Waiting(0.0, (InFlight(first, 0.0, None),), second)
        at = rule.next_launch(waiting).at
        return SILENCE_SECS if at is None else min(at + GRACE_SECS, SILENCE_SECS)

    def _wait(self) -> None:
        if not self._was_unmuted:
            return
        name = f"{self}: waits for transcripts"
        self._waiting = self._deadline.start(self._wait_for_deadline(), name=name)

    async def _wait_for_deadline(self) -> None:
        transcripts = self._transcripts
        while (due_at := transcripts.due_at) is not None:
            if (now := _now()) < due_at:
                await asyncio.sleep(due_at - now)
            elif not self._unmuted.is_set():
                await self._unmuted.wait()
            elif not transcripts.is_missing:
                return  # until a late interim transcript
            elif await self._ask(now):
                await asyncio.sleep(SILENCE_SECS)
                await self._give_back()
            else:
                await self._give_back()
                return

    async def _ask(self, now: float) -> bool:
        """Ask the rescue for the utterance; returns whether it was asked."""
        transcripts = self._transcripts
        utterance = transcripts.utterance
        ended_at = now if utterance is None or utterance.ended_at is None else utterance.ended_at
        is_free = transcripts.is_silent and self._silences > 0
        is_free = is_free or now - ended_at >= SILENCE_SECS
        if not self._requests.is_eligible(now):
            return False
        if not is_free and not self._accounts.claim(self._budget, 1.0, now):
            await asyncio.sleep(ended_at + SILENCE_SECS - now)
            if not transcripts.is_missing:
                return False
        if not self._requests.begin(_now()):
            return False
        transcripts.ask(_now())
        await self._rescue.feed(VADUserStartedSpeakingFrame())
        for frame in self._spoken:
            await self._rescue.feed(frame)
        await self._rescue.feed(VADUserStoppedSpeakingFrame())
        if self._spoken and not isinstance(self._rescue.service, SegmentedSTTService):
            last = self._spoken[-1]
            for _ in range(math.ceil(AFTER_SECS / _secs(last))):
                await self._rescue.feed(replace(last, audio=bytes(len(last.audio))))
        return True

    # ---- what recognisers say

    async def _primary_said(self, frame: Frame, direction: FrameDirection) -> None:
        now, transcripts = _now(), self._transcripts
        if isinstance(frame, InterimTranscriptionFrame):
            self._has_interims = True
            text = transcripts.take_interim(frame.text, now)
        elif isinstance(frame, TranscriptionFrame):
            text, ended_at = transcripts.take_final(frame.text, now)
            self._dropped = None if text else frame
            if ended_at is not None:
                self._learn_secs(now - ended_at)
        else:
            await self.push_frame(frame, direction)
            return
        self._silences = 0
        if transcripts.is_missing and (self._waiting is None or self._waiting.done()):
            self._wait()
        if text.strip() or not frame.text.strip():
            frame.text = text or frame.text
            await self.push_frame(frame, direction)

    async def _rescue_said(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, ErrorFrame):
            logger.warning(f"{self}: the rescue {self._rescue.service} failed")
            logger.debug(f"{self}: {frame.error}")
            if self._requests.failed(frame):
                await self._give_back()
            if not self.is_usable:
                await self.push_frame(frame, direction)
        elif isinstance(frame, (TranscriptionFrame, InterimTranscriptionFrame)):
            if isinstance(frame, TranscriptionFrame) and frame.text.strip():
                self._held.append(frame)
                if not self._unmuted.is_set():
                    self._learn_answer()  # not how long it is held
            if self._held and self._held[-1].finalized and self._unmuted.is_set():
                await self._say_held()
            elif self._held:
                self._say_at = _now() + HOLD_SECS * (not self._held[-1].finalized)
                if self._saying is None or self._saying.done():
                    name = f"{self}: waits for the rest"
                    self._saying = self._holding.start(self._say_held_later(), name=name)
        elif not isinstance(frame, STTMetadataFrame):
            await self.push_frame(frame, direction)

    async def _say_held_later(self) -> None:
        while self._held:
            if not self._unmuted.is_set():
                await self._unmuted.wait()
            elif (secs := self._say_at - _now()) > 0:
                await asyncio.sleep(secs)
            else:
                await self._say_held()

    async def _say_held(self) -> None:
        """Say what the rescue has heard: all of it, so that no turn ends in between."""
        if not self._held or not self._unmuted.is_set():
            return
        held, self._held = self._held, []
        frame, is_silent = held[-1], self._transcripts.is_silent
        self._learn_answer()
        text = " ".join(each.text.strip() for each in held)
        frame.text = self._transcripts.take_rescue(text, _now())
        if frame.text:
            frame.finalized = True
            await self.push_frame(frame)
            if is_silent:
                await self._primary_was_silent()

    async def _give_back(self, *, goes_on: bool = False) -> None:
        """Say what was dropped in doubt: the rescue has not answered."""
        text = self._transcripts.give_back(_now(), goes_on=goes_on)
        if text and self._dropped is not None:
            self._dropped.text = text
            await self.push_frame(self._dropped)

    def _learn_answer(self) -> None:
        if (secs := self._requests.answered()) is not None:
            self._stats.record_wait(self._spare, secs, None)

    def _learn_secs(self, secs: float | None) -> None:
        if secs is not None and secs >= 0:
            self._stats.record_wait(self._backend, secs, None)

    def _learn(self, ended_at: float, *, censored: bool) -> None:
        self._stats.record_wait(self._backend, _now() - ended_at, None, censored=censored)

    # ---- a stuck primary

    async def _watch(self) -> None:
        """Replace a primary that has sent nothing for long, although the caller speaks."""
        can_replace = self._create is not None and self._has_interims
        if can_replace and self._transcripts.is_stuck(_now()):
            await self._replace(tuple(self._audio)[:-1], repeats=True)

    async def _primary_was_silent(self) -> None:
        """The rescue has heard words of which the primary has said nothing."""
        self._silences += 1
        answered = {frame.id for frame in self._spoken}
        await self._replace(tuple(frame for frame in self._audio if frame.id not in answered))

    async def _replace(
        self, audio: tuple[InputAudioRawFrame, ...], *, repeats: bool = False
    ) -> None:
        if self._create is None or not self._started:
            return
        try:
            fresh = self._create()
        except Exception as e:
            logger.error(f"{self}: a fresh recogniser cannot be created")
            logger.debug(f"{self}: {e}")
            self._create = None
            return
        if repeats:
            self._transcripts.repeat()
        fresh.add_event_handler("on_usable_changed", self._usable_changed)
        stuck, self._primary = self._primary, _Member(fresh, self._primary_said)
        logger.warning(f"{self}: {stuck.service} says nothing, a fresh one takes its place")
        stuck.is_closed, self._was_replaced, self._has_interims = True, True, False
        self._primary.open(self.processor_setup)
        for frame in self._started:
            await self._primary.feed(frame)
        if self._is_speaking:
            await self._primary.feed(VADUserStartedSpeakingFrame())
        for frame in audio:
            await self._primary.feed(frame)
        self._closing.start(stuck.close(), name=f"{self}: closes a stuck recogniser")


def _secs(frame: InputAudioRawFrame) -> float:
    return frame.num_frames / frame.sample_rate


def _now() -> float:
    return asyncio.get_running_loop().time()
