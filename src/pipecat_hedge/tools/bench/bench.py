"""``pipecat-hedge bench``: compares arrangements of LLM services, and measures their costs.

The first part runs every arrangement concurrently against the same simulated providers over real
sockets. Requests and tokens come from the simulator's ledger, so SDK retries are included. The
second part plays scripted answers through every arrangement, in rounds, and measures processor
time.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
from loguru import logger
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.pipeline.service_switcher import ServiceSwitcherStrategyFailover
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService
from prometheus_client import CollectorRegistry

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, ProviderStats
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.analysis import add_reading_options, draws_of, read_as_asked
from pipecat_hedge.tools.bench.percentiles import percentile
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline
from pipecat_hedge.tools.formatting import (
    TextTable,
    follow,
    print_json,
    progress_bar,
    secs,
    text_of,
)
from pipecat_hedge.tools.simulator import SimulatorProcess

PROFILES = {
    "gemma-4-31b-baseten": "gemma-4-31b-baseten",
    "gpt-4.1": "gpt-4.1",
    "jagged": "jagged",
    "gemma, 1 % in-band errors": "gemma-4-31b-baseten?fault=error_in_band&rate=0.01",
}
"""The hosted provider's name and its simulated model. No SDK retries an in-band error."""
LOCAL = "qwen3.8-27b-local"
ATTEMPTS = 4
"""So many latencies are drawn for a turn of a trace; further requests have the last one's."""
ANSWER = "Yes, we are open until nine. Do come by!"
TRACED = "fixed?tps=80"
"""The hosted provider whose latencies are those of a trace."""
QUESTION = "Are you open?"
GIVE_UP_SECS = 60.0
STAGGER_SECS = 4.0
"""Calls begin within this time: all at once would block the event loop for a second."""

Make: TypeAlias = Callable[[], LLMService[Any]]
"""Creates a service of one provider."""
Build: TypeAlias = Callable[[Make, Make, ProviderStats], FrameProcessor]
"""Creates an arrangement of a hosted and a local provider, with its statistics."""


def _switcher(hosted: Make, local: Make, stats: ProviderStats) -> FrameProcessor:
    return LLMSwitcher([hosted(), hosted()], ServiceSwitcherStrategyFailover)


def _hedged(policy: HedgePolicy, **options: Any) -> Build:
    """Two services of the hosted provider."""

    def build(hosted: Make, local: Make, stats: ProviderStats) -> FrameProcessor:
        provider = Provider("hosted", [hosted(), hosted()])
        return HedgedLLMService([provider], policy=policy, stats=stats, **options)

    return build


def _with_local(hosted: Make, local: Make, stats: ProviderStats) -> FrameProcessor:
    providers = [Provider("hosted", hosted()), Provider("local", local())]
    return HedgedLLMService(providers, policy=HedgePolicy.adaptive(0.05), stats=stats)


BARE, FAILOVER, ADAPTIVE = "bare service", "LLMSwitcher, failover", "adaptive(5 %)"
ARRANGEMENTS: dict[str, Build] = {
    BARE: lambda hosted, local, stats: hosted(),
    FAILOVER: _switcher,
    "race(2)": _hedged(HedgePolicy.race(2)),
    "after(0.8)": _hedged(HedgePolicy.after(0.8)),
    "fallback()": _hedged(HedgePolicy.fallback()),
    ADAPTIVE: _hedged(HedgePolicy.adaptive(0.05)),
    "adaptive(5 %), local": _with_local,
}


# ---- latencies


@dataclass(frozen=True, slots=True)
class Compared:
    """One arrangement with one hosted provider.

    Parameters:
        profile: The hosted provider.
        arrangement: The processor in the pipeline.
        turns: The number of turns.
        p50_secs: The median time to first token; infinite if fewer turns were answered. Likewise
            ``p95_secs``, ``p99_secs`` and ``max_secs``.
        unanswered: Turns without an answer.
        extra_requests: Requests beyond one per turn, per turn.
        wasted_tokens: Prompt and answer tokens of incomplete requests, per turn.
    """

    profile: str
    arrangement: str
    turns: int
    p50_secs: float | None
    p95_secs: float | None
    p99_secs: float | None
    max_secs: float | None
    unanswered: int
    extra_requests: float
    wasted_tokens: float


