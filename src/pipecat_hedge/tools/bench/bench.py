"""Side by side, in one run, over real sockets: what hedging does for a caller, and what it costs.

Everything is compared on the same simulated providers at the same time, so that a slow spell of the
machine falls on all. Each arrangement has calls of its own, some of them at once, which make one
turn after the other; timed is what a text-to-speech would see, from the context frame to the first
text frame. Requests and tokens are counted at the provider's end, in the simulator's ledger, where
the retries that an SDK makes by itself show too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from loguru import logger
from pipecat.pipeline.llm_switcher import LLMSwitcher
from pipecat.pipeline.service_switcher import ServiceSwitcherStrategyFailover
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.testing import ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.bench.overhead import learned_stats, measure
from pipecat_hedge.tools.bench.timed_pipeline import TimedPipeline, answered_within
from pipecat_hedge.tools.simulator.process import SimulatorProcess

__all__ = ["Measured", "configure", "run"]

LOCAL = "qwen3.8-27b-local"
PROFILES = {
    "gemma-4-31b-baseten": "gemma-4-31b-baseten",
    "gpt-4.1": "gpt-4.1",
    "jagged": "jagged",
    "gemma-…, 1 % faults": "gemma-4-31b-baseten?fault=error_in_band&rate=0.01",
}
"""What is shown, and the simulator's model that stands for it. No SDK hides that fault."""
ANSWER = "Yes, we are open until nine. Do come by!"
GIVE_UP_SECS = 60.0

Build = Callable[[str, str, ProviderStats], FrameProcessor]
"""Makes an arrangement of the simulator's address and a model, with what its calls learn."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One arrangement on one profile.

    Parameters:
        profile: The provider.
        arrangement: What stands in the pipeline.
        turns: How many turns were made.
        p50_secs: The median time to first token, in seconds; so on for the others. None is never.
        p95_secs: The 95th percentile.
        p99_secs: The 99th percentile.
        max_secs: The slowest.
        unanswered: Turns without an answer.
        extra_requests: Requests beyond one a turn, per turn, as the providers counted them.
        wasted_tokens: Tokens of prompts and answers of requests that were not completed, per turn.
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


def _openai(url: str, model: str, tag: str) -> LLMService[Any]:
    sign = "&" if "?" in model else "?"
    return OpenAILLMService(
        api_key="any",
        base_url=url,
        settings=OpenAILLMService.Settings(model=f"{model}{sign}answer={quote(ANSWER + tag)}"),
    )


def _bare(url: str, model: str, stats: ProviderStats) -> FrameProcessor:
    return _openai(url, model, " A")


def _switcher(url: str, model: str, stats: ProviderStats) -> FrameProcessor:
    services = [_openai(url, model, " B"), _openai(url, model, " B")]
    return LLMSwitcher(services, ServiceSwitcherStrategyFailover)


def _race(url: str, model: str, stats: ProviderStats) -> FrameProcessor:
    services = [_openai(url, model, " C"), _openai(url, model, " C")]
    return HedgedLLMService([Provider("hosted", services)], policy=HedgePolicy.race(2), stats=stats)


def _adaptive(url: str, model: str, stats: ProviderStats) -> FrameProcessor:
    services = [_openai(url, model, " D"), _openai(url, model, " D")]
    return HedgedLLMService(
        [Provider("hosted", services)], policy=HedgePolicy.adaptive(0.05), stats=stats
    )


def _with_local(url: str, model: str, stats: ProviderStats) -> FrameProcessor:
    return HedgedLLMService(
        [
            Provider("hosted", _openai(url, model, " E")),
            Provider("local", _openai(url, LOCAL, " E")),
        ],
        policy=HedgePolicy.adaptive(0.05),
        stats=stats,
    )


ARRANGEMENTS: dict[str, tuple[str, Build]] = {
    "bare service": (" A", _bare),
    "LLMSwitcher, failover": (" B", _switcher),
    "race(2)": (" C", _race),
    "adaptive(5 %)": (" D", _adaptive),
    "adaptive(5 %), local second": (" E", _with_local),
}


async def _call(
    llm: FrameProcessor, turns: int, taken: Callable[[float], None], after_secs: float
) -> None:
    """Make a call of so many turns; each one's time to first token is taken."""
    await asyncio.sleep(after_secs)  # calls do not begin in step
    line = TimedPipeline(llm)
    await line.start()
    try:
        for _ in range(turns):
            taken((await line.turn("Are you open?", GIVE_UP_SECS)).ttft_secs)
    finally:
        await line.stop()


