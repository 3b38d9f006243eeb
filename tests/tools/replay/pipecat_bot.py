"""A small Pipecat bot: real transport and turns, scripted understanding and answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import Frame, TranscriptionFrame, TTSAudioRawFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.runner.types import SmallWebRTCRunnerArguments
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_transport import TransportParams
from pipecat.transports.smallwebrtc.transport import SmallWebRTCTransport
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.utils.time import time_now_iso8601
from pipecat.workers.runner import WorkerRunner

from pipecat_hedge.testing import Say, ScriptedLLMService

UNDERSTOOD, ANSWER = "when do you close", "We close at nine."
SPEAKS_SECS = 0.7


class Understands(SegmentedSTTService):
    """Whatever is said, it is taken for a question."""

    def __init__(self) -> None:
        settings = STTSettings(model="scripted", language=None)
        super().__init__(sample_rate=16_000, ttfs_p99_latency=0.2, settings=settings)

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        yield TranscriptionFrame(UNDERSTOOD, self._user_id, time_now_iso8601())


class Hums(TTSService):
    """A tone, whatever is to be said."""

    def __init__(self) -> None:
        settings = TTSSettings(model="scripted", voice="hum", language=None)
        super().__init__(push_start_frame=True, push_stop_frames=True, settings=settings)

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame, None]:
        time = np.arange(round(SPEAKS_SECS * self.sample_rate)) / self.sample_rate
        tone = (9000 * np.sin(2 * np.pi * 330 * time)).astype(np.int16)
        yield TTSAudioRawFrame(tone.tobytes(), self.sample_rate, 1, context_id=context_id)


async def bot(runner_args: Any) -> None:
    """Hold one call, until the caller hangs up."""
    assert isinstance(runner_args, SmallWebRTCRunnerArguments)
    transport = SmallWebRTCTransport(
        runner_args.webrtc_connection,
        TransportParams(audio_in_enabled=True, audio_out_enabled=True),
    )
    stop = SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.2)
    aggregators = LLMContextAggregatorPair(
        LLMContext(),
        user_params=LLMUserAggregatorParams(
            vad_analyzer=SileroVADAnalyzer(),
            user_turn_strategies=UserTurnStrategies(stop=[stop]),
        ),
    )
    worker = PipelineWorker(
        Pipeline(
            [
                transport.input(),
                Understands(),
                aggregators.user(),
                ScriptedLLMService([Say(ANSWER)]),
                Hums(),
                transport.output(),
                aggregators.assistant(),
            ]
        )
    )

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(transport: object, client: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()
