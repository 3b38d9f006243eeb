"""What the hedged service costs over the service that it hosts.

Both stream the same scripted tokens through the same pipeline in one process, turn and turn about,
so that a slow spell of the machine falls on both. Each token is handed over in a turn of the event
loop of its own, as tokens from a socket are. Counted is processor time, which a busy neighbour
inflates less than the clock on the wall; the loop never waits, so on an idle machine the two agree.
Reported is the median over the rounds of the difference within a round.

Apart from that it is measured what a turn pays for breakers, limits and permits, in a registry of
many providers that many sessions have used, while others of its requests are being answered: who
may be asked, leave to ask, a look at who takes a hedge as the race begins and as it wakes to send
one, and the permits' return. And what a turn pays to be seen: for its metrics (nothing a token, for
they are made of the report at its end), its stages and its spans, each in its quickest batch.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loguru import logger
from pipecat.processors.frame_processor import FrameProcessor
from prometheus_client import CollectorRegistry

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.ending import ANSWERED, DROPPED
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.limits.permit_queue import Ticket
from pipecat_hedge.policy.backends import Backend
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.service.admission import Admission, as_settings
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_pool import ProviderPool
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.prometheus import PrometheusRecorder
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.bench.stage_overhead import measure_stages
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline
from pipecat_hedge.tools.bench.trace_overhead import SpanCost, measure_spans, played_turn
from pipecat_hedge.voice.turn_timeline import TurnLatency

TOKENS = 500
REGISTERED = 100
"""Providers in the registry, where a turn's permits are timed."""
SESSIONS = 1000
"""Sessions that have used each of them."""
STREAMING = 300
"""Answers that are on their way from each provider of a turn whose permits are timed."""
TURNS = ((1, "one request"), (2, "two requests"))
"""The turns that are measured, by how many requests are made in them."""
USUALLY_HEDGED = 0.1
"""The share of turns with a second request, which ``HedgePolicy.adaptive`` keeps to by default."""
LEARNED = 1000
"""Answers of each provider that were seen before the turns that are timed."""
BATCH = 50
"""Turns that are timed together: on some machines asking for the time takes as long as a turn."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What hedging adds.

    Parameters:
        bare_token_secs: A token through the bare service.
        bare_turn_secs: A turn of one token through the bare service.
        token_secs: What hedging adds to each token.
        turn_secs: What hedging adds to each turn, its tokens aside.
        rounds: How many times each was measured.
    """

    bare_token_secs: float
    bare_turn_secs: float
    token_secs: float
    turn_secs: float
    rounds: int


@dataclass(frozen=True, slots=True)
class PermitsCost:
    """What a turn pays for breakers, limits and permits, in processor time.

    Parameters:
        quickest_secs: In the quickest batch of turns, which nothing else slowed down.
        median_secs: In the median one.
    """

    quickest_secs: float
    median_secs: float


