# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "pipecat-hedge",
#     "pipecat-ai[webrtc,runner,silero,deepgram,cartesia,anthropic,openai]>=1.14,<2",
# ]
#
# [tool.uv.sources]
# pipecat-hedge = { path = "..", editable = true } # until the package is published
# ///
"""A voice bot on your own keys that races two LLM providers. Open the page that it prints.

    uv run examples/hedged_bot.py

Keys are read from the environment or from `.env`. Without keys, `make bot` runs the offline example
in `voice_bot`.
"""

import os
import sys

if __name__ == "__main__":  # the services are imported only when they can be used
    try:
        from dotenv import load_dotenv
    except ModuleNotFoundError:
        sys.exit("hedged_bot: not installed: start it with `uv run`, or see README.md for pip")
    load_dotenv()
    keys = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "DEEPGRAM_API_KEY", "CARTESIA_API_KEY")
    if missing := [key for key in keys if not os.environ.get(key)]:
        sys.exit(f"hedged_bot: set {', '.join(missing)}, in the environment or in .env")

from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.cartesia.tts import CartesiaTTSService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.settings import LLMSettings
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.workers.runner import WorkerRunner

from pipecat_hedge import FillerProcessor, HedgedLLMService, HedgePolicy, Provider

INSTRUCTIONS = "You are a friendly assistant on the telephone. Answer in one to three sentences."


async def run_bot(transport: BaseTransport, runner_args: RunnerArguments) -> None:
    """Hold one call, until the caller hangs up."""
    stt = DeepgramSTTService(api_key=os.environ["DEEPGRAM_API_KEY"])
    tts = CartesiaTTSService(
        api_key=os.environ["CARTESIA_API_KEY"],
        settings=CartesiaTTSService.Settings(voice="71a7ad14-091c-4e8e-a314-022ece01c121"),
    )
    anthropic = AnthropicLLMService(api_key=os.environ["ANTHROPIC_API_KEY"])
    openai = OpenAILLMService(api_key=os.environ["OPENAI_API_KEY"])
    llm = HedgedLLMService(
        llms=[Provider("anthropic", anthropic), Provider("openai", openai)],
        policy=HedgePolicy.adaptive(budget=0.1),
        settings=LLMSettings(system_instruction=INSTRUCTIONS),
    )

    @llm.event_handler("on_turn_report")
    async def on_turn_report(service, report):
        attempts = [(attempt.provider, attempt.outcome) for attempt in report.attempts]
        logger.info(f"{report.winner}, TTFT {report.ttft_secs} s, {attempts}")

    context = LLMContext()
    user, assistant = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(vad_analyzer=SileroVADAnalyzer())
    )
    parts = [transport.input(), stt, user, llm, FillerProcessor(), tts]
    pipeline = Pipeline([*parts, transport.output(), assistant])
    worker = PipelineWorker(pipeline, params=PipelineParams(enable_metrics=True))

    @transport.event_handler("on_client_connected")
    async def on_client_connected(transport, client):
        context.add_message({"role": "developer", "content": "Greet the caller in one sentence."})
        await worker.queue_frame(LLMRunFrame())

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(transport, client):
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint)
    await runner.add_workers(worker)
    await runner.run()


async def bot(runner_args: RunnerArguments) -> None:
    """Answer a call; Pipecat's runner calls this for each caller."""
    audio = TransportParams(audio_in_enabled=True, audio_out_enabled=True)
    await run_bot(await create_transport(runner_args, {"webrtc": lambda: audio}), runner_args)


if __name__ == "__main__":
    from pipecat.runner.run import main

    main()
