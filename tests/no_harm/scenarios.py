"""The scenarios: what happens while callers of all arms make turns. Times are in seconds.

``pace`` multiplies how long they last. Each names its models after itself: one that uses the same
providers later meets their first draws, and finds nothing that is known of a model by its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlsplit

from pipecat_hedge.policy import HedgePolicy
from tests.no_harm.conditions import (
    block_loop,
    busy_neighbours,
    in_background,
    keep_loop_busy,
    network,
)
from tests.no_harm.figures import Comparison
from tests.no_harm.provider import ProviderProcess, Providers
from tests.no_harm.side_by_side import Arm, Target, model, side_by_side, usual_arms

LATE_SECS = 0.05
WINNER_SECS = 0.1
LOSERS_LATE = "losers open for more than 50 ms after losing"
TOKENS_SENT = "tokens sent to losers"
TOKENS_REPORTED = "tokens of losers in the reports"


async def blip(providers: Providers, pace: float = 1.0) -> Comparison:
    """Our own network is down for 3 s: every connection is reset, to both providers."""
    one, two = providers
    name = model("gpt-4.1", region="blip")
    async with network(_port(one)) as to_one, network(_port(two)) as to_two:
        targets = {
            "p1": Target(f"http://127.0.0.1:{to_one.port}/v1", name),
            "p2": Target(f"http://127.0.0.1:{to_two.port}/v1", name),
        }
        arms = usual_arms()
        async with side_by_side(arms, targets, callers=10) as run:
            await run.phase("calm", 5 * pace)
            to_one.go_down()
            to_two.go_down()
            await run.phase("blip", 3)
            to_one.come_back()
            to_two.come_back()
            await run.phase("after", 15 * pace)
    return run.result


async def thinking(
    providers: Providers, pace: float = 1.0, policy: HedgePolicy | None = None
) -> Comparison:
    """Nothing fails; both models think for 3.5 to 6.5 s before a quarter of their answers."""
    arms = usual_arms(policy or HedgePolicy.adaptive(0.05))
    targets = _targets(providers, model("two-humped", region="thinking"))
    async with side_by_side(arms, targets, callers=30) as run:
        await run.phase("all", 60 * pace)
    return run.result


async def thinking_fallback(providers: Providers, pace: float = 1.0) -> Comparison:
    """The same under the policy that asks another provider only when one fails."""
    return await thinking(providers, pace=pace, policy=HedgePolicy.fallback())


async def neighbours(providers: Providers, pace: float = 1.0) -> Comparison:
    """Six other processes keep this machine's processors busy."""
    targets = _targets(providers, model("gpt-4.1", region="neighbours"))
    async with side_by_side(usual_arms(), targets, callers=20) as run:
        with busy_neighbours(6):
            await run.phase("all", 30 * pace)
    return run.result


async def blocked_loop(providers: Providers, pace: float = 1.0) -> Comparison:
    """Something blocks the event loop for 0.5 s, every 3 s; then again and again.

    Twice as many callers saturate what is left of a slow machine's loop by themselves.
    """
    targets = _targets(providers, model("gpt-4.1", region="blocked_loop"))
    async with side_by_side(usual_arms(), targets, callers=10) as run:
        async with in_background(block_loop(0.5, 3.0)):
            await run.phase("every 3 s", 18 * pace)
        async with in_background(block_loop(0.5, 0.6)):
            await run.phase("in a row", 12 * pace)
    return run.result


async def busy_loop(providers: Providers, pace: float = 1.0) -> Comparison:
    """Something keeps the event loop busy for two thirds of its time, in short or long steps.

    The hedged callers are those of the lowest tier, the first whom a service in need turns away.
    """
    targets = _targets(providers, model("gpt-4.1", region="busy_loop"))
    async with side_by_side(usual_arms(tier="economy"), targets, callers=10) as run:
        async with in_background(keep_loop_busy(0.02, 0.01)):
            await run.phase("short", 15 * pace)
        async with in_background(keep_loop_busy(0.3, 0.15)):
            await run.phase("long", 20 * pace)
    return run.result


