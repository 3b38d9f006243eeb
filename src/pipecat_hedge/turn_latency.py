"""Where the time of a turn went, as the caller lived it: an observer, one record a turn.

Pipecat's own observer measures from the caller's silence to the bot's first sound. Two things are
missing where answers are raced and silences filled: a filler is a sound and no answer, so it ends
that measurement too early; and without a local voice activity detector there is no measurement at
all. This one stands on it, takes over its breakdown, and tells first sound from first answer.

Times are those at which frames were pushed, on the pipeline's clock, not those at which an observer
got round to them.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pipecat.frames.frames import (
    AggregatedTextFrame,
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
    OutputAudioRawFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.observers.user_bot_latency_observer import LatencyBreakdown, UserBotLatencyObserver
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_output import BaseOutputTransport

from pipecat_hedge.line_log import LineLog
from pipecat_hedge.metrics import HedgeMetricsData
from pipecat_hedge.reports import TurnReport
from pipecat_hedge.service import HedgedLLMService

__all__ = ["TurnLatency", "TurnLatencyObserver"]

Anchor: TypeAlias = Literal["user_silence", "turn_end", "context"]


@dataclass(frozen=True, slots=True)
class TurnLatency:
    """One turn of a call, from the caller's silence to the bot's answer.

    Times are seconds from the anchor; None where it did not happen.

    Parameters:
        turn: The turn's number in this call, from 1.
        at: When the anchor was, in seconds since the epoch.
        anchor: What is counted from: ``user_silence`` (the last sound of the caller), ``turn_end``
            (the end of the turn, where there is no local voice activity detector), or ``context``
            (nobody spoke, as before a greeting).
        turn_end_secs: The caller's turn was over.
        context_secs: The conversation was handed to the LLM.
        first_token_secs: Its first usable token was there.
        first_sentence_secs: Its first speakable sentence was there.
        first_tts_audio_secs: The first audio of the answer was synthesized.
        first_sound_secs: The bot was first heard, be it with a filler.
        filler_end_secs: The filler had been heard out, if there was a spoken one.
        first_answer_secs: The answer was first heard; from the caller's silence this is the
            voice-to-voice latency, less what the network takes.
        interrupted: Whether the caller spoke before it was complete.
        reports: What each race of the turn did; several if tools were called, none without a
            ``HedgedLLMService``.
        asked_secs: When each race of ``reports`` began: a race's own times count from there.
        contributions: What Pipecat's ``UserBotLatencyObserver`` names of the time to the first
            sound, in order: ``key``, ``label``, ``owner``, ``secs``.
    """

    turn: int
    at: float
    anchor: Anchor
    turn_end_secs: float | None = None
    context_secs: float | None = None
    first_token_secs: float | None = None
    first_sentence_secs: float | None = None
    first_tts_audio_secs: float | None = None
    first_sound_secs: float | None = None
    filler_end_secs: float | None = None
    first_answer_secs: float | None = None
    interrupted: bool = False
    reports: tuple[TurnReport, ...] = ()
    asked_secs: tuple[float, ...] = ()
    contributions: tuple[dict[str, Any], ...] = ()

    @property
    def voice_to_voice_secs(self) -> float | None:
        """From the caller's silence to the answer; None if it was not heard or nobody spoke."""
        return self.first_answer_secs if self.anchor == "user_silence" else None


