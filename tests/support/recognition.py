"""A scripted recogniser, and a caller who speaks to it, in the loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeAlias
from unittest.mock import patch

from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer, BaseTurnParams, EndOfTurnState
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService, STTService
from pipecat.turns.user_start import VADUserTurnStartStrategy
from pipecat.turns.user_stop import (
    BaseUserTurnStopStrategy,
    TurnAnalyzerUserTurnStopStrategy,
    turn_analyzer_user_turn_stop_strategy,
)
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import TranscriptTiming, TurnReport
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.voice import TurnLatency
from tests.support.call import PhoneCall

Said: TypeAlias = tuple[float, str]
"""A transcript: seconds after the VAD has noticed the end of speech, and its text. A text that
begins with "…" is an interim one."""

STOP_SECS = 0.2
CONSTANT_SECS = 1.9


class ScriptedSTT(STTService):
    """Says what a script says of each utterance.

    Attributes:
        script: Returns the transcripts of the utterance of a number, from 0.
        marks: Whether transcripts are marked as final.
    """

    def __init__(
        self,
        script: Callable[[int], Sequence[Said]],
        *,
        marks: bool = False,
        model: str = "scripted-1",
        constant_secs: float = CONSTANT_SECS,
        **kwargs: Any,
    ):
        settings = STTSettings(model=model, language=None)
        super().__init__(settings=settings, ttfs_p99_latency=constant_secs, **kwargs)
        self.script, self.marks = script, marks
        self._number = 0

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        yield None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            script, self._number = self.script(self._number), self._number + 1
            self.create_task(self._speak(script), "says what the script says")

    async def _speak(self, script: Sequence[Said]) -> None:
        began = asyncio.get_running_loop().time()
        for after_secs, text in script:
            await asyncio.sleep(began + after_secs - asyncio.get_running_loop().time())
            who = self._user_id or "caller"
            if text.startswith("…"):
                await self.push_frame(InterimTranscriptionFrame(text[1:], who, "now"))
            else:
                final = TranscriptionFrame(text, who, "now", finalized=self.marks)
                await self.push_frame(final)


class ScriptedRescue(SegmentedSTTService):
    """Transcribes each segment as a function says, from its audio in seconds.

    Attributes:
        heard: The length of each segment, in seconds.
    """

    def __init__(self, text: Callable[[int], str], *, secs: float = 0.3):
        super().__init__(
            settings=STTSettings(model="scripted-rescue", language=None),
            ttfs_p99_latency=1.0,
        )
        self.text, self.secs = text, secs
        self.heard: list[float] = []

    @property
    def wants_wav_segments(self) -> bool:
        return False

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self.heard.append(len(audio) / 2 / self.sample_rate - self._trailing_silence_secs)
        await asyncio.sleep(self.secs)
        if text := self.text(len(self.heard) - 1):
            yield TranscriptionFrame(text, self._user_id or "caller", "now")


class Complete(BaseTurnAnalyzer):
    """Finds every turn complete."""

    def append_audio(self, buffer: bytes, is_speech: bool) -> EndOfTurnState:
        return EndOfTurnState.INCOMPLETE

    async def analyze_end_of_turn(self) -> tuple[EndOfTurnState, MetricsData | None]:
        return EndOfTurnState.COMPLETE, None

    @property
    def speech_triggered(self) -> bool:
        return False

    @property
    def params(self) -> BaseTurnParams:
        return BaseTurnParams()

    def clear(self) -> None:
        pass


def spoken(secs: float = 1.0, audio: InputAudioRawFrame | None = None) -> list[Any]:
    """The caller speaks so long, as the VAD sees it; with audio, from a second before on."""
    if audio is None:
        return [VADUserStartedSpeakingFrame, secs + STOP_SECS, stopped]
    step = audio.num_frames / audio.sample_rate

    def chunk() -> Frame:
        return InputAudioRawFrame(audio.audio, audio.sample_rate, audio.num_channels)

    before = [each for _ in range(round(1.0 / step)) for each in (chunk, step)]
    during = [each for _ in range(round((secs + STOP_SECS) / step)) for each in (chunk, step)]
    return [*before, VADUserStartedSpeakingFrame, *during, stopped]


def analyzed() -> BaseUserTurnStopStrategy:
    return TurnAnalyzerUserTurnStopStrategy(turn_analyzer=Complete())


def stopped() -> Frame:
    """The VAD has noticed the end of speech."""
    return VADUserStoppedSpeakingFrame(stop_secs=STOP_SECS, timestamp=_loop_time())


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


class Heard:
    """What became of a call: when each turn began and what was in it."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.contexts: list[str] = []
        self.announced: list[float] = []
        self.reports: list[TurnReport] = []
        self.turns: list[TurnLatency] = []


async def call(
    script: Callable[[int], Sequence[Said]],
    *,
    timing: TranscriptTiming | None,
    utterances: int = 60,
    stop: Callable[[], BaseUserTurnStopStrategy] = analyzed,
    marks: bool = False,
    pause_secs: Callable[[int], float] = lambda _: 12.0,
    stt: Any = None,
    llm: LLMService[Any] | None = None,
    first: Sequence[Frame] = (),
    then: Mapping[int, Frame] = MappingProxyType({}),
    audio: InputAudioRawFrame | None = None,
    strategies: UserTurnStrategies | None = None,
    speaks_secs: float = 1.0,
) -> Heard:
    """Speak so many times; the caller's pauses follow ``pause_secs``.

    ``then`` has what comes before the utterance of a number, ``strategies`` other ones.
    """
    stt = stt or ScriptedSTT(script, marks=marks, constant_secs=CONSTANT_SECS)
    llm = llm or ScriptedLLMService([Wait(0.1), Say("Yes.")])
    if strategies is None:
        strategies = UserTurnStrategies(start=[VADUserTurnStartStrategy()], stop=[stop()])
    before = [stt, *([timing] if timing else [])]
    heard = Heard()
    clock = SimpleNamespace(time=_loop_time)  # Pipecat's strategy reads the wall clock
    strategy = patch.object(turn_analyzer_user_turn_stop_strategy, "time", clock)
    with strategy:
        async with PhoneCall(llm, strategies=strategies, before=before) as phone:
            await phone.play(*first)
            for number in range(utterances):
                if number in then:
                    await phone.play(then[number])
                await phone.play(*spoken(speaks_secs, audio), pause_secs(number))
            await phone.play(12.0)
            heard.reports, heard.turns = phone.line.reports, phone.turns
            waits = [turn.context_secs for turn in phone.turns]
            heard.waits = [round(secs, 3) for secs in waits if secs is not None]
            heard.contexts = [m["content"] for m in phone.messages if m["role"] == "user"]
            heard.announced = [
                frame.ttfs_p99_latency
                for _, frame in phone.line.heard
                if isinstance(frame, STTMetadataFrame)
            ]
    return heard
