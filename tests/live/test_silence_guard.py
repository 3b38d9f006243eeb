"""Silence has a bound: the next provider is asked in time, and sooner after each silence.

Over real sockets, with Pipecat's services of both wires. The first provider of a cold process is
silent, slow, or thinks; the second one answers after 0.3 s.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pipecat_hedge import HedgePolicy
from tests.live.scripted_provider import HANGS, Call, Case, Reply, ScriptedProvider, together

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(180)]

WIRES = ["openai", "anthropic"]
GUARD_SECS, SOON_SECS, SECOND_SECS = 3.0, 1.5, 0.3
"""The guard; the guard after a silence; the second provider's time."""
SLACK_SECS = 2.0
KEEPS_ALIVE = Reply("keeps alive")
POLICIES: dict[str, Callable[..., HedgePolicy]] = {
    "default": HedgePolicy.adaptive,
    "budget=0": lambda **options: HedgePolicy.adaptive(0, **options),
    "fallback": HedgePolicy.fallback,
}
BOUNDS = {"fallback": (GUARD_SECS, GUARD_SECS)}
"""How long the first and the second silence may last, where the policy says so."""


def pair(wire: str, first: Reply) -> tuple[ScriptedProvider, ScriptedProvider]:
    second = ScriptedProvider("b", wire, Reply(first_secs=SECOND_SECS))
    return ScriptedProvider("a", wire, first), second


def expect_first(call: Call, name: str, turns: range) -> None:
    for turn in turns:
        call.expect(call.asked(turn)[:1] == name, f"turn {turn}: {name} is asked first")


def guards(call: Call, turns: range) -> None:
    """After the call: where the first provider was asked first, the guard asked the second."""
    for turn in turns:
        if call.asked(turn)[:1] != "a":
            continue
        reasons = [a.launch_reason for a in call.reports[turn - 1].attempts]
        call.expect(reasons == ["primary", "silence"], f"turn {turn}: launched for {reasons}")


# ---- silent


def silent(wire: str, policy: str, first: Reply, good_turns: int) -> Case:
    providers = pair(wire, first)
    bounds = [*BOUNDS.get(policy, (GUARD_SECS, SOON_SECS)), 0.0, 0.0, 0.0]

    async def steps(call: Call) -> None:
        a = call.providers[0]
        a.reply = Reply(first_secs=SECOND_SECS)
        if good_turns:
            await call.ask(good_turns)
        a.reply = first
        await call.ask(5)
        for n, bound in enumerate(bounds):
            most_secs = bound + SECOND_SECS + SLACK_SECS
            turn = call.turns[good_turns + n]
            call.expect(turn.waited(most_secs), f"silence {n + 1}: within {most_secs} s")
        expect_first(call, "b", range(good_turns + 3, good_turns + 6))

    def after(call: Call) -> None:
        if policy == "budget=0":  # without answers, the first silence is still observed in turn 2
            guards(call, range(good_turns + 1, good_turns + (3 if good_turns else 2)))

    name = f"{wire}, {policy}, {first.end}, after {good_turns} good turns"
    return Case(name, steps, providers, POLICIES[policy](), after=after)


async def test_silence_is_bounded_and_teaches_impatience() -> None:
    await together(
        *(
            silent(wire, policy, HANGS, 3)
            for wire, policy in zip(WIRES, ("fallback", "default"), strict=True)
        ),
        *(silent(wire, "default", KEEPS_ALIVE, 0) for wire in WIRES),
    )


# ---- the user's own order


def obeyed(wire: str, policy: str, how: str) -> Case:
    providers = pair(wire, HANGS)
    options: Any = {"order": "given"} if how == "given" else {"route": lambda _: "a"}

    async def steps(call: Call) -> None:
        await call.ask(5)
        expect_first(call, "a", range(1, 6))
        call.expect(
            call.turns[0].waited(GUARD_SECS + SECOND_SECS + SLACK_SECS), "turn 1: the guard"
        )
        for n, turn in enumerate(call.turns[1:], 2):
            most_secs = SOON_SECS + SECOND_SECS + SLACK_SECS
            call.expect(turn.waited(most_secs), f"turn {n}: within {most_secs} s")

    def after(call: Call) -> None:
        if policy == "budget=0":
            guards(call, range(1, 6))

    made = POLICIES[policy](**options)
    return Case(f"{wire}, {policy}, {how}", steps, providers, made, after=after)


