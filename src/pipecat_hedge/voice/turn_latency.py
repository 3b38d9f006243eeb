"""Measures where the time of each turn went, as the caller experienced it: one record per turn.

Pipecat's ``UserBotLatencyObserver`` measures from the caller's silence to the bot's first sound. A
filler ends that measurement too early, and without a local VAD there is none. This observer wraps
it, copies its breakdown, and separates the first sound from the first answer.

Times are those at which frames were pushed, on the pipeline's clock.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from pipecat.frames.frames import (
    AggregatedTextFrame,
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    OutputAudioRawFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FrameProcessed, FramePushed
from pipecat.observers.user_bot_latency_observer import LatencyBreakdown, UserBotLatencyObserver
from pipecat.processors.aggregators.llm_response_universal import LLMAssistantAggregator
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport

from pipecat_hedge.policy.arguments import require_known
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.line_log import LineLog
from pipecat_hedge.service.metrics import HedgeMetricsData
from pipecat_hedge.voice.answer_audio import AnswerAudio
from pipecat_hedge.voice.caller_turn import CallerTurn
from pipecat_hedge.voice.turn_timeline import Timeline


class TurnLatencyObserver(BaseObserver):
    """Emits a ``TurnLatency`` for each turn.

    A turn is complete when its answer has started to play and its race is reported; or else when
    the bot falls silent, the LLM is called anew, the caller speaks, or the call ends. With tool
    calls the answer after them counts. A race that the caller interrupted reports a moment later,
    and the turn is emitted then.

    Event handlers available:

    - on_turn_latency: Called with each ``TurnLatency``.

    Example::

        latency = TurnLatencyObserver(log="latency.jsonl")
        worker = PipelineWorker(
            pipeline, params=PipelineParams(enable_metrics=True), observers=[latency]
        )

        @latency.event_handler("on_turn_latency")
        async def on_turn_latency(observer, turn):
            print(turn.voice_to_voice_secs, turn.first_sound_secs)
    """

    def __init__(self, *, log: str | Path | None = None, **kwargs: Any):
        """Begin with the first turn.

        Args:
            log: A file to which every ``TurnLatency`` is appended as a JSON line. It contains times
                and counts, no conversation text.
            **kwargs: Further arguments of ``BaseObserver``.

        Raises:
            ConfigurationError: If the file's folder does not exist, or an argument is unknown.
        """
        require_known(kwargs, owner=TurnLatencyObserver, base=BaseObserver)
        super().__init__(**kwargs)
        self._log = LineLog("log", log)
        self._pipecat_observer = _Breakdowns()
        self._now = 0.0
        self._timeline = Timeline(1)
        self._interrupted: Timeline | None = None
        self._caller = CallerTurn()
        self._audio = AnswerAudio()
        self._context: tuple[float, LLMContextFrame] | None = None
        self._early: TurnReport | None = None
        self._bot_speaks = False
        self._hedged: HedgedLLMService | None = None
        self._register_event_handler("on_turn_latency")

    async def on_process_frame(self, data: FrameProcessed) -> None:
        """Track frames that reach a TTS."""
        if isinstance(data.processor, TTSService) and data.direction is FrameDirection.DOWNSTREAM:
            self._audio.frame_queued(data.frame)

    async def on_push_frame(self, data: FramePushed) -> None:
        """Record the moments of the turn."""
        if data.first_push:
            await self._pipecat_observer.on_push_frame(data)
        self._now = data.timestamp / 1e9
        if isinstance(data.frame, LLMContextFrame) and data.first_push:
            self._context_pushed(data.frame, data)
        if data.direction is not FrameDirection.DOWNSTREAM:
            return
        if isinstance(data.source, TTSService):
            self._audio.frame_pushed(data.frame, data.source)
        if isinstance(data.source, BaseOutputTransport):
            self._output_pushed(data.frame)
        if data.first_push:
            await self._frame_pushed(data.frame, data.source)
        if self._timeline.is_over(bot_speaks=self._bot_speaks):
            await self._close()

    async def on_pipeline_started(self) -> None:
        """Forward the event to Pipecat's observer."""
        await self._pipecat_observer.on_pipeline_started()

    # ---- moments

    def _context_pushed(self, frame: LLMContextFrame, data: FramePushed) -> None:
        """Record an LLM call, from either side of the LLM."""
        is_downstream = data.direction is FrameDirection.DOWNSTREAM
        if is_downstream and isinstance(data.source, LLMAssistantAggregator):
            return  # downstream of the LLM it announces the answer and requests nothing
        self._context, self._early = (self._now, frame), None

    def _output_pushed(self, frame: Frame) -> None:
        """Record what the output transport plays."""
        timeline = self._timeline
        if not timeline.is_begun:  # the bot's own line
            return
        if isinstance(frame, TTSStartedFrame):
            timeline.is_answering = self._audio.turn_of(frame.context_id) == timeline.turn
        elif isinstance(frame, (TTSAudioRawFrame, BotStartedSpeakingFrame)):
            if timeline.is_answering:
                timeline.mark("first_answer", self._now)
                timeline.mark("first_sound", self._now)
        elif isinstance(frame, TTSStoppedFrame):
            is_line = "first_answer" not in timeline.moments and not timeline.is_answering
            if is_line and "first_sound" in timeline.moments:
                timeline.moments["filler_end"] = self._now
        elif type(frame) is OutputAudioRawFrame:  # not speech, such as an earcon
            timeline.mark("first_sound", self._now)

    async def _frame_pushed(self, frame: Frame, source: FrameProcessor) -> None:
        timeline, now = self._timeline, self._now
        if isinstance(frame, LLMTextFrame):
            if frame.text.strip() and not frame.skip_tts:
                timeline.has_text = True
                timeline.mark("first_token", now)
        elif isinstance(frame, TTSAudioRawFrame):
            if self._audio.turn_of(frame.context_id) == timeline.turn:
                timeline.mark("first_tts_audio", now)
        elif isinstance(frame, AggregatedTextFrame):
            if "first_token" in timeline.moments and not self._audio.is_line(frame.context_id):
                timeline.mark("first_sentence", now)
        elif isinstance(frame, TTSStartedFrame):
            self._audio.audio_started(frame, source, timeline.turn)
        elif isinstance(frame, BotStartedSpeakingFrame):
            self._bot_speaks = True
            breakdown, self._pipecat_observer.latest = self._pipecat_observer.latest, None
            if timeline.is_begun:
                timeline.mark("first_sound", now)
                timeline.take_breakdown(breakdown)
        elif isinstance(frame, BotStoppedSpeakingFrame):
            self._bot_speaks = False
        elif isinstance(frame, MetricsFrame):
            for metric in frame.data:
                if isinstance(metric, HedgeMetricsData):
                    await self._race_reported(metric.report)
        elif isinstance(frame, LLMFullResponseStartFrame):
            await self._response_started(frame, source)
        elif isinstance(frame, LLMFullResponseEndFrame):
            timeline.is_responding = False
        else:
            await self._turn_frame_pushed(frame)

    async def _response_started(
        self, frame: LLMFullResponseStartFrame, source: FrameProcessor
    ) -> None:
        """Begin or continue a turn: the caller's, its tools' results, or the bot's own."""
        pushed, self._context = self._context, None
        await self._publish_interrupted()
        if self._timeline.is_answered:
            await self._close()
        timeline = self._timeline
        at, context = pushed or (None, None)
        provisional = context is not None and context.speculation
        if not timeline.is_begun:
            timeline.mark("context", self._now if at is None else at)
            turn = self._caller.llm_started(self._now, at, provisional=provisional)
            timeline.is_reply = turn is not None
            timeline.silence, turn_end = turn or (None, None)
            if turn_end is not None:
                timeline.mark("turn_end", turn_end)
            transcribed, silence = self._caller.transcribed_at, timeline.silence
            if transcribed is not None and silence is not None and transcribed >= silence:
                timeline.mark("transcript", transcribed)
        timeline.tools.take(frame)
        timeline.had_text = timeline.has_text
        timeline.is_responding = True
        self._hedged = source if isinstance(source, HedgedLLMService) else None
        timeline.is_racing = self._hedged is not None and self._hedged.metrics_enabled
        timeline.may_wait = self._hedged is not None and self._hedged.may_wait
        timeline.requested = self._now
        if provisional and at is not None:  # its start was held back until the turn had ended
            timeline.requested = at
            if self._early is not None:
                timeline.take_report(self._early)
        self._early = None
        self._audio.response_started(frame, timeline.turn)

    async def _race_reported(self, report: TurnReport) -> None:
        """Assign a report to its turn, or keep it if the turn has not started yet."""
        timeline = self._interrupted or self._timeline
        if timeline.is_racing:
            timeline.take_report(report)
        elif report.outcome not in ("interrupted", "withdrawn"):
            self._early = report
        await self._publish_interrupted()

    async def _turn_frame_pushed(self, frame: Frame) -> None:
        timeline = self._timeline
        timeline.tools.take(frame)
        if isinstance(frame, UserStoppedSpeakingFrame) and timeline.is_reply:
            timeline.moments["turn_end"] = self._now  # the LLM was called before the turn's end
            return
        if isinstance(frame, UserStartedSpeakingFrame):
            await self._close(interrupted=timeline.is_under_way(bot_speaks=self._bot_speaks))
        elif isinstance(frame, InterruptionFrame):
            self._audio.interrupted()
            await self._close(interrupted=True)
        elif isinstance(frame, (EndFrame, CancelFrame)):
            await self._publish_interrupted()
            await self._close()
        self._caller.take(frame, self._now)

    # ---- the record

    async def _close(self, *, interrupted: bool = False) -> None:
        """End the turn, if the LLM was called in it, and begin the next one."""
        timeline = self._timeline
        if not timeline.is_begun:  # the caller speaks, but the LLM was not called yet
            return
        await self._publish_interrupted()
        self._timeline, self._context = Timeline(timeline.turn + 1), None
        if interrupted and timeline.is_racing:
            self._interrupted = timeline
        else:
            await self._publish(timeline, interrupted=interrupted)

    async def _publish_interrupted(self) -> None:
        timeline, self._interrupted = self._interrupted, None
        if timeline is not None:
            await self._publish(timeline, interrupted=True)

    async def _publish(self, timeline: Timeline, *, interrupted: bool) -> None:
        turn = timeline.to_record(self._now, interrupted=interrupted)
        if turn is None:
            return
        if self._hedged is not None:
            self._hedged.events.publish(turn)
        if self._log:
            self._log.append(json.dumps(dataclasses.asdict(turn)))
        await self._call_event_handler("on_turn_latency", turn)


class _Breakdowns(UserBotLatencyObserver):
    """Keeps the latest breakdown available while the frame that ends it is being observed.

    The event of the base class runs in a task, after the turn has been emitted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latest: LatencyBreakdown | None = None

    async def _call_event_handler(self, event_name: str, *args: Any, **kwargs: Any) -> None:
        if event_name == "on_latency_breakdown":
            self.latest = args[0]
        await super()._call_event_handler(event_name, *args, **kwargs)