class _Timeline:
    """The moments of the turn that is going on, on the pipeline's clock."""

    def __init__(self) -> None:
        self.silence: float | None = None
        self.turn_end: float | None = None
        self.context: float | None = None
        self.asked: float | None = None
        self.token: float | None = None
        self.sentence: float | None = None
        self.tts_audio: float | None = None
        self.sound: float | None = None
        self.filler_end: float | None = None
        self.answer: float | None = None
        self.is_answering = False
        self.is_racing = False
        self.reports: list[TurnReport] = []
        self.races: list[float] = []
        self.contributions: tuple[dict[str, Any], ...] = ()

    @property
    def anchor(self) -> tuple[Anchor, float] | None:
        if self.silence is not None:
            return "user_silence", self.silence
        if self.turn_end is not None:
            return "turn_end", self.turn_end
        return None if self.context is None else ("context", self.context)

    @property
    def is_complete(self) -> bool:
        """Whether the answer has been heard, and all that is to be reported of it has been."""
        last = self.reports[-1] if self.reports else None
        return (
            self.answer is not None and last is not None and last.outcome != "answered_with_tools"
        )

    def reported(self, report: TurnReport) -> None:
        """Take a race's own times, which are exact: text may have been kept back for a sentence."""
        if self.asked is None:
            return
        self.is_racing = False
        self.reports.append(report)
        self.races.append(self.asked)
        if report.ttft_secs is not None:
            self.token = self.asked + report.ttft_secs
            if report.ttfs_secs is not None:
                self.sentence = self.asked + report.ttfs_secs

    def summed_up(self, turn: int, now: float, *, interrupted: bool) -> TurnLatency | None:
        if (found := self.anchor) is None:
            return None
        anchor, began = found

        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - began

        return TurnLatency(
            turn=turn,
            at=time.time() - (now - began),
            anchor=anchor,
            turn_end_secs=since(self.turn_end),
            context_secs=since(self.context),
            first_token_secs=since(self.token),
            first_sentence_secs=since(self.sentence),
            first_tts_audio_secs=since(self.tts_audio),
            first_sound_secs=since(self.sound),
            filler_end_secs=since(self.filler_end),
            first_answer_secs=since(self.answer),
            interrupted=interrupted,
            reports=tuple(self.reports),
            asked_secs=tuple(asked - began for asked in self.races),
            contributions=self.contributions,
        )


