"""A rejection is about the request: no provider is lost for it, now or later.

Over real sockets, with Pipecat's services of both wires.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy
from pipecat_hedge.race.errors import AllProvidersFailed
from tests.live.scripted_provider import HANGS, Call, Case, Reply, ScriptedProvider, together
from tests.service.builders import said

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(120)]

WIRES = ["openai", "anthropic"]
QUICK_SECS = 2.0
"""The longest wait for a provider that answers after 0.1 s, and was asked at once.

Less than after a silence of 3 s, also on a busy machine."""
GUARD_SECS = 3.9
"""The longest wait for one that was asked because another was silent for 3 s."""
SDK_RETRIES = 2
POLICIES: dict[str, Callable[..., HedgePolicy]] = {
    "adaptive": HedgePolicy.adaptive,
    "race(2)": HedgePolicy.race,
    "after(0.5)": lambda **options: HedgePolicy.after(0.5, **options),
    "fallback": HedgePolicy.fallback,
}


def rejects(status: int) -> Reply:
    return Reply(status=status)


def pair(wire: str) -> tuple[ScriptedProvider, ScriptedProvider]:
    return ScriptedProvider("a", wire), ScriptedProvider("b", wire)


# ---- one rejection, and then the other provider is in trouble

TROUBLES = ("hangs", "refuses connections", "503", "takes 3 s")


async def trouble(provider: ScriptedProvider, what: str) -> None:
    if what == "refuses connections":
        await provider.shut()
    else:
        replies = {"hangs": HANGS, "503": Reply(status=503), "takes 3 s": Reply(first_secs=3.0)}
        provider.reply = replies[what]


def one_rejection(wire: str, status: int, what: str, policy: str = "adaptive") -> Case:
    a, b = pair(wire)
    a.once = [rejects(status)]

    async def steps(call: Call) -> None:
        await call.ask()
        await trouble(b, what)
        await call.ask(3)
        first, *later = call.turns
        call.expect(first.waited(QUICK_SECS), "the other provider answers the rejected turn")
        call.expect(a.asked(1) == 1, "a prompt is not sent again to who rejected it")
        call.expect(all(turn.wait_secs is not None for turn in later), "no later turn is lost")
        has_silence = what in ("hangs", "takes 3 s")
        call.expect(
            later[0].waited(GUARD_SECS if has_silence else QUICK_SECS),
            "it is asked again in the next turn, when the other one fails or is silent",
        )
        call.expect(later[2].waited(QUICK_SECS), "it is level again after it has answered")
        for turn in range(1, 5):
            most = 2 + 2 - 1 + 2 * SDK_RETRIES
            call.expect(len(call.asked(turn)) <= most, f"turn {turn}: at most {most} requests")

    return Case(f"{wire}, {status}, then b {what}, {policy}", steps, (a, b), POLICIES[policy]())


def bare(wire: str) -> Case:
    a = ScriptedProvider("a", wire, once=[rejects(400)])

    async def steps(call: Call) -> None:
        await call.ask(4)
        call.expect(all(t.waited(QUICK_SECS) for t in call.turns[1:]), "bare loses one turn")

    return Case(f"{wire}, bare", steps, (a,), bare=True)


@pytest.mark.parametrize("wire", WIRES)
async def test_one_rejection_costs_no_later_turn(wire: str) -> None:
    cells = itertools.product((400, 413, 422, 401), TROUBLES)
    others = itertools.product((400, 401), TROUBLES[:2], list(POLICIES)[1:])
    await together(
        bare(wire),
        *(one_rejection(wire, status, what) for status, what in cells),
        *(one_rejection(wire, status, what, policy) for status, what, policy in others),
    )


# ---- last until it has answered

UNHURRIED: dict[str, Callable[[], HedgePolicy]] = {
    "adaptive": HedgePolicy.adaptive,
    "after(3)": lambda: HedgePolicy.after(3.0),
    "fallback": HedgePolicy.fallback,
}
"""Policies that hedge no answer of a busy machine."""


def last(wire: str, status: int, policy: str, *, twice: bool) -> Case:
    a, b = pair(wire)
    a.once = [rejects(status)] * (2 if twice else 1)

    async def steps(call: Call) -> None:
        await call.ask()
        if twice:  # b fails once, a rejects again, b is asked again
            b.once = [Reply(status=503)]
            await call.ask()
            call.expect(a.asked(2) == 1, "it is asked when the other one has failed")
        rejected = len(call.turns)
        await call.ask(2)
        for turn in (rejected + 1, rejected + 2):
            call.expect(call.asked(turn) == "b", f"turn {turn}: the last is not asked beside b")
        b.once = [Reply(status=503)] * 3
        turn = await call.ask()
        call.expect(turn.waited(QUICK_SECS), "the last is asked at once when the other one fails")
        await call.ask()
        call.expect(call.asked(len(call.turns))[:1] == "a", "it is first again after an answer")
        call.expect(all(turn.wait_secs is not None for turn in call.turns), "no turn is lost")

    name = f"{wire}, {status}{' twice' if twice else ''}, {policy}"
    return Case(name, steps, (a, b), UNHURRIED[policy]())


@pytest.mark.parametrize("wire", WIRES)
async def test_provider_that_rejects_for_good_is_last_and_still_asked(wire: str) -> None:
    statuses = ((401, False), (403, False), (404, False), (400, True), (422, True))
    await together(
        *(
            last(wire, status, policy, twice=twice)
            for (status, twice), policy in itertools.product(statuses, UNHURRIED)
        )
    )


def unusable(wire: str, policy: str) -> Case:
    a, b = pair(wire)

    async def steps(call: Call) -> None:
        assert isinstance(call.line.service, HedgedLLMService)
        first, second = (named.services[0] for named in call.line.service.providers)
        await first.set_usable(False)
        await call.ask()
        call.expect(call.asked(1) == "b", "an unusable provider is last")
        b.once = [Reply(status=503)] * 3
        turn = await call.ask()
        call.expect(turn.waited(QUICK_SECS), "it is asked when the other one fails")
        b.once.clear()
        await first.set_usable(False)
        b.reply = HANGS
        turn = await call.ask()
        call.expect(turn.waited(GUARD_SECS), "it is asked when the other one is silent")
        await first.set_usable(False)
        await second.set_usable(False)
        b.reply = Reply()
        turn = await call.ask()
        call.expect(turn.waited(QUICK_SECS), "when none is usable, all are asked")

    return Case(f"{wire}, unusable, {policy}", steps, (a, b), POLICIES[policy]())


async def test_unusable_provider_is_last_and_not_out() -> None:
    policies = ("adaptive", "after(0.5)", "fallback")
    cells = itertools.product(WIRES, policies)
    await together(*(unusable(wire, policy) for wire, policy in cells))


# ---- within one turn


def third_answers(wire: str, policy: str, second: Reply) -> Case:
    """Two slots for three providers; the first rejects, the second rejects or hangs."""
    a, b, c = (ScriptedProvider(name, wire) for name in "abc")
    a.reply, b.reply = rejects(400), second

    async def steps(call: Call) -> None:
        turn = await call.ask()
        most_secs = QUICK_SECS if second.status else GUARD_SECS
        call.expect(turn.waited(most_secs), "the third provider answers")
        call.expect(sorted(call.asked(1)) == ["a", "b", "c"], "each is asked once")

    name = f"{wire}, {policy}, second {second.status or second.end}"
    return Case(name, steps, (a, b, c), POLICIES[policy](max_attempts=2))


async def test_rejections_do_not_count_against_max_attempts() -> None:
    cells = itertools.product(WIRES, POLICIES, (rejects(400), rejects(401), HANGS))
    await together(*(third_answers(*cell) for cell in cells))


def all_fail(wire: str, policy: str, replies: tuple[Reply, ...]) -> Case:
    """A turn without an answer ends after a bounded number of requests; the next is answered."""
    providers = [ScriptedProvider(name, wire) for name in "abc"]
    for provider, reply in zip(providers, replies, strict=True):
        provider.reply = reply
    statuses = [reply.status for reply in replies]
    retried = sum((status or 0) >= 500 for status in statuses)
    has_slot = retried < 3  # a rejection takes none of the two
    most = len(providers) + 2 - 1 + retried * SDK_RETRIES

    async def steps(call: Call) -> None:
        turn = await call.ask()
        call.expect(turn.ended_secs is not None, "the turn ends")
        call.expect((turn.text, turn.errors, turn.framing) == ("", 1, "<>"), "with one error")
        call.expect(len(call.asked(1)) <= most, f"at most {most} requests")
        for provider, status in zip(providers, statuses, strict=True):
            provider.reply = Reply()
            most_each = 1 + SDK_RETRIES if (status or 0) >= 500 else 1
            least = provider.name != "c" or has_slot
            call.expect(
                least <= provider.asked(1) <= most_each, f"{provider.name}: once, or as its SDK"
            )
        call.expect((await call.ask()).waited(QUICK_SECS), "the next turn is answered")

    return Case(f"{wire}, {policy}, {statuses}", steps, providers, POLICIES[policy](max_attempts=2))


async def test_number_of_requests_is_bounded_when_all_fail() -> None:
    every = [(503, 503, 503), (400, 400, 400), (401, 401, 401), (400, 503, 422), (503, 401, 503)]
    cells = itertools.product(WIRES, POLICIES, every)
    await together(
        *(
            all_fail(wire, policy, tuple(rejects(status) for status in statuses))
            for wire, policy, statuses in cells
        )
    )


def not_sent_again(wire: str, policy: str, second: Reply, failures: int) -> Case:
    a, b = pair(wire)
    a.reply, b.once = rejects(400), [second] * failures

    async def steps(call: Call) -> None:
        turn = await call.ask(limit_secs=5)
        call.expect(a.asked(1) == 1, "a prompt is not sent again to who rejected it")
        call.expect(b.asked(1) <= 1 + SDK_RETRIES, "the other one is asked as its SDK would")
        if second.status:
            call.expect(turn.wait_secs is not None, "the turn is answered by a retry")

    name = f"{wire}, {policy}, b {second.status or second.end} {failures} times"
    return Case(name, steps, (a, b), POLICIES[policy]())


async def test_prompt_is_not_sent_again_to_provider_that_rejected_it() -> None:
    cells = itertools.product(WIRES, POLICIES, [(Reply(status=503), 2), (HANGS, 9)])
    await together(*(not_sent_again(wire, policy, *b) for wire, policy, b in cells))


# ---- inferences

SCHEMA = {
    "type": "object",
    "properties": {"topic": {"type": "string"}},
    "required": ["topic"],
    "additionalProperties": False,
}


def knows_no_schema(body: dict[str, Any]) -> Reply:
    """A provider that rejects what it does not know."""
    return rejects(400) if "response_format" in body or "output_config" in body else Reply()


def inferences(wire: str) -> Case:
    a, b = pair(wire)
    a.reply = knows_no_schema

    async def steps(call: Call) -> None:
        assert isinstance(call.line.service, HedgedLLMService)
        await call.ask()
        for _ in range(2):
            try:
                found = await call.line.service.run_inference(
                    said("What is this about?"), response_schema=SCHEMA
                )
            except AllProvidersFailed as failure:
                found = str(failure)
            call.expect(found is not None and "open" in found, f"the other one infers: {found}")
            await call.ask()
        call.expect(len(a.requests) - sum(a.asked(turn) for turn in (1, 2, 3)) > 0, "a was asked")
        for turn in (2, 3):
            call.expect(call.asked(turn) == "a", "it keeps its place in spoken turns")
        await b.shut()
        await call.ask()
        call.expect(all(turn.waited(QUICK_SECS) for turn in call.turns), "all turns are answered")

    return Case(f"{wire}, inference", steps, (a, b))


async def test_rejected_inference_is_answered_by_another_and_demotes_no_provider() -> None:
    await together(*(inferences(wire) for wire in WIRES))
