"""One provider is silent, the other one rejects for load or fails once: it is asked again.

Over real sockets, with Pipecat's services of both wires; bare beside hedged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pipecat_hedge import HedgePolicy
from tests.live.scripted_provider import (
    HANGS,
    RESETS,
    Call,
    Case,
    Reply,
    ScriptedProvider,
    together,
)

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(150)]

WIRES = ["openai", "anthropic"]
SDK_RETRIES = 2
FAULTS = {
    "529": Reply(status=529),
    "500": Reply(status=500),
    "503": Reply(status=503),
    "reset": RESETS,
}
POLICIES: dict[str, Callable[[], HedgePolicy]] = {
    "adaptive": HedgePolicy.adaptive,
    "race(2)": HedgePolicy.race,
    "after(0.5)": lambda: HedgePolicy.after(0.5),
    "fallback": HedgePolicy.fallback,
}
HEDGE_SECS = {"adaptive": 3.5, "race(2)": 0.0, "after(0.5)": 0.5, "fallback": 3.0}
"""How long a cold first provider may be silent before the second one is asked."""
RETRY_SECS = 4.0
"""The longest wait for the retry: the SDK's pause, or the p95 of a silent provider that is cold."""
SLACK_SECS = 1.0


def pair(wire: str, *, silent_first: bool) -> tuple[ScriptedProvider, ScriptedProvider]:
    """The providers in their order: ``s`` is silent, ``w`` works but for its faults."""
    silent, working = ScriptedProvider("s", wire, HANGS), ScriptedProvider("w", wire)
    return (silent, working) if silent_first else (working, silent)


def works(call: Call) -> ScriptedProvider:
    return next(provider for provider in call.providers if provider.name == "w")


def order_of(silent_first: bool) -> str:
    return "silent first" if silent_first else "silent second"


def once(wire: str, fault: str, policy: str, silent_first: bool) -> Case:
    providers = pair(wire, silent_first=silent_first)
    most_secs = RETRY_SECS + SLACK_SECS + (HEDGE_SECS[policy] if silent_first else 0.0)

    async def steps(call: Call) -> None:
        works(call).once = [FAULTS[fault]]
        turn = await call.ask(limit_secs=10)
        call.expect(turn.waited(most_secs), f"the turn is answered within {most_secs} s")
        call.expect(works(call).asked(1) == 2, "by one retry")
        call.expect(call.asked(1).count("s") == 1, "and the silent one is asked once")
        call.expect((turn.framing[:1], turn.framing[-1:]) == ("<", ">"), "framed once")

    name = f"{wire}, {fault}, {policy}, {order_of(silent_first)}"
    return Case(name, steps, providers, POLICIES[policy]())


def bare(wire: str, fault: str) -> Case:
    async def steps(call: Call) -> None:
        works(call).once = [FAULTS[fault]]
        call.expect((await call.ask()).waited(2.0), "bare retries")

    return Case(f"{wire}, {fault}, bare", steps, [ScriptedProvider("w", wire)], bare=True)


@pytest.mark.parametrize("wire", WIRES)
async def test_rejection_beside_a_silence_is_retried(wire: str) -> None:
    cells = itertools.product(FAULTS, POLICIES, (True, False))
    await together(*(bare(wire, fault) for fault in FAULTS), *(once(wire, *cell) for cell in cells))


# ---- what is known of the silent one: it usually answers at once


def learned(wire: str, fault: str, policy: str, silent_first: bool) -> Case:
    providers = pair(wire, silent_first=silent_first)

    async def steps(call: Call) -> None:
        for provider in call.providers:
            provider.reply = Reply()
        # Each is first by turns, so that both have been measured.
        for turn in range(6):
            call.providers[0].reply = Reply(first_secs=0.1 if turn % 2 else 0.7)
            await call.ask()
        call.providers[0].reply = call.providers[1].reply = Reply()
        next(p for p in call.providers if p.name == "s").reply = HANGS
        works(call).once = [FAULTS[fault]]
        turn = await call.ask(limit_secs=6)
        call.expect(turn.waited(3.5), "answered within 3.5 s")
        call.expect(works(call).asked(7) == 2, "by one retry")

    name = f"{wire}, {fault}, {policy}, {order_of(silent_first)}, learned"
    return Case(name, steps, providers, POLICIES[policy]())