async def spell(
    providers: Providers, pace: float = 1.0, burners: int = 0, after_secs: float = 60.0
) -> Comparison:
    """The first provider turns slow (3 to 5 s) and never fails; the other one stays well."""
    enough, arms, (one, _) = round(500 * pace), usual_arms(with_alone=False), providers
    targets = _targets(providers, model("steady", region="spell"))
    async with side_by_side(arms, targets, callers=20) as run:
        with busy_neighbours(burners):
            await run.phase("calm", 15)
            await asyncio.to_thread(one.set_conditions, slow=10)
            await run.phase("spell", 150, lambda: run.turns_of("hedged", "spell") >= enough)
            await asyncio.to_thread(one.set_conditions)
            await run.phase("after", after_secs * pace)
    return run.result


async def spell_busy(providers: Providers, pace: float = 1.0) -> Comparison:
    """The same beside two processes that keep the machine busy."""
    return await spell(providers, pace=pace, burners=2)


async def trace(providers: Providers, pace: float = 1.0, burners: int = 0) -> Comparison:
    """Both providers have a p50 of 0.26 s and a p99 of 3 s, independently. 1000 turns an arm."""
    arms, think_secs = usual_arms(with_alone=False), (0.4, 0.8)
    targets = _targets(providers, model("long-tail", region="trace"))
    async with side_by_side(arms, targets, callers=20, think_secs=think_secs) as run:
        with busy_neighbours(burners):
            await run.phase("first", 15 * pace)
            await run.phase("learned", 55 * pace)
    return run.result


async def trace_busy(providers: Providers, pace: float = 1.0) -> Comparison:
    """The same beside four processes that keep the machine busy."""
    return await trace(providers, pace=pace, burners=4)


async def race_losers(providers: Providers, pace: float = 1.0) -> Comparison:
    """One caller races both; the second provider loses every time. When is its request closed?"""
    enough = round(200 * pace)
    arm = Arm("hedged", ("p1", "p2"), HedgePolicy.race(2))
    one, two = providers
    targets = {
        "p1": Target(
            one.openai_url, model("fixed", ttft=WINNER_SECS, tps=40, region="race_losers")
        ),
        "p2": Target(two.openai_url, model("fixed", ttft=0.6, tps=5, region="race_losers")),
    }
    async with side_by_side([arm], targets, callers=1, think_secs=(0.0, 0.02)) as run:
        await run.phase("all", 200, lambda: run.turns_of("hedged", "all") >= enough)
    won, lost = (each.ledger(wait_secs=5)["requests"] for each in providers)
    run.result.counts = _losers(run.result, won, lost)
    return run.result


def _losers(
    result: Comparison, won: list[dict[str, Any]], lost: list[dict[str, Any]]
) -> dict[str, int]:
    """What the losers' provider recorded, beside what the reports say.

    Both requests of a turn are sent at the same time, so what a loser's request lasted beyond the
    winner's time to first token is how long it was still open after it had lost.
    """
    late_secs = [
        (b["ended_secs"] - b["started_secs"]) - (a["first_token_secs"] - a["started_secs"])
        for a, b in zip(won, lost, strict=len(won) == len(lost))
        if a["first_token_secs"] is not None and b["ended_secs"] is not None
    ]
    attempts = [a for t in result.turns if t.report is not None for a in t.report.attempts]
    return {
        LOSERS_LATE: sum(secs > LATE_SECS for secs in late_secs),
        "milliseconds that the latest loser was open after losing": round(1e3 * max(late_secs)),
        TOKENS_SENT: sum(b["tokens_sent"] for b in lost),
        TOKENS_REPORTED: sum(a.output_tokens or 0 for a in attempts if a.outcome == "superseded"),
    }


def _targets(providers: Providers, name: str) -> dict[str, Target]:
    """Both providers, with the same model; so they behave alike."""
    return {f"p{n}": Target(each.openai_url, name) for n, each in enumerate(providers, 1)}


def _port(provider: ProviderProcess) -> int:
    port = urlsplit(provider.url).port
    assert port is not None
    return port


SCENARIOS: dict[str, Callable[..., Coroutine[Any, Any, Comparison]]] = {
    scenario.__name__: scenario
    for scenario in (
        blip,
        thinking,
        thinking_fallback,
        neighbours,
        blocked_loop,
        busy_loop,
        spell,
        spell_busy,
        trace,
        trace_busy,
        race_losers,
    )
}
"""By its name, every scenario."""
