"""Creates an example turn log: `python -m scripts.example_turns out/turns.jsonl`.

Twelve callers talk to a bot for an hour; its first provider is slow for five minutes. The service,
the policy and its learning are real, in virtual time. The providers are simulated, with the
published latencies of claude-haiku-4-5 and gpt-4.1. It takes some seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.providers import PROFILES, LatencyProfile
from pipecat_hedge.race import Tier
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import TurnLines
from pipecat_hedge.testing import AutojumpLoop, Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.bench import TimedPipeline

BEGIN_AT = 1_772_456_400.0
"""2 March 2026, 13:00 UTC."""
SECS = 3600.0
SLOW_FROM_SECS, SLOW_UNTIL_SECS, SLOW_TIMES = 1320.0, 1620.0, 6.0
"""From 13:22 to 13:27 the first provider takes six times as long."""
STANDARD: Sequence[Tier] = ("standard",) * 9
TIERS: Sequence[Tier] = ("premium", *STANDARD, "economy", "economy")
PAUSE_SECS = (18.0, 42.0)
FAILURES = 0.004
ANSWER = (
    "Yes, we are open until nine.",
    " The kitchen closes half an hour before that, so do come by in time.",
)
QUESTION = "Are you open? "
QUESTION_TIMES = (250, 700)
"""A prompt of about 900 to 2,400 tokens."""
PROVIDERS = (
    ("haiku", "claude-haiku-4-5", (1.0, 5.0)),
    ("gpt", "gpt-4.1", (2.0, 8.0)),
)
"""Names, profiles, and US dollars per million tokens."""


@dataclass(frozen=True, slots=True)
class Hour:
    """The parameters of a log.

    Parameters:
        secs: The duration.
        slow_from: When the first provider becomes slow.
        slow_until: When it recovers.
        slow_times: The factor on its latencies in between.
        policy: The hedging policy.
        seed: The same seed gives the same log.
    """

    secs: float = SECS
    slow_from: float = SLOW_FROM_SECS
    slow_until: float = SLOW_UNTIL_SECS
    slow_times: float = SLOW_TIMES
    policy: HedgePolicy = dataclasses.field(default_factory=lambda: HedgePolicy.adaptive(0.1))
    seed: int = 1


class _Provider(ScriptedLLMService):
    """A provider with a profile's latencies, and a slow period."""

    def __init__(
        self, profile: LatencyProfile, slowness: Callable[[float], float], rng: random.Random
    ):
        usage = LLMTokenUsage(prompt_tokens=0, completion_tokens=0, total_tokens=0)
        super().__init__([Say("")], model=profile.name, usage=usage)
        self._profile, self._slowness, self._rng = profile, slowness, rng

    async def _play(self, script: Sequence[Step], context: LLMContext) -> None:
        prompt = sum(len(str(message)) for message in context.get_messages()) // 4
        self._usage = LLMTokenUsage(
            prompt_tokens=prompt, completion_tokens=22, total_tokens=prompt + 22
        )
        await super()._play(self._steps(), context)

    def _steps(self) -> list[Step]:
        now = asyncio.get_running_loop().time()
        if self._rng.random() < FAILURES:
            return [Wait(self._rng.uniform(0.1, 0.4)), Error(category=ErrorCategory.SERVER)]
        first = self._profile.sample(self._rng) * self._slowness(now)
        steps: list[Step] = [Wait(first)]
        for sentence in ANSWER:
            pause = len(sentence.split()) / self._profile.tokens_per_sec
            steps += [Say(sentence[:4]), Wait(pause), Say(sentence[4:])]
        return steps


async def play_hour(hour: Hour, write: Callable[[dict[str, Any]], None]) -> None:
    """Run all callers.

    Args:
        hour: The parameters.
        write: Gets each line of the log, as ``HedgedLLMService(turn_log=...)`` writes it.
    """
    stats, rng = ProviderStats(), random.Random(hour.seed)

    def slowness(now: float) -> float:
        return hour.slow_times if hour.slow_from <= now < hour.slow_until else 1.0

    async def call(tier: Tier, number: int) -> None:
        mine = random.Random(rng.random())
        llms = [
            Provider(
                name,
                _Provider(
                    PROFILES[profile],
                    slowness if name == PROVIDERS[0][0] else lambda now: 1.0,
                    random.Random(mine.random()),
                ),
                usd_per_mtok=usd,
            )
            for name, profile, usd in PROVIDERS
        ]
        lines = TurnLines(hour.policy, f"caller-{number + 1}")
        llm = HedgedLLMService(llms, policy=hour.policy, stats=stats, tier=tier, warm=False)

        @llm.event_handler("on_turn_report")
        async def _reported(_: object, report: TurnReport) -> None:
            at = BEGIN_AT + asyncio.get_running_loop().time()
            write(lines.line(report, at))

        line = TimedPipeline(llm)
        await line.start()
        await asyncio.sleep(mine.uniform(0, PAUSE_SECS[1]))
        while asyncio.get_running_loop().time() < hour.secs:
            await line.turn(QUESTION * mine.randint(*QUESTION_TIMES), 60.0)
            await asyncio.sleep(mine.uniform(*PAUSE_SECS))
        await line.stop()

    await asyncio.gather(*(call(tier, number) for number, tier in enumerate(TIERS)))


def write_log(path: Path, hour: Hour) -> int:
    """Write a log; returns the number of its turns."""
    lines = list[dict[str, Any]]()
    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        runner.run(play_hour(hour, lines.append))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return len(lines)


def main() -> int:
    """Write the log; returns the exit status."""
    parser = argparse.ArgumentParser(description="Make a turn log with five slow minutes in it.")
    parser.add_argument("path", type=Path, nargs="?", default=Path("out/turns.jsonl"))
    parser.add_argument("--secs", type=float, default=SECS, help="duration")
    parser.add_argument("--calm", action="store_true", help="without the slow minutes")
    parser.add_argument("--bare", action="store_true", help="one request a turn")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logger.remove()
    bare = HedgePolicy.fallback(1, stall_secs=None)
    policy = bare if args.bare else HedgePolicy.adaptive(0.1)
    hour = Hour(args.secs, slow_times=1.0 if args.calm else SLOW_TIMES, policy=policy)
    count = write_log(args.path, dataclasses.replace(hour, seed=args.seed))
    print(f"{args.path}: {count} turns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