def _model(name: str, arrangement: str) -> str:
    """Return a model's name with the answer that identifies the arrangement in the ledger."""
    return f"{name}{'&' if '?' in name else '?'}answer={quote(_answer(arrangement))}"


def _openai(url: str, model: str) -> Make:
    settings = OpenAILLMService.Settings(model=model)
    return lambda: OpenAILLMService(api_key="any", base_url=url, settings=settings)


def _answer(arrangement: str) -> str:
    """Return the answer, which identifies the arrangement in the ledger."""
    return f"{ANSWER} {list(ARRANGEMENTS).index(arrangement)}"


def _trace(file: str, args: argparse.Namespace) -> list[list[float]]:
    """Return the seconds of each turn's first and further requests; failed ones are left out."""
    recorded = read_as_asked([file], args)
    measured, count = next(iter(recorded.providers.values())), recorded.turns
    if not measured.answers:
        raise ConfigurationError(f"--trace {file}: no request of {measured.name} was answered")
    provider = measured.only(np.flatnonzero(~measured.failed))
    is_timed = recorded.asked_at is not None
    drawn = draws_of(provider, provider, ATTEMPTS, 1, count, args.seed, is_timed=is_timed)
    rows = np.linspace(0, len(drawn.secs) - 1, min(args.turns, len(drawn.secs)))
    return [drawn.secs[row] for row in rows.astype(int)]


async def _compare(
    profile: str,
    hosted: str,
    questions: Sequence[str],
    sim: SimulatorProcess,
    calls: int,
    tick: Callable[[], None],
) -> list[Compared]:
    """Run every arrangement concurrently with one hosted provider."""
    rng = random.Random(1)
    waits: dict[str, list[float]] = {name: [] for name in ARRANGEMENTS}

    async def call(name: str, llm: FrameProcessor, turns: Iterator[str], delay_secs: float) -> None:
        await asyncio.sleep(delay_secs)
        async with _running(llm) as pipeline:
            for question in turns:
                waits[name].append((await pipeline.turn(question, GIVE_UP_SECS)).ttft_secs)
                tick()

    async with asyncio.TaskGroup() as group:
        for name, build in ARRANGEMENTS.items():
            first = _openai(sim.openai_url, _model(hosted, name))
            local = _openai(sim.openai_url, _model(LOCAL, name))
            stats, turns = ProviderStats(), iter(questions)
            for _ in range(calls):
                llm = build(first, local, stats)
                group.create_task(call(name, llm, turns, rng.uniform(0, STAGGER_SECS)))
    requests = await asyncio.to_thread(sim.ledger, wait_secs=5)
    return [_compared(profile, name, waits[name], requests["requests"]) for name in ARRANGEMENTS]


def _compared(
    profile: str, name: str, waits: Sequence[float], requests: Sequence[Mapping[str, Any]]
) -> Compared:
    made = [r for r in requests if r["model"].endswith(quote(_answer(name)))]
    wasted = [r for r in made if r["outcome"] != "completed"]
    return Compared(
        profile,
        name,
        turns=len(waits),
        p50_secs=percentile(waits, 0.5),
        p95_secs=percentile(waits, 0.95),
        p99_secs=percentile(waits, 0.99),
        max_secs=percentile(waits, 1.0),
        unanswered=sum(map(math.isinf, waits)),
        extra_requests=len(made) / len(waits) - 1,
        wasted_tokens=sum(r["prompt_tokens"] + r["tokens_sent"] for r in wasted) / len(waits),
    )