@dataclass(frozen=True, slots=True)
class SeenCost:
    """What a turn pays to be seen, in processor time of the quickest batch.

    Parameters:
        metrics_secs: For its metrics.
        spans: For its spans; None where OpenTelemetry's SDK is not installed.
        bare_turn_secs: What a turn of one token takes through the bare service, for comparison.
    """

    metrics_secs: float
    spans: SpanCost | None
    bare_turn_secs: float


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments.

    Args:
        parser: The command's parser.
    """
    parser.add_argument("--rounds", type=int, default=60, help="turns of each kind (default 60)")


def run(args: argparse.Namespace) -> int:
    """Measure and print.

    Args:
        args: The command line.

    Returns:
        The exit status, 0.
    """
    if args.rounds < 1:
        print(f"pipecat-hedge overhead: --rounds must be at least 1, got {args.rounds}")
        return 2
    logger.disable("pipecat")  # it logs each frame at TRACE, which production bots switch off
    try:
        _tell(args.rounds)
    finally:
        logger.enable("pipecat")
    return 0


def _tell(rounds: int) -> None:
    cost = asyncio.run(measure(rounds))
    print(f"over the bare service, median of {cost.rounds} rounds of {TOKENS} tokens:")
    print(f"  per token  {cost.token_secs * 1e6:+7.1f} µs  (bare {cost.bare_token_secs * 1e6:.1f})")
    print(f"  per turn   {cost.turn_secs * 1e3:+7.3f} ms  (bare {cost.bare_turn_secs * 1e3:.3f})")
    print(
        f"breakers, limits and permits ({REGISTERED} providers in the registry, {STREAMING} "
        "requests in flight at each), in the quickest batch and in the median one:"
    )
    for requests, turn in TURNS:
        permits = asyncio.run(measure_permits(REGISTERED, STREAMING, requests))
        told = f"{permits.quickest_secs * 1e6:.1f} and {permits.median_secs * 1e6:.1f} µs"
        print(f"  a turn of {turn:<13} {told}")
    _tell_of_being_seen()


def _tell_of_being_seen() -> None:
    stages = asyncio.run(measure_stages())
    told = f"{stages.turn_secs * 1e6:.1f} µs a turn, {stages.token_secs * 1e6:.2f} a token"
    print(f"stages of two requests over new connections, in the quickest batch: {told}")
    totals: list[float] = []
    for requests, turn in TURNS:
        cost = asyncio.run(measure_seen(requests))
        metrics, bare = cost.metrics_secs, cost.bare_turn_secs
        print(f"to be seen, a turn of {turn} pays, and nothing for a token:")
        print(f"  Prometheus metrics   {metrics * 1e6:6.1f} µs")
        if cost.spans is None:
            print("  spans were not measured: pip install pipecat-hedge[tracing]")
            continue
        totals.append(metrics + cost.spans.added_secs)
        for name, secs, sdk_secs in (
            ("added to Pipecat's", cost.spans.added_secs, cost.spans.added_sdk_secs),
            ("spans of one's own", cost.spans.own_secs, cost.spans.own_sdk_secs),
        ):
            total = metrics + secs
            print(
                f"  {name}   {secs * 1e6:6.1f} µs, OpenTelemetry's SDK alone {sdk_secs * 1e6:.1f}; "
                f"with metrics {total * 1e6:.0f}, {total / bare:.0%} of a bare turn"
            )
    if totals:
        alone, hedged = totals
        usual = (1 - USUALLY_HEDGED) * alone + USUALLY_HEDGED * hedged
        print(
            f"at the default budget, {USUALLY_HEDGED:.0%} of turns hedged: {usual * 1e6:.0f} µs a "
            "turn, metrics and what is added to Pipecat's spans"
        )


def _hedged(script: Sequence[Step]) -> FrameProcessor:
    providers = [Provider("a", ScriptedLLMService(script))]
    return HedgedLLMService(providers, policy=HedgePolicy.race(1), stats=learned_stats(["a"]))


def learned_stats(names: Sequence[str]) -> ProviderStats:
    """What a process has learned that has been running for a while, in memory.

    Until then it learns more with each turn than it does later.

    Args:
        names: The providers; their services are scripted ones.
    """
    stats = ProviderStats()
    for name in names:
        for number in range(LEARNED):
            ttft_secs = 1e-4 * 100 ** (number * 7 % LEARNED / LEARNED)
            stats.record_first_token(Backend(name, "scripted"), ttft_secs, 10)
    return stats


async def measure(
    rounds: int, build: Callable[[Sequence[Step]], FrameProcessor] = _hedged
) -> Overhead:
    """Measure the overhead on the running loop.

    Args:
        rounds: How many turns of each kind to time.
        build: Makes what is compared with the bare service, of the script that it is to play.
    """
    short: list[Step] = [Say("Yes.")]
    long: list[Step] = [Say("Yes."), *[Wait(0), Say(" token")] * TOKENS]
    services: list[FrameProcessor] = []
    for script in (short, long):
        services += [ScriptedLLMService(script), build(script)]
    lines = [TimedPipeline(service) for service in services]
    await asyncio.gather(*(line.start() for line in lines))
    try:
        for line in lines:  # the first turn pays for imports and caches
            await line.turn()
        times = [[(await line.turn()).processor_secs for line in lines] for _ in range(rounds)]
    finally:
        await asyncio.gather(*(line.stop() for line in lines))
    return Overhead(
        bare_token_secs=_median([(long - short) / TOKENS for short, _, long, _ in times]),
        bare_turn_secs=_median([bare for bare, *_ in times]),
        token_secs=_median(
            [
                ((hedged_l - hedged_s) - (bare_l - bare_s)) / TOKENS
                for bare_s, hedged_s, bare_l, hedged_l in times
            ]
        ),
        turn_secs=_median([hedged - bare for bare, hedged, _, _ in times]),
        rounds=rounds,
    )


async def measure_permits(
    registered: int, streaming: int, requests: int, rounds: int = 40
) -> PermitsCost:
    """Measure what a turn between three providers pays for breakers, limits and permits.

    Args:
        registered: How many other providers the registry holds.
        streaming: How many answers are on their way from each of the three.
        requests: How many requests there are in the turn: one, or one and a hedge that wins.
        rounds: How many batches of turns to time.
    """
    loop = asyncio.get_running_loop()
    health = AdmissionController()
    for number in range(registered):
        key = f"provider {number} | model"
        for _ in range(SESSIONS):
            now = loop.time()
            permit = health.take(Ticket("primary", "standard", now, (key,), now), now)
            assert permit is not None
            health.give_back(permit, ANSWERED, now, has_begun=True)
    providers = [Provider(name, ScriptedLLMService([Say("Yes.")])) for name in "abc"]
    members, names = ProviderPool(providers, health), [provider.name for provider in providers]
    for entry in members.entries:
        for _ in range(streaming):
            sent_at = loop.time() - 60.0  # long enough for whoever was not heard to be late
            permit = health.take(
                Ticket("primary", "standard", sent_at, (entry.key,), sent_at), sent_at
            )
            assert permit is not None
            health.heard(permit, sent_at + 0.3)

    settings = as_settings("open", "standard", None, 10 * streaming + 1000)

    async def turn() -> None:
        line_up = members.line_up(loop.time())
        admission = Admission(health, line_up, settings, LoopWatch(), 3.0)
        first = await admission.admit(line_up.entries, "primary")
        assert first is not None
        admission.refusals(names)
        lost, permit = None, await admission.permit(first, "primary")
        if requests > 1:
            admission.refusals(names)
            lost, permit = permit, await admission.permit(names[1], "hedge")
        admission.heard(permit, 0)
        if lost is not None:
            admission.give_back(lost, DROPPED, was_unheard=True)
        admission.give_back(permit, ANSWERED, has_begun=True)
        admission.close()
        health.take_changes()

    times: list[float] = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(BATCH):
            await turn()
        times.append((time.thread_time() - began) / BATCH)
    return PermitsCost(min(times), _median(times))


async def measure_seen(requests: int, rounds: int = 200) -> SeenCost:
    """Measure what a turn pays for its metrics and for its spans.

    Args:
        requests: How many requests there are in it: one, or one and a hedge.
        rounds: How many batches of turns to time.
    """
    recorder = PrometheusRecorder(stats=ProviderStats(), registry=CollectorRegistry())
    report = played_turn(requests)
    heard = TurnLatency(1, 0.0, "user_silence", first_answer_secs=1.4, reports=(report,))

    async def counted() -> None:
        recorder.record(report)
        recorder.record_heard(heard)

    line = TimedPipeline(ScriptedLLMService([Say("Yes.")]))

    async def bare() -> None:
        await line.turn()

    await line.start()
    try:
        spans, (metrics_secs, bare_secs) = await measure_spans(
            requests, counted, bare, rounds=rounds
        )
    finally:
        await line.stop()
        recorder.close()
    return SeenCost(metrics_secs, spans, bare_secs)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)
