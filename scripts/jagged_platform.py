"""What hedging and known answers do for the platform of the "jagged edges" report.

In virtual time: two providers of the profile ``jagged`` (p50 0.2 s, p95 2.3 s, p99 8 s), each of
which serves so many requests at once and lets others wait, and callers in calls of many turns. A
share of the turns asks what a FAQ knows. ``python -m scripts.jagged_platform`` prints a table.

The report says nothing of what is quicker than its p50, and with known answers the new p50 is
there. So each p50 is printed under two assumptions: the profile's, the line from p50 to p95 goes on
below (its least is 96 ms), and a floor: no request is quicker than 120 ms, 60 % of the p50.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from loguru import logger
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import LLMService

from pipecat_hedge import (
    FaqAnswers,
    HedgedLLMService,
    HedgePolicy,
    Provider,
    ProviderStats,
    TurnReport,
)
from pipecat_hedge.answers import FaqEntry
from pipecat_hedge.providers import PROFILES, LatencyProfile
from pipecat_hedge.testing import AutojumpLoop, Say, ScriptedLLMService, Wait
from pipecat_hedge.tools.bench import TimedPipeline

REPORTED_MS = (120, 800, 1_500)
"""The report's own p50, p95 and p99 after its work."""
LINE = PROFILES["jagged"]
FLOOR = dataclasses.replace(LINE, points=((0.0, 0.12), *LINE.points[1:]))
FAQ = [FaqEntry(questions=["When do you open?"], answer="We open at noon.")]
KNOWN, OTHER = "When are you opening?", "Could we sit outside tonight?"
WARM_UP = 20
"""The first turns of each call are left out: a bot that has run for a day has learned."""


class Jagged(ScriptedLLMService):
    """Answers as the profile does, and lets requests beyond its capacity wait."""

    def __init__(self, profile: LatencyProfile, room: asyncio.Semaphore, rng: random.Random):
        super().__init__([])
        self._profile, self._room, self._rng = profile, room, rng

    async def _play(self, script: Any, context: LLMContext) -> None:
        async with self._room:
            secs = self._profile.sample(self._rng)
            await super()._play([Wait(secs), Say("Gladly.")], context)


async def measured(
    budget: float | None, hits: float, args: argparse.Namespace, profile: LatencyProfile = LINE
) -> tuple[list[float], float]:
    """Return the waits of all callers in seconds, and the extra requests per turn.

    Args:
        budget: Of the policy; None is the bare service.
        hits: The share of turns that the FAQ knows.
        args: The load.
        profile: Of both providers.
    """
    stats, rooms = ProviderStats(), [asyncio.Semaphore(args.capacity) for _ in range(2)]
    waits: list[float] = []
    reports: list[TurnReport] = []

    def service(number: int) -> LLMService[Any]:
        rngs = [random.Random(f"{args.seed} {number} {each}") for each in range(2)]
        first, second = (Jagged(profile, room, rng) for room, rng in zip(rooms, rngs, strict=True))
        if budget is None:
            return first
        llm = HedgedLLMService(
            [Provider("a", first), Provider("b", second)],
            policy=HedgePolicy.adaptive(budget),
            stats=stats,
            warm=False,
            answers=[FaqAnswers(FAQ)] if hits else [],
        )

        @llm.event_handler("on_turn_report")
        async def on_turn_report(_: object, report: TurnReport) -> None:
            reports.append(report)

        return llm

    async def call(number: int) -> None:
        rng, loop = random.Random(f"{args.seed} {number}"), asyncio.get_running_loop()
        pipeline = TimedPipeline(service(number))
        await pipeline.start()
        for turn in range(args.turns + WARM_UP):
            await asyncio.sleep(rng.uniform(0.5, 1.5) * args.pause)
            began = loop.time()
            await pipeline.turn(KNOWN if rng.random() < hits else OTHER)
            if turn >= WARM_UP:
                waits.append(loop.time() - began)
        await pipeline.stop()

    await asyncio.gather(*(call(number) for number in range(args.callers)))
    extra = sum(len(report.attempts) for report in reports) / max(len(reports), 1)
    asked = sum(report.known_answer is None for report in reports) / max(len(reports), 1)
    return waits, extra - asked if budget is not None else 0.0


def row(name: str, waits: Sequence[float], extra: float, with_floor: Sequence[float]) -> str:
    """Format a row; all but the second p50 is under the profile's assumption."""
    p50, p95, p99 = 1_000 * np.quantile(waits, (0.5, 0.95, 0.99))
    other_p50 = 1_000 * np.median(with_floor)
    return f"{name:26}{p50:6.0f} {other_p50:10.0f} {p95:6.0f} {p99:6.0f} ms   +{100 * extra:.0f} %"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("callers", 20), ("turns", 250), ("capacity", 12), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--pause", type=float, default=3.0, help="seconds between turns")
    parser.add_argument("--budget", type=float, default=0.25)
    args = parser.parse_args()
    logger.remove()
    print(f"{args.callers} callers, each provider serves {args.capacity} at once")
    print(f"{'':26}{'p50':>6} {'with floor':>10} {'p95':>6} {'p99':>6}      requests")
    arms = [("bare service", None, 0.0), (f"hedged {args.budget:.0%}", args.budget, 0.0)]
    arms += [
        (f"hedged {args.budget:.0%}, {hits:.0%} known", args.budget, hits)
        for hits in (0.2, 0.3, 0.4)
    ]
    for name, budget, hits in arms:
        with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            found = runner.run(measured(budget, hits, args))
            with_floor, _ = runner.run(measured(budget, hits, args, FLOOR))
        print(row(name, *found, with_floor))
    p50, p95, p99 = REPORTED_MS
    print(f"{'the report, after its work':26}{p50:6} {'':10} {p95:6} {p99:6} ms")


if __name__ == "__main__":
    main()