@asynccontextmanager
async def _running(llm: FrameProcessor) -> AsyncIterator[TimedPipeline]:
    pipeline = TimedPipeline(llm)
    await pipeline.start()
    try:
        yield pipeline
    finally:
        await pipeline.stop()


# ---- costs

TOKENS = 500
BATCH = 10
"""Turns of one token that are timed together."""
WARM_UP = 100
"""Turns before the first round: a service learns most from its first turns."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The processor time of a turn, or of a token, through one arrangement.

    Parameters:
        arrangement: The processor in the pipeline.
        unit: ``turn`` (of one token) or ``token`` (each additional one).
        median_secs: The median round.
        added_secs: The median over the rounds of the difference to the bare service.
        over_bare: The median over the rounds of the ratio to the bare service.
        over_failover: The same ratio to Pipecat's ``LLMSwitcher`` with failover.
    """

    arrangement: str
    unit: str
    median_secs: float
    added_secs: float
    over_bare: float
    over_failover: float


def _costed() -> dict[str, Build]:
    """The arrangements of the cost measurement."""
    adaptive = HedgePolicy.adaptive(0.05)
    build = _hedged(adaptive)

    def with_metrics(hosted: Make, local: Make, stats: ProviderStats) -> FrameProcessor:
        PrometheusRecorder(stats=stats, registry=CollectorRegistry())
        return build(hosted, local, stats)

    costed = {name: ARRANGEMENTS[name] for name in (BARE, FAILOVER, "race(2)", ADAPTIVE)}
    costed["adaptive, with metrics"] = with_metrics
    if _keep_spans_in_memory():
        costed["adaptive, with spans"] = _hedged(adaptive, own_spans=True)
    return costed


def _keep_spans_in_memory() -> bool:
    """Collect spans as in production; False if OpenTelemetry's SDK is not installed."""
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    except ModuleNotFoundError:
        return False
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    trace.set_tracer_provider(provider)
    return True


async def measure_costs(rounds: int, progress: Callable[[], None]) -> list[Cost]:
    """Measure the processor time of a turn and a token, on the event loop's thread.

    Args:
        rounds: The number of rounds; each times every arrangement once.
        progress: Called after each round.
    """
    short: list[Step] = [Say("Yes.")]
    long: list[Step] = [*short, *[Wait(0), Say(" token")] * TOKENS]  # one loop step a token
    turns: dict[str, list[float]] = {}
    longs: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        pipelines: dict[str, tuple[TimedPipeline, TimedPipeline]] = {}
        for name, build in _costed().items():
            stats = ProviderStats()
            made = []
            for script in (short, long):

                def make(script: list[Step] = script) -> LLMService[Any]:
                    return ScriptedLLMService(script)

                made.append(await stack.enter_async_context(_running(build(make, make, stats))))
            pipelines[name] = made[0], made[1]
            await _timed(made[0], WARM_UP)
            await _timed(made[1], 1)
            turns[name], longs[name] = [], []
        for _ in range(rounds):
            for name, (one, many) in pipelines.items():
                turns[name].append(await _timed(one, BATCH))
                longs[name].append(await _timed(many, 1))
            progress()
    tokens = {
        name: [(b - a) / TOKENS for a, b in zip(turns[name], longs[name], strict=True)]
        for name in turns
    }
    measured = {"turn": turns, "token": tokens}
    return [_cost(name, unit, secs) for unit, secs in measured.items() for name in turns]


async def _timed(pipeline: TimedPipeline, turns: int) -> float:
    began = time.thread_time()
    for _ in range(turns):
        await pipeline.turn()
    return (time.thread_time() - began) / turns


def _cost(name: str, unit: str, secs: Mapping[str, list[float]]) -> Cost:
    own, bare, failover = secs[name], secs[BARE], secs[FAILOVER]
    return Cost(
        name,
        unit,
        statistics.median(own),
        added_secs=statistics.median(a - b for a, b in zip(own, bare, strict=True)),
        over_bare=statistics.median(a / b for a, b in zip(own, bare, strict=True)),
        over_failover=statistics.median(a / b for a, b in zip(own, failover, strict=True)),
    )