async def _profile(
    name: str, url: str, turns: int, calls: int, taken: Callable[[], None]
) -> dict[str, list[float]]:
    """Every arrangement on one profile, at once; each one's times."""
    rng = random.Random(1)
    times: dict[str, list[float]] = {}
    async with TaskScope() as scope:
        tasks: list[asyncio.Task[None]] = []
        for arrangement, (_, build) in ARRANGEMENTS.items():
            mine = times[arrangement] = []
            stats = ProviderStats()

            def took(secs: float, mine: list[float] = mine) -> None:
                mine.append(secs)
                taken()

            for _ in range(calls):
                llm = build(url, PROFILES[name], stats)
                call = _call(llm, turns // calls, took, rng.random())
                tasks.append(scope.start(call, name=f"{arrangement} on {name}"))
        await asyncio.gather(*tasks)
    return times


def _sum_up(
    profile: str, arrangement: str, secs: Sequence[float], requests: Sequence[dict[str, Any]]
) -> Measured:
    mine = [r for r in requests if r["model"].endswith(quote(ARRANGEMENTS[arrangement][0]))]
    wasted = [r for r in mine if r["outcome"] != "completed"]
    return Measured(
        profile,
        arrangement,
        len(secs),
        answered_within(secs, 0.5),
        answered_within(secs, 0.95),
        answered_within(secs, 0.99),
        answered_within(secs, 1.0),
        sum(math.isinf(value) for value in secs),
        len(mine) / len(secs) - 1,
        sum(r["prompt_tokens"] + r["tokens_sent"] for r in wasted) / len(secs),
    )


# ---- what it costs


def _play_switcher(script: Sequence[Step]) -> FrameProcessor:
    return LLMSwitcher(
        [ScriptedLLMService(script), ScriptedLLMService(script)], ServiceSwitcherStrategyFailover
    )


def _play(policy: HedgePolicy) -> Callable[[Sequence[Step]], FrameProcessor]:
    def build(script: Sequence[Step]) -> FrameProcessor:
        providers = [
            Provider("a", ScriptedLLMService(script)),
            Provider("b", ScriptedLLMService([Wait(9)])),
        ]
        return HedgedLLMService(providers, policy=policy, stats=learned_stats(["a", "b"]))

    return build


async def _overheads(rounds: int) -> dict[str, tuple[float, float]]:
    """Seconds per turn and per token that each adds to the bare service, and what that takes."""
    builds = {
        "LLMSwitcher, failover": _play_switcher,
        "race(2)": _play(HedgePolicy.race(2)),
        "adaptive(5 %)": _play(HedgePolicy.adaptive(0.05)),
    }
    found: dict[str, tuple[float, float]] = {}
    for name, build in builds.items():
        cost = await measure(rounds, build)
        found.setdefault("bare service", (cost.bare_turn_secs, cost.bare_token_secs))
        found[name] = (cost.turn_secs, cost.token_secs)
    found["adaptive(5 %), local second"] = found["adaptive(5 %)"]
    return found


# ---- the command


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments.

    Args:
        parser: The command's parser.
    """
    parser.add_argument(
        "--turns", type=int, default=400, help="turns of each arrangement on each (default 400)"
    )
    parser.add_argument(
        "--calls", type=int, default=8, help="calls of each arrangement at once (default 8)"
    )
    parser.add_argument(
        "--profile", action="append", choices=sorted(PROFILES), help="one of them; may be repeated"
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="rounds of the overhead (default 30)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the simulated providers")
    parser.add_argument(
        "--out", type=Path, default=Path("bench.json"), help="the figures (default bench.json)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the comparison, print it and keep it.

    Args:
        args: The command line.

    Returns:
        The exit status.
    """
    if args.calls < 1 or args.turns < args.calls or args.rounds < 1:
        print("pipecat-hedge bench: --turns must be at least --calls, and all at least 1")
        return 2
    if not args.out.parent.is_dir():
        print(f"pipecat-hedge bench: --out: there is no folder {args.out.parent}: make it first")
        return 2
    logger.remove()  # a bench that fails a request in a hundred is not to fill the screen
    measured: list[Measured] = []
    profiles = args.profile or list(PROFILES)
    errors = Console(stderr=True)
    with (
        SimulatorProcess(seed=args.seed) as sim,
        Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar,
    ):
        for profile in profiles:
            task = bar.add_task(profile, total=len(ARRANGEMENTS) * args.turns)
            sim.clear_ledger()
            times = asyncio.run(
                _profile(
                    profile,
                    sim.openai_url,
                    args.turns,
                    args.calls,
                    lambda task=task: bar.advance(task),
                )
            )
            requests = sim.ledger(wait_secs=5)["requests"]
            measured += [_sum_up(profile, name, secs, requests) for name, secs in times.items()]
    overheads = asyncio.run(_overheads(args.rounds))
    _show(measured, overheads)
    _keep(args, measured, overheads)
    print(f"kept in {args.out}")
    return 0


def _show(measured: Sequence[Measured], overheads: dict[str, tuple[float, float]]) -> None:
    table = Table(title="time to first token, over real sockets", title_justify="left")
    for name in ("profile", "arrangement"):
        table.add_column(name, no_wrap=True)
    for name in ("p50", "p95", "p99", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("no answer", "extra requests", "wasted tokens", "µs a token", "ms a turn"):
        table.add_column(name, justify="right")
    last = ""
    for row in measured:
        turn_secs, token_secs = overheads[row.arrangement]
        is_bare = row.arrangement == "bare service"
        table.add_row(
            row.profile if row.profile != last else "",
            row.arrangement,
            *(_ms(secs) for secs in (row.p50_secs, row.p95_secs, row.p99_secs, row.max_secs)),
            str(row.unanswered),
            f"{row.extra_requests:+.1%}",
            f"{row.wasted_tokens:.1f}",
            f"{1e6 * token_secs:.1f}" if is_bare else f"{1e6 * token_secs:+.1f}",
            f"{1e3 * turn_secs:.2f}" if is_bare else f"{1e3 * turn_secs:+.2f}",
            end_section=row is measured[-1]
            or measured[measured.index(row) + 1].profile != row.profile,
        )
        last = row.profile
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(table)


def _ms(secs: float | None) -> str:
    if secs is None:
        return "never"
    return f"{1000 * secs:.0f} ms" if secs < 1 else f"{secs:.2f} s"


def _keep(
    args: argparse.Namespace,
    measured: Sequence[Measured],
    overheads: dict[str, tuple[float, float]],
) -> None:
    kept = {
        "commit": _commit(),
        "turns": args.turns,
        "calls": args.calls,
        "seed": args.seed,
        "measured": [asdict(row) for row in measured],
        "overhead": {
            name: {"turn_secs": turn, "token_secs": token}
            for name, (turn, token) in overheads.items()
        },
    }
    args.out.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def _commit() -> str | None:
    """The commit that is measured, marked if the package differs from it; None outside of one."""
    commit = _git("describe", "--always", "--abbrev=12")
    return f"{commit}-dirty" if commit and _git("status", "--porcelain", "--", ".") else commit


def _git(*arguments: str) -> str | None:
    told = subprocess.run(
        ["git", *arguments],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout.strip() or None