async def test_user_order_is_obeyed_and_guarded() -> None:
    cells = itertools.product(WIRES, ("default", "budget=0"), ("given", "route"))
    await together(*(obeyed(*cell) for cell in cells))


def option(wire: str, silence_secs: float | None) -> Case:
    providers = pair(wire, HANGS)
    options: Any = {"silence_secs": silence_secs}

    async def steps(call: Call) -> None:
        turn = await call.ask(limit_secs=6.0)
        if silence_secs is None:
            call.expect(call.asked(1) == "a", "without a guard nobody else is asked")
        else:
            most_secs = silence_secs + SECOND_SECS + SLACK_SECS
            call.expect(turn.waited(most_secs), f"within {most_secs} s")
            call.expect((turn.wait_secs or 0) >= silence_secs, f"not before {silence_secs} s")

    policy = HedgePolicy.adaptive(0, stall_secs=None, **options)
    return Case(f"{wire}, silence_secs={silence_secs}", steps, providers, policy)


async def test_silence_secs_sets_the_guard() -> None:
    await together(*(option(wire, secs) for wire in WIRES for secs in (4.0, None)))


# ---- slow, thinking, well again: each lasts half a minute or more, so all at a time


def slow(wire: str, policy: str, first_secs: float) -> Case:
    """Slow is not silent: its time is learned, and it keeps its place."""
    providers = pair(wire, Reply(first_secs=first_secs))

    async def steps(call: Call) -> None:
        await call.ask(6, pause_secs=1.5)
        call.expect(all(turn.waited(first_secs + 1.0) for turn in call.turns), "nobody is lost")
        expect_first(call, "a", range(4, 7))

    return Case(f"{wire}, {policy}, {first_secs} s", steps, providers, POLICIES[policy]())


def thinks(wire: str, budget: float) -> Case:
    """A model that thinks for 4 s in each turn is heard once its time is known."""
    providers = pair(wire, Reply(first_secs=4.0, thinks=True))

    async def steps(call: Call) -> None:
        await call.ask(6, pause_secs=1.5)
        # One that is cut early still thinks when the next turn begins.
        expect_first(call, "a", range(1 if budget == 0 else 3, 7))
        for n, turn in enumerate(call.turns, 1):
            call.expect(turn.waited(4.0 + 1.0), f"turn {n}: answered")
        if budget == 0:  # a silence would be cut short after 1.5 s the next time
            call.expect(
                all((turn.wait_secs or 0) > GUARD_SECS - 0.1 for turn in call.turns),
                "reasoning is no silence",
            )

    def after(call: Call) -> None:
        winners = "".join(report.winner or "-" for report in call.reports)
        least = 3 if budget == 0 else 1
        call.expect(winners[3:].count("a") >= least, f"it is heard: {winners}")

    policy = HedgePolicy.adaptive(budget, order="given")
    return Case(f"{wire}, thinks, budget={budget:g}", steps, providers, policy, after=after)


RECOVERY_SECS = 75.0
"""A breaker's first recovery takes 60 s."""


def recovers(wire: str, policy: str) -> Case:
    providers = pair(wire, HANGS)

    async def steps(call: Call) -> None:
        loop = asyncio.get_running_loop()
        await call.ask(4)
        call.providers[0].reply = Reply()
        well_since, is_back = loop.time(), False
        while not is_back and loop.time() < well_since + RECOVERY_SECS:
            turn = await call.ask(pause_secs=0.3)
            call.expect(turn.waited(SOON_SECS + SECOND_SECS + SLACK_SECS), "no turn waits for it")
            is_back = call.asked(len(call.turns))[:1] == "a"
        print(f"{wire}, {policy}: first again after {loop.time() - well_since:.1f} s")
        call.expect(is_back, f"it is first again within {RECOVERY_SECS} s")
        await call.ask(3)
        last = len(call.turns)
        expect_first(call, "a", range(last - 2, last + 1))
        call.wrong = sorted(set(call.wrong))

    return Case(f"{wire}, {policy}, recovers", steps, providers, POLICIES[policy]())


async def test_slow_keeps_its_place_and_silent_regains_it() -> None:
    await together(
        *(slow(w, p, s) for w, p, s in itertools.product(WIRES, ("default", "budget=0"), (2, 4))),
        *(thinks(wire, budget) for wire, budget in itertools.product(WIRES, (0.0, 0.1))),
        *(recovers(wire, "default") for wire in WIRES),
    )
