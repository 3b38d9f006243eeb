"""A call for tests: a caller, an LLM, fillers, a voice and a loudspeaker, in the loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Self, TypeAlias, cast

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import (
    EagerTranscriptionFrame,
    Frame,
    FunctionCallResultProperties,
    LLMContextFrame,
    MetricsFrame,
    OutputAudioRawFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    StartFrame,
    TextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import FunctionCallParams, LLMService
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.turns.user_mute import BaseUserMuteStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from pipecat_hedge import FillerProcessor
from pipecat_hedge.voice.turn_latency import TurnLatencyObserver
from pipecat_hedge.voice.turn_timeline import TurnLatency
from tests.support.line import Line

RATE = 16000
CHUNK = 0.04  # what the output sends at once, in seconds

Event: TypeAlias = Frame | float | Callable[[], Frame]
"""A frame, what makes one, or a pause in seconds."""

VAD_ON, TURN_ON = VADUserStartedSpeakingFrame, UserStartedSpeakingFrame
TURN_OFF = UserStoppedSpeakingFrame
STARTED, STOPPED = ProposedUserStartedSpeakingFrame, ProposedUserStoppedSpeakingFrame


def vad_off() -> Frame:
    return VADUserStoppedSpeakingFrame(stop_secs=0.2)


def words(text: str = "Are you open?") -> Frame:
    return TranscriptionFrame(text, "caller", "now", finalized=True)


def eager(text: str = "are you open") -> Frame:
    return EagerTranscriptionFrame(text, "caller", "now")


def ask() -> Frame:
    """Stands for the call's own context."""
    return LLMContextFrame(LLMContext())


SPEAKS: list[Event] = [VAD_ON, TURN_ON, 1.2, vad_off, 0.1, TURN_OFF, ask]
"""The caller speaks for a second; the turn ends 0.3 s after its last sound."""


class Voice(TTSService):
    """Takes ``delay_secs`` to the first audio of each text.

    Attributes:
        audio_secs: How long each text sounds.
        stream_secs: How long its second half comes behind the first; 0 is in one piece.
        asked: What was to be spoken, and when.
    """

    def __init__(self, delay_secs: float = 0.1, **kwargs: Any):
        super().__init__(
            sample_rate=RATE,
            push_start_frame=True,
            push_stop_frames=True,
            stop_frame_timeout_s=3.0,
            settings=TTSSettings(model=None, voice=None, language=None),
            **kwargs,
        )
        self._delay_secs = delay_secs
        self.audio_secs, self.stream_secs = 0.1, 0.0
        self.asked: list[tuple[float, str]] = []

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame, None]:
        self.asked.append((asyncio.get_running_loop().time(), text))
        self.create_task(self._speak(text, context_id), f"speak {text}")
        yield None  # type: ignore[misc]

    async def _speak(self, text: str, context_id: str) -> None:
        pauses = [self._delay_secs, self.stream_secs][: 2 if self.stream_secs else 1]
        sound = b"\1\1" * round(self.audio_secs / len(pauses) * RATE)
        for secs in pauses:
            await asyncio.sleep(secs)
            audio = TTSAudioRawFrame(sound, RATE, 1, context_id=context_id)
            await self.append_to_audio_context(context_id, audio)
        await self.remove_audio_context(context_id)