class TurnLatencyObserver(BaseObserver):
    """Yields a ``TurnLatency`` for each turn.

    A turn is told of when its answer has been heard and its race reported, or else when the bot
    falls silent, the caller speaks, or the call ends. A race that the caller has cut off reports a
    moment later, and its turn is told of then.

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
            log: A file to which every ``TurnLatency`` is appended as a line of JSON. It holds times
                and counts, nothing that was said.
            **kwargs: Further arguments of ``BaseObserver``.

        Raises:
            ConfigurationError: If the file's folder does not exist.
        """
        super().__init__(**kwargs)
        self._log = LineLog("log", log)
        self._pipecats = UserBotLatencyObserver()
        self._pipecats.add_event_handler("on_latency_breakdown", self._break_down)
        self._turn = 0
        self._now = 0.0
        self._timeline = _Timeline()
        self._cut_off: _Timeline | None = None
        self._context: float | None = None
        self._silence: float | None = None
        self._answers: set[str | None] = set()
        self._register_event_handler("on_turn_latency")

    async def on_push_frame(self, data: FramePushed) -> None:
        """Note the moments of the turn.

        Args:
            data: The frame, who pushed it, and when.
        """
        if data.first_push:
            await self._pipecats.on_push_frame(data)
        if data.direction is not FrameDirection.DOWNSTREAM:
            return
        self._now = data.timestamp / 1e9
        if isinstance(data.source, BaseOutputTransport):
            self._comes_out(data.frame)
        if data.first_push:
            await self._happens(data.frame, data.source)
        if self._timeline.is_complete:
            await self._close()

    async def on_pipeline_started(self) -> None:
        """Hand it on to Pipecat's observer."""
        await self._pipecats.on_pipeline_started()

    # ---- moments

    def _comes_out(self, frame: Frame) -> None:
        """What the output transport lets through is heard now."""
        timeline = self._timeline
        if timeline.context is None:  # the bot speaks of its own accord
            return
        if isinstance(frame, TTSStartedFrame):
            timeline.is_answering = frame.append_to_context
        elif isinstance(frame, (TTSAudioRawFrame, BotStartedSpeakingFrame)):
            if timeline.is_answering and timeline.answer is None:
                timeline.answer = self._now
                timeline.sound = self._now if timeline.sound is None else timeline.sound
        elif isinstance(frame, TTSStoppedFrame):
            is_filler = timeline.answer is None and not timeline.is_answering
            if is_filler and timeline.sound is not None:
                timeline.filler_end = self._now
        elif type(frame) is OutputAudioRawFrame and timeline.sound is None:
            timeline.sound = self._now  # a sound that is no speech

    async def _happens(self, frame: Frame, source: FrameProcessor) -> None:
        timeline, now = self._timeline, self._now
        if isinstance(frame, LLMTextFrame):
            if timeline.token is None and frame.text.strip() and not frame.skip_tts:
                timeline.token = now
        elif isinstance(frame, TTSAudioRawFrame):
            if timeline.tts_audio is None and frame.context_id in self._answers:
                timeline.tts_audio = now
        elif isinstance(frame, AggregatedTextFrame):
            if timeline.token is not None and timeline.sentence is None:
                timeline.sentence = now
        elif isinstance(frame, TTSStartedFrame):
            if frame.append_to_context and timeline.context is not None:
                self._answers.add(frame.context_id)
        elif isinstance(frame, BotStartedSpeakingFrame):
            if timeline.context is not None and timeline.sound is None:
                timeline.sound = now
        elif isinstance(frame, MetricsFrame):
            for metric in frame.data:
                if isinstance(metric, HedgeMetricsData):
                    (self._cut_off or timeline).reported(metric.report)
                    await self._tell_cut_off()
        elif isinstance(frame, LLMFullResponseStartFrame):
            await self._tell_cut_off()
            if timeline.context is None:
                timeline.context = now if self._context is None else self._context
            timeline.asked = now
            timeline.is_racing = isinstance(source, HedgedLLMService) and source.metrics_enabled
        else:
            await self._turn_happens(frame)

    async def _turn_happens(self, frame: Frame) -> None:
        timeline, now = self._timeline, self._now
        if isinstance(frame, (VADUserStartedSpeakingFrame, VADUserStoppedSpeakingFrame)):
            has_stopped = isinstance(frame, VADUserStoppedSpeakingFrame)
            silence = now - frame.stop_secs if has_stopped else None
            if timeline.context is None:
                timeline.silence, self._silence = silence, None
            else:  # it may be a cough, or a turn that is found to have begun afterwards
                self._silence = silence
        elif isinstance(frame, UserStartedSpeakingFrame):
            has_failed = bool(timeline.reports) and timeline.reports[-1].outcome == "failed"
            await self._close(interrupted=not has_failed)
            if self._silence is not None:
                self._timeline.silence, self._silence = self._silence, None
        elif isinstance(frame, UserStoppedSpeakingFrame):
            timeline.turn_end = now
        elif isinstance(frame, LLMContextFrame):
            # Of the last one before the LLM begins: one that tells the answer, which Pipecat's
            # assistant aggregator sends behind it, asks for nothing.
            self._context = now
        elif isinstance(frame, InterruptionFrame):
            await self._close(interrupted=True)
        elif isinstance(frame, BotStoppedSpeakingFrame):
            if timeline.answer is not None:
                await self._close()
        elif isinstance(frame, (EndFrame, CancelFrame)):
            await self._tell_cut_off()
            await self._close()

    async def _break_down(self, _: UserBotLatencyObserver, breakdown: LatencyBreakdown) -> None:
        self._timeline.contributions = tuple(
            {"key": c.key, "label": c.label, "owner": c.owner, "secs": c.duration_secs}
            for c in breakdown.contributions
        )

    # ---- the record

    async def _close(self, *, interrupted: bool = False) -> None:
        """The turn is over, if there has been anything of it; the next begins."""
        timeline = self._timeline
        if timeline.context is None:  # the caller speaks, but nobody has been asked yet
            return
        await self._tell_cut_off()
        self._timeline, self._context = _Timeline(), None
        self._answers.clear()
        if interrupted and timeline.is_racing:
            self._cut_off = timeline
        else:
            await self._tell(timeline, interrupted=interrupted)

    async def _tell_cut_off(self) -> None:
        timeline, self._cut_off = self._cut_off, None
        if timeline is not None:
            await self._tell(timeline, interrupted=True)

    async def _tell(self, timeline: _Timeline, *, interrupted: bool) -> None:
        self._turn += 1
        turn = timeline.summed_up(self._turn, self._now, interrupted=interrupted)
        if turn is None:
            return
        if self._log:
            self._log.append(json.dumps(dataclasses.asdict(turn)))
        await self._call_event_handler("on_turn_latency", turn)
