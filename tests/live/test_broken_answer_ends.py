"""An answer that breaks off, and whose replacement is silent, ends: what was said, and an error.

Over real sockets, with Pipecat's services of both wires; bare beside hedged.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from pipecat_hedge import HedgePolicy
from tests.live.scripted_provider import (
    ANSWER,
    HANGS,
    Call,
    Case,
    End,
    Reply,
    ScriptedProvider,
    together,
)

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(90)]

WIRES = ["openai", "anthropic"]
STALL_SECS = 0.7
SLACK_SECS = 2.0
FALLBACK = "Sorry, say that again?"
WHOLE = "We are open till nine."
POLICIES: dict[str, tuple[str, Callable[..., HedgePolicy]]] = {
    # Names of the providers, of which the first one breaks off and the others are silent.
    "adaptive": ("ab", HedgePolicy.adaptive),
    "fallback": ("ab", HedgePolicy.fallback),
    "after(0.5)": ("ab", lambda **options: HedgePolicy.after(0.5, **options)),
    "race(2)": ("ab", lambda **options: HedgePolicy.race(2, **options)),
    "race(2) of three": ("abc", lambda **options: HedgePolicy.race(2, **options)),
    "race(3) of four": ("abcd", lambda **options: HedgePolicy.race(3, **options)),
    "adaptive of three": ("abc", lambda **options: HedgePolicy.adaptive(max_attempts=3, **options)),
}


def broken(wire: str, policy: str, end: End, silent: Reply, fallback_text: str | None) -> Case:
    names, make = POLICIES[policy]
    providers = [ScriptedProvider(name, wire, silent) for name in names]
    providers[0].reply = Reply(end)
    broke_secs = 0.3 + (STALL_SECS if end == "stalls" else 0.0)
    most_secs = broke_secs + (len(names) - 1) * STALL_SECS + SLACK_SECS

    async def steps(call: Call) -> None:
        turn = await call.ask(limit_secs=6)
        call.expect(
            turn.ended_secs is not None and turn.ended_secs <= most_secs,
            f"it ends within {most_secs:.1f} s, not after {turn.ended_secs}",
        )
        launched = len(call.asked(1)) > len(names) or not policy.startswith("race")
        call.expect(not launched or (turn.ended_secs or 9) >= STALL_SECS, "not before stall_secs")
        call.expect(turn.text.startswith(WHOLE), f"whole sentences are kept, not {turn.text!r}")
        call.expect(turn.errors == 1, f"there is one error, not {turn.errors}")
        framing = turn.framing.replace("t", "")
        call.expect(framing == "<>", f"one start and one end, not {framing}")
        rest = turn.text.removeprefix(WHOLE)
        if fallback_text is not None:
            call.expect(rest.endswith(fallback_text), f"then the fallback text, not {rest!r}")
            rest = rest.removesuffix(fallback_text)
        said = rest.rstrip().removesuffix("...").rstrip()
        call.expect(ANSWER[len(WHOLE) :].startswith(said), f"nothing else, not {rest!r}")
        await _next_turn(call)

    name = f"{wire}, {policy}, {end}, then {silent.end}, {'with' if fallback_text else 'no'} text"
    options = {"stall_secs": STALL_SECS, "fallback_text": fallback_text}
    return Case(name, steps, providers, make(**options))


async def _next_turn(call: Call) -> None:
    for provider in call.providers:
        provider.reply = Reply()
    call.expect((await call.ask()).waited(2.0), "the next turn is answered")


def bare(wire: str) -> Case:
    async def steps(call: Call) -> None:
        turn = await call.ask()
        call.expect(turn.ended_secs is not None, "bare ends")

    return Case(f"{wire}, bare", steps, [ScriptedProvider("a", wire, Reply("breaks"))], bare=True)


@pytest.mark.parametrize("wire", WIRES)
async def test_broken_answer_with_silent_replacement_ends(wire: str) -> None:
    broken_off = itertools.product(
        POLICIES, ("breaks",), (HANGS, Reply("keeps alive")), (None, FALLBACK)
    )
    stalled = itertools.product(POLICIES, ("stalls",), (HANGS,), (None, FALLBACK))
    await together(
        bare(wire), *(broken(wire, *cell) for cell in itertools.chain(broken_off, stalled))
    )


def continued(wire: str, policy: str) -> Case:
    """The second is silent, the third well: an attempt that is left continues the answer."""
    names, make = POLICIES[policy]
    providers = [ScriptedProvider(name, wire) for name in names]
    providers[0].reply, providers[1].reply = Reply("breaks"), HANGS

    async def steps(call: Call) -> None:
        turn = await call.ask(limit_secs=6)
        ended_secs = turn.ended_secs
        call.expect(ended_secs is not None and ended_secs <= 4.0, "it ends")
        call.expect(turn.text.startswith(WHOLE), "whole sentences are kept")
        call.expect(turn.framing.replace("t", "") == "<>", "one start and one end")
        is_whole = turn.text.rstrip().endswith("Do come by.")
        call.expect(is_whole and not turn.errors, "the third provider continues the answer")

    name = f"{wire}, {policy}, third well"
    return Case(name, steps, providers, make(stall_secs=STALL_SECS))


async def test_broken_answer_is_continued_by_a_third_provider() -> None:
    await together(*(continued(wire, "adaptive of three") for wire in WIRES))