async def test_retry_is_soon_when_the_silent_one_usually_is_quick() -> None:
    cells = itertools.product(WIRES, ("529", "reset"), ("race(2)", "after(0.5)"), (True, False))
    await together(*(learned(*cell) for cell in cells))


# ---- how many requests, and when


def forever(wire: str, fault: str, policy: str, silent_first: bool) -> Case:
    """The silent one never answers, the other one always fails: the SDK's number of requests."""
    providers = pair(wire, silent_first=silent_first)

    async def steps(call: Call) -> None:
        works(call).reply = FAULTS[fault]
        await call.ask(limit_secs=9)
        asked = works(call).asked(1)
        call.expect(asked == 1 + SDK_RETRIES, f"asked as its SDK would, not {asked} times")
        most = 2 + 2 - 1 + 2 * SDK_RETRIES
        call.expect(len(call.asked(1)) <= most, f"at most {most} requests")

    name = f"{wire}, {fault} always, {policy}, {order_of(silent_first)}"
    return Case(name, steps, providers, POLICIES[policy]())


def retry_after(wire: str, policy: str, silent_first: bool, value: str) -> Case:
    providers = pair(wire, silent_first=silent_first)

    async def steps(call: Call) -> None:
        works(call).once = [Reply(status=529, retry_after=value)]
        turn = await call.ask(limit_secs=11)
        call.expect(turn.wait_secs is not None, "the turn is answered")
        times = [request.at for request in works(call).requests]
        is_kept = len(times) == 2 and times[1] - times[0] >= float(value) - 0.02
        call.expect(is_kept, f"by one retry, after Retry-After: {value}")

    name = f"{wire}, {policy}, Retry-After: {value}, {order_of(silent_first)}"
    return Case(name, steps, providers, POLICIES[policy]())


def about_to_answer(wire: str, fault: str, first_secs: float, silent_first: bool) -> Case:
    providers = pair(wire, silent_first=silent_first)

    async def steps(call: Call) -> None:
        for provider in call.providers:
            if provider.name == "s":
                provider.reply = Reply(first_secs=first_secs)
        works(call).once = [FAULTS[fault]]
        turn = await call.ask()
        call.expect(turn.waited(first_secs + SLACK_SECS), "the turn is answered")
        call.expect(sorted(call.asked(1)) == ["s", "w"], "without a third request")

    name = f"{wire}, {fault} beside an answer after {first_secs} s, {order_of(silent_first)}"
    return Case(name, steps, providers, HedgePolicy.race(2))


async def test_retries_beside_a_silence_are_as_an_sdk_would_send_them() -> None:
    orders = (True, False)
    always = itertools.product(WIRES, ("529", "reset"), ("race(2)", "after(0.5)"), orders)
    header = itertools.product(WIRES, POLICIES, orders, ("2",))
    await together(*(forever(*cell) for cell in always), *(retry_after(*cell) for cell in header))


async def test_failure_beside_an_answer_that_comes_needs_no_third_request() -> None:
    cells = itertools.product(WIRES, FAULTS, (0.3,), (True, False))
    await together(*(about_to_answer(*cell) for cell in cells))


# ---- a whole call: one hangs, the other one rejects every tenth request

TURNS = 20


def long_call(policy: str | None, silent_first: bool) -> Case:
    providers = pair("openai", silent_first=silent_first)
    if policy is None:
        providers = tuple(provider for provider in providers if provider.name == "w")

    async def steps(call: Call) -> None:
        well = works(call)
        faults = [Reply(status=529), *[Reply()] * 9]
        well.once = [Reply(), Reply(), *faults * 6]
        await call.ask(TURNS)
        lost = call.waits.count(None)
        call.expect(not lost, f"{lost} of {TURNS} turns are lost")

    name = f"{policy or 'bare'}, {TURNS} turns, {order_of(silent_first)}"
    made = None if policy is None else POLICIES[policy]()
    return Case(name, steps, providers, made, bare=policy is None)


async def test_no_turn_is_lost_beside_a_hung_provider_with_rare_rejections() -> None:
    policies = (None, "adaptive", "race(2)", "after(0.5)")  # fallback would wait 3 s in each turn
    cells = itertools.product(policies, (True, False))
    await together(*(long_call(*cell) for cell in cells))
