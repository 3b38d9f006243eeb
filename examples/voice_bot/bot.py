"""A restaurant's telephone line: a Pipecat voice bot with several racing LLM providers.

Run it with `make bot`, or `python -m examples.voice_bot`. It differs from other Pipecat bots in
two services: `HedgedLLMService` replaces the LLM service and reports every turn, and
`FillerProcessor` fills the silence when an answer is late.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.audio.turn.smart_turn.base_smart_turn import SmartTurnParams
from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import LLMRunFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frameworks.rtvi import RTVIFunctionCallReportLevel, RTVIObserverParams
from pipecat.processors.frameworks.rtvi.frames import RTVIServerMessageFrame
from pipecat.runner.types import RunnerArguments
from pipecat.runner.utils import create_transport
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.settings import LLMSettings
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.turns.user_stop import (
    BaseUserTurnStopStrategy,
    SpeechTimeoutUserTurnStopStrategy,
    TurnAnalyzerUserTurnStopStrategy,
)
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

if __name__ == "__main__":  # run as a file, and not as a part of the package
    sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.voice_bot.choices import Choices, choose
from examples.voice_bot.provider_log import ProviderLog
from examples.voice_bot.services import keep_apart, make_llms, make_stt, make_tts
from examples.voice_bot.slo_status import slos_message
from examples.voice_bot.turn_log import logged
from pipecat_hedge import FillerProcessor, HedgedLLMService, Provider, SpeechReport
from pipecat_hedge.retrieval import FolderRetriever, RetrievalProcessor, RetrievalReport
from pipecat_hedge.telemetry import LiveFeed, PrometheusRecorder
from pipecat_hedge.voice import HedgedTTSService, TurnLatency, TurnLatencyObserver

INSTRUCTIONS = (
    "You answer the telephone of the restaurant Harbour Kitchen. Your answers are spoken aloud: "
    "one to three short sentences, the first one shortest, no lists and no special characters. "
    "Book and cancel tables with the tools; never say that you did before the tool has."
)
FEED = LiveFeed("voice bot")
"""The feed of all calls, for `make top`."""
GREETING = "The caller has just been connected. Greet the caller in one sentence."


@dataclasses.dataclass
class Bookings:
    """The tables booked in this call; tools access it as `params.app_resources`."""

    tables: list[tuple[int, str]] = dataclasses.field(default_factory=list)


async def book_table(params: FunctionCallParams, party_size: int, time: str) -> None:
    """Book a table for tonight, or change the booking that was made in this call.

    Args:
        params: Pipecat's side of the call.
        party_size: For how many people.
        time: When, as HH:MM on the 24 hour clock.
    """
    bookings: Bookings = params.app_resources
    bookings.tables[:] = [(party_size, time)]
    await params.result_callback({"booked": True, "party_size": party_size, "time": time})


async def cancel_booking(params: FunctionCallParams) -> None:
    """Cancel the booking that was made in this call."""
    bookings: Bookings = params.app_resources
    cancelled = len(bookings.tables)
    bookings.tables.clear()
    await params.result_callback({"cancelled": cancelled})


@functools.cache
def recorder() -> PrometheusRecorder:
    """The metrics of all calls of this process, for `/metrics`."""
    return PrometheusRecorder()


def load_models(choices: Choices) -> None:
    """Load what a call needs, so that the first caller waits no longer than others."""
    SileroVADAnalyzer()
    turn_end(choices)
    make_retrieval(choices)
    keep_apart(choices)
    if not choices.stt.startswith("simulated"):  # the simulator has not started yet
        make_stt(choices, os.environ)
    if not choices.tts.startswith("simulated"):
        make_tts(choices, os.environ)


def turn_end(choices: Choices) -> BaseUserTurnStopStrategy:
    """Create the strategy that detects the end of the caller's turn.

    The smart-turn model is the default because people pause in mid-sentence: it answers about 0.3 s
    after a complete sentence, while a safe silence timeout costs every turn a second. It waits 3 s
    after a seemingly incomplete sentence by default; here 1.5 s, because it is unsure of synthetic
    voices (3 of the 16 recordings in fixtures/audio seem incomplete). TURN_DETECTION=0.6 ends a
    turn after that much silence.
    """
    if choices.turn_silence_secs is None:
        analyzer = LocalSmartTurnAnalyzerV3(params=SmartTurnParams(stop_secs=1.5))
        return TurnAnalyzerUserTurnStopStrategy(turn_analyzer=analyzer)
    return SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=choices.turn_silence_secs)


def make_hedged(choices: Choices, llms: Sequence[Provider]) -> HedgedLLMService | None:
    """Create the hedged service; None if the first LLM is used alone, without hedging."""
    if choices.policy is None:
        return None
    return HedgedLLMService(
        llms=llms,
        policy=choices.policy,
        settings=LLMSettings(system_instruction=INSTRUCTIONS),
        turn_log=choices.turn_log,
        slo=choices.slo,
    )


def make_retrieval(choices: Choices) -> list[RetrievalProcessor]:
    """Create what looks documents up while the caller speaks, if there are any."""
    if choices.documents is None:
        return []
    retrieval = RetrievalProcessor(retriever(choices.documents))

    @retrieval.event_handler("on_retrieval")
    async def on_retrieval(_: RetrievalProcessor, report: RetrievalReport) -> None:
        logger.info(f"{report.documents} passages, waited {report.waited_secs:.3f} s")

    return [retrieval]


@functools.cache
def retriever(folder: str) -> FolderRetriever:
    """Read a folder once for all calls."""
    return FolderRetriever(folder)


async def run_bot(transport: BaseTransport, runner_args: RunnerArguments, choices: Choices) -> None:
    """Run one call, until the caller hangs up."""
    stt = make_stt(choices, os.environ)
    tts = make_tts(choices, os.environ)
    llms = make_llms(choices, os.environ)
    hedged = make_hedged(choices, llms)

    context = LLMContext(tools=[book_table, cancel_booking])
    if hedged is None:
        context.add_message({"role": "system", "content": INSTRUCTIONS})
    aggregators = LLMContextAggregatorPair(
        context,
        user_params=LLMUserAggregatorParams(
            vad_analyzer=SileroVADAnalyzer(),
            user_turn_strategies=UserTurnStrategies(stop=[turn_end(choices)]),
        ),
    )
    pipeline = Pipeline(
        [
            transport.input(),
            stt,
            *make_retrieval(choices),
            aggregators.user(),
            *([llms[0].services[0]] if hedged is None else [hedged, FillerProcessor()]),
            tts,
            transport.output(),
            aggregators.assistant(),
        ]
    )
    latency = TurnLatencyObserver()
    recorder().listen_to(latency)
    if hedged is not None:
        FEED.watch(hedged, latency)
    worker = PipelineWorker(
        pipeline,
        params=PipelineParams(enable_metrics=True, enable_usage_metrics=True),
        enable_tracing=choices.traces != "off",
        observers=[latency],
        app_resources=Bookings(),
        idle_timeout_secs=runner_args.pipeline_idle_timeout_secs,
        rtvi_observer_params=RTVIObserverParams(
            function_call_report_level={"*": RTVIFunctionCallReportLevel.NAME},
        ),
    )

    # ---- for each race a log line and a message to the page; then the providers' and SLOs' state

    provider_log = ProviderLog()

    async def send(message: dict[str, Any]) -> None:
        await worker.queue_frame(RTVIServerMessageFrame(data=message))

    async def send_state() -> None:
        await send(provider_log.message(hedged.provider_states() if hedged else ()))
        await send(slos_message(hedged.stats.slo_tracker.status() if hedged else ()))

    @latency.event_handler("on_turn_latency")
    async def on_turn_latency(observer: TurnLatencyObserver, turn: TurnLatency) -> None:
        for race in logged(turn):
            logger.info(race.line())
            provider_log.count(race.report)
            await send(race.message())
        await send_state()

    if isinstance(tts, HedgedTTSService):

        @tts.event_handler("on_speech_report")
        async def on_speech_report(service: HedgedTTSService, report: SpeechReport) -> None:
            await send({"type": "speech", **dataclasses.asdict(report)})

    # ---- the call

    @transport.event_handler("on_client_connected")
    async def on_client_connected(transport: BaseTransport, client: Any) -> None:
        logger.info("a caller is connected")
        await send_state()
        context.add_message({"role": "developer", "content": GREETING})
        await worker.queue_frame(LLMRunFrame())

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(transport: BaseTransport, client: Any) -> None:
        logger.info("the caller has hung up")
        await worker.cancel()

    # A call's objects form reference cycles and hold speech models: without a garbage collection
    # after each call the process grows by about 50 MB per call.
    runner = WorkerRunner(handle_sigint=runner_args.handle_sigint, force_gc=True)
    await runner.add_workers(worker)
    await runner.run()


async def bot(runner_args: RunnerArguments) -> None:
    """Answer a call; Pipecat's runner calls this for each caller."""
    transport = await create_transport(
        runner_args,
        {"webrtc": lambda: TransportParams(audio_in_enabled=True, audio_out_enabled=True)},
    )
    await run_bot(transport, runner_args, choose(os.environ))


if __name__ == "__main__":
    from examples.voice_bot.__main__ import main

    sys.exit(main())
