"""A small Pipecat bot: it says hello through Pipecat's transport, and hangs up with the caller."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
from pipecat.frames.frames import Frame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.runner.types import SmallWebRTCRunnerArguments
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_transport import TransportParams
from pipecat.transports.smallwebrtc.transport import SmallWebRTCTransport
from pipecat.workers.runner import WorkerRunner

SPEAKS_SECS = 0.7


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
    worker = PipelineWorker(Pipeline([transport.input(), Hums(), transport.output()]))

    @transport.event_handler("on_client_connected")
    async def on_client_connected(transport: object, client: object) -> None:
        await worker.queue_frame(TTSSpeakFrame("Hello."))

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(transport: object, client: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()