class Loudspeaker(BaseOutputTransport):
    """Plays in the loop's time."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE))

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        await asyncio.sleep(frame.num_frames / frame.sample_rate)
        return True


class PhoneCall:
    """A conversation with an LLM for the length of an ``async with``; it is observed.

    Attributes:
        context: The conversation. It has a tool, ``look_up``, that takes ``tool_secs``.
        line: The pipeline.
        turns: The observer's records.
        tools: The tools that ran.
        tool_line: What the bot says as the tool begins.
        runs_llm: Whether the tool's result asks for an answer; None leaves that to Pipecat.
    """

    def __init__(
        self,
        llm: LLMService[Any],
        *,
        voice: Voice | None = None,
        speech: tuple[TTSService, BaseOutputTransport] | None = None,
        fillers: FillerProcessor | None = None,
        strategies: UserTurnStrategies | None = None,
        before: Sequence[FrameProcessor] = (),
        mute: Sequence[BaseUserMuteStrategy] = (),
        tool_secs: float = 0.0,
        **options: Any,
    ):
        """Prepare a call.

        With ``strategies`` Pipecat's user aggregator finds the turns' ends, and mutes the caller
        as ``mute`` says. ``speech`` stands in the place of the voice and the loudspeaker.
        """
        tool = FunctionSchema("look_up", "Looks up.", {}, [], handler=self._look_up)
        self.context = LLMContext(tools=[tool])
        self.voice = voice or Voice()
        self._speech = speech or (self.voice, Loudspeaker())
        self.turns: list[TurnLatency] = []
        self.tools: list[str] = []
        self.tool_line: TTSSpeakFrame | None = None
        self.runs_llm: bool | None = None
        self._tool_secs = tool_secs
        self._llm = llm
        self.observer = TurnLatencyObserver(**options)
        self.observer.add_event_handler("on_turn_latency", self._take_turn)
        aggregators = LLMContextAggregatorPair(
            self.context,
            user_params=LLMUserAggregatorParams(
                user_turn_strategies=strategies, user_mute_strategies=list(mute)
            ),
        )
        self.line = Line(
            llm,
            before=[*before, *([aggregators.user()] if strategies else [])],
            processors=[*([fillers] if fillers else []), *self._speech],
            after=[aggregators.assistant()],
            observers=[self.observer],
        )

    async def _take_turn(self, _: TurnLatencyObserver, turn: TurnLatency) -> None:
        self.turns.append(turn)

    async def _look_up(self, params: FunctionCallParams) -> None:
        self.tools.append(params.function_name)
        if self.tool_line is not None:
            await self._llm.queue_frame(self.tool_line)
        await asyncio.sleep(self._tool_secs)
        properties = FunctionCallResultProperties(run_llm=self.runs_llm)
        await params.result_callback({"open": True}, properties=properties)

    async def __aenter__(self) -> Self:
        await self.line.__aenter__()
        self._begun = asyncio.get_running_loop().time()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.line.__aexit__(*error)

    async def play(self, *events: Event) -> None:
        """Have it happen; a line of the bot's own goes straight to the voice."""
        for event in events:
            if isinstance(event, (int, float)):
                await asyncio.sleep(event)
            elif event is ask:
                await self.line.send(LLMContextFrame(self.context))
            elif isinstance(event, TTSSpeakFrame):
                await self._speech[0].queue_frame(event)
            else:
                await self.line.send(event if isinstance(event, Frame) else event())

    async def speak(self, then_secs: float = 10.0) -> TurnLatency:
        """Have the caller speak; the last record after so long."""
        await self.play(*SPEAKS, then_secs)
        return self.turns[-1]

    async def ask(self, times: int = 1, gap_secs: float = 20.0) -> float:
        """Ask; returns when the last question was asked, once all has been answered."""
        asked = 0.0
        for _ in range(times):
            asked = asyncio.get_running_loop().time()
            self.context.add_message({"role": "user", "content": "Are you open?"})
            await self.line.ask(context=self.context)
            await asyncio.sleep(gap_secs)
        return asked

    async def end_at(self, secs: float) -> None:
        """Wait until the call has lasted so long."""
        await asyncio.sleep(self._begun + secs - asyncio.get_running_loop().time())

    @property
    def heard(self) -> list[tuple[float, str]]:
        """What came out, with its time in the call, as its kind and text."""
        frames = [(at, f) for at, f in self.line.heard if not isinstance(f, MetricsFrame)]
        return [(round(at - self._begun, 6), _described(frame)) for at, frame in frames]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation."""
        return cast(list[dict[str, Any]], self.context.messages)

    @property
    def remembered(self) -> list[str]:
        """The answers in the context."""
        return [m["content"] for m in self.messages if m["role"] == "assistant" and "content" in m]


def _described(frame: Frame) -> str:
    kind = type(frame).__name__
    return f"{kind} {frame.text!r}" if isinstance(frame, TextFrame) else kind