# ---- the command


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    number = parser.add_argument
    number("--turns", type=int, default=400, help="turns of each arrangement (default 400)")
    number("--calls", type=int, default=8, help="simultaneous calls of each (default 8)")
    number("--rounds", type=int, default=60, help="rounds of the cost measurement (default 60)")
    number("--seed", type=int, default=1, help="of the simulated providers (default 1)")
    parser.add_argument(
        "--profile",
        action="append",
        metavar="NAME",
        choices=list(PROFILES),
        help=f"one hosted provider; repeatable: {'; '.join(PROFILES).replace('%', '%%')}",
    )
    trace = "a hosted provider with these latencies, in the order of their times; repeatable"
    parser.add_argument("--trace", action="append", default=[], metavar="FILE", help=trace)
    add_reading_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Run the comparison and the cost measurement, and print both.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if args.calls < 1 or args.turns < args.calls or args.rounds < 1:
        raise ConfigurationError(
            "--turns must be at least --calls, and --calls and --rounds at least 1"
        )
    logger.remove()  # failing requests are expected
    profiles = args.profile or ([] if args.trace else PROFILES)
    traces = {file: _trace(file, args) for file in args.trace}
    compared: list[Compared] = []
    with SimulatorProcess(seed=args.seed) as sim, progress_bar() as bar:
        for profile in (*profiles, *traces):
            hosted, questions = PROFILES.get(profile, TRACED), [QUESTION] * args.turns
            if trace := traces.get(profile):
                questions = [f"?turn={number}" for number in range(len(trace))]
                for name in ARRANGEMENTS:
                    sim.set_conditions(_model(TRACED, name), trace=trace)
            advance = follow(bar, profile, len(ARRANGEMENTS) * len(questions))
            sim.clear_ledger()
            compared += asyncio.run(_compare(profile, hosted, questions, sim, args.calls, advance))
    with progress_bar() as bar:
        advance = follow(bar, "processor time", args.rounds)
        costs = asyncio.run(measure_costs(args.rounds, advance))
    if args.json:
        kept = {name: getattr(args, name) for name in ("turns", "calls", "rounds", "seed")}
        print_json({**kept, "compared": compared, "costs": costs})
    else:
        _show(compared, costs)
    return 0


def _show(compared: Sequence[Compared], costs: Sequence[Cost]) -> None:
    parts = list[str | TextTable]()
    for profile in dict.fromkeys(row.profile for row in compared):
        heads = ["", "p50", "p95", "p99", "max", "lost", "extra", "waste"]
        rows = [
            [
                row.arrangement,
                *map(secs, (row.p50_secs, row.p95_secs, row.p99_secs, row.max_secs)),
                f"{row.unanswered}",
                f"{row.extra_requests:+.1%}",
                f"{row.wasted_tokens:.1f}",
            ]
            for row in compared
            if row.profile == profile
        ]
        parts += [f"{profile}: time to first token", TextTable(heads, rows), ""]
    parts.append("lost: turns without an answer; extra: requests; waste: tokens, per turn")
    for unit, title in (("turn", "a turn of one token"), ("token", "each additional token")):
        heads = ["", "median", "added", "× bare", "× failover"]
        rows = [
            [
                cost.arrangement,
                f"{1e6 * cost.median_secs:.1f} µs",
                f"{1e6 * cost.added_secs:+.1f} µs",
                f"{cost.over_bare:.2f}",
                f"{cost.over_failover:.2f}",
            ]
            for cost in costs
            if cost.unit == unit
        ]
        parts += ["", f"processor time of {title}", TextTable(heads, rows)]
    if not any("spans" in cost.arrangement for cost in costs):
        parts.append('spans were not measured: pip install "pipecat-hedge[tracing]"')
    print(text_of(parts))
