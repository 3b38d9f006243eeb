"""Silence has a bound, and teaches impatience. In virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.testing import Say, Step, Wait
from tests.no_harm.virtual import Scripts
from tests.service.builders import NEVER, racing, said
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

WELL: list[Step] = [Wait(0.3), Say("Yes.")]
SILENT: list[Step] = [Wait(NEVER)]
POLICIES = {
    "default": HedgePolicy.adaptive(),
    "adaptive(0.05)": HedgePolicy.adaptive(0.05),
    "budget=0": HedgePolicy.adaptive(0),
    "after(1.0)": HedgePolicy.after(1.0),
    "fallback": HedgePolicy.fallback(),
}


async def called(
    first: list[list[Step]], policy: HedgePolicy, pause_secs: float = 2.0, **provider: Any
) -> tuple[list[float], str]:
    """A call in which the first provider plays scripts, and the second is well.

    Returns:
        How long each turn waited, and who was asked first in it.
    """
    scripts = iter(first)
    services = [Scripts(lambda: next(scripts, SILENT), None), Scripts(lambda: WELL, None)]
    a, b = (Provider(n, s) for n, s in zip("ab", services, strict=True))
    async with Line(racing(a, b, policy=policy)) as line:
        for turn in range(len(first)):
            await line.ask()
            await line.report(turn + 1)
            await asyncio.sleep(pause_secs)
    waits = [NEVER if r.ttft_secs is None else r.ttft_secs for r in line.reports]
    return waits, "".join(r.attempts[0].provider for r in line.reports)


@pytest.mark.parametrize("good_turns", [0, 3, 30])
@pytest.mark.parametrize("policy", POLICIES)
async def test_silent_provider_is_not_asked_first_for_long(policy: str, good_turns: int) -> None:
    first = [WELL] * good_turns + [SILENT] * 6
    waits, firsts = await called(first, POLICIES[policy])
    silent = waits[good_turns:]
    assert silent[0] <= 3.31
    assert silent[1] <= 1.81
    assert all(after <= max(before, 1.81) + 1e-6 for before, after in pairwise(silent))
    if policy in ("budget=0", "fallback") or good_turns < 20:  # else each silence is cut early
        assert max(silent[2:]) == pytest.approx(0.3)
        assert firsts[good_turns + 2 :] == "b" * 4


@pytest.mark.parametrize("options", [{"order": "given"}, {"route": lambda _: "a"}])
async def test_order_of_the_user_is_obeyed(options: Any) -> None:
    """Until the breaker opens, after five silences."""
    waits, firsts = await called([SILENT] * 5, HedgePolicy.adaptive(0, **options))
    assert firsts == "aaaaa"
    assert waits == pytest.approx([3.3, *[1.8] * 4])


async def test_silent_provider_regains_its_place() -> None:
    waits, firsts = await called([SILENT] * 2 + [WELL] * 18, HedgePolicy.fallback())
    assert firsts[-6:] == "aaaaaa"
    assert max(waits[1:]) <= 1.81


@pytest.mark.parametrize("secs", [2.0, 4.0])
async def test_slow_provider_keeps_its_place(secs: float) -> None:
    """Its first answers are waited for although they lost."""
    slow: list[Step] = [Wait(secs), Say("Yes.")]
    _, firsts = await called([slow] * 10, HedgePolicy.adaptive(0), pause_secs=4.0)
    assert firsts == "a" * 10


async def test_cut_silences_never_lengthen_the_next() -> None:
    """A provider that is silent in every third turn."""
    first = [SILENT, WELL, WELL] * 8
    waits, _ = await called(first, HedgePolicy.adaptive(0, order="given"))
    assert max(waits) == pytest.approx(3.3)


async def test_attempt_beside_a_silent_one_is_reported_apart() -> None:
    silent, well = Scripts(lambda: SILENT, None), Scripts(lambda: WELL, None)
    async with Line(racing(silent, well, policy=HedgePolicy.adaptive(0))) as line:
        await line.ask()
    (report,) = line.reports
    assert [a.launch_reason for a in report.attempts] == ["primary", "silence"]
    assert report.hedge_reason == "a is silent"


@pytest.mark.parametrize("policy", POLICIES)
async def test_inference_waits_for_no_silent_provider(policy: str) -> None:
    silent, well = (Scripts(lambda: WELL, secs) for secs in (NEVER, 0.3))
    async with Line(
        racing(Provider("a", silent), Provider("b", well), policy=POLICIES[policy])
    ) as line:
        assert isinstance(line.service, HedgedLLMService)
        began = asyncio.get_running_loop().time()
        assert await line.service.run_inference(said("Sum it up.")) == "In short."
        assert asyncio.get_running_loop().time() - began <= 3.31
