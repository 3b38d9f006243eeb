"""Silence has a bound, and teaches impatience. In virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from pipecat.frames.frames import LLMThoughtTextFrame

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.testing import Say, Step, Wait
from tests.no_harm.virtual import Scripts
from tests.service.builders import NEVER, racing, said
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

WELL: list[Step] = [Wait(0.3), Say("Yes.")]
SILENT: list[Step] = [Wait(NEVER)]
DEFAULT = 0.1
"""The budget of the default policy."""
POLICIES = {
    "default": HedgePolicy.adaptive(),
    "adaptive(0.05)": HedgePolicy.adaptive(0.05),
    "budget=0": HedgePolicy.adaptive(0),
    "after(1.0)": HedgePolicy.after(1.0),
    "fallback": HedgePolicy.fallback(),
}


async def called(
    first: list[list[Step]], policy: HedgePolicy, pause_secs: float = 2.0, **provider: Any
) -> tuple[list[float], str, list[TurnReport]]:
    """A call in which the first provider plays scripts, and the second is well.

    Returns:
        How long each turn waited, and which provider was asked first; and the turns' reports.
    """
    scripts = iter(first)
    services = [Scripts(lambda: next(scripts, SILENT), None), Scripts(lambda: WELL, None)]
    a, b = (Provider(n, s, **provider) for n, s in zip("ab", services, strict=True))
    async with Line(racing(a, b, policy=policy)) as line:
        for turn in range(len(first)):
            await line.ask()
            await line.report(turn + 1)
            await asyncio.sleep(pause_secs)
    waits = [NEVER if r.ttft_secs is None else r.ttft_secs for r in line.reports]
    return waits, "".join(r.attempts[0].provider for r in line.reports), line.reports


@pytest.mark.parametrize("good_turns", [0, 3, 30])
@pytest.mark.parametrize("policy", POLICIES)
async def test_silent_provider_is_not_asked_first_for_long(policy: str, good_turns: int) -> None:
    first = [WELL] * good_turns + [SILENT] * 6
    waits, firsts, _ = await called(first, POLICIES[policy])
    silent = waits[good_turns:]
    assert silent[0] <= 3.31
    assert silent[1] <= 1.81
    assert all(after <= max(before, 1.81) + 1e-6 for before, after in pairwise(silent))
    if policy in ("budget=0", "fallback") or good_turns < 20:  # else each silence is cut early
        assert max(silent[2:]) == pytest.approx(0.3)
        assert firsts[good_turns + 2 :] == "b" * 4


@pytest.mark.parametrize("budget", [0, DEFAULT])
@pytest.mark.parametrize("options", [{"order": "given"}, {"route": lambda _: "a"}])
async def test_order_of_the_user_is_obeyed(options: Any, budget: float) -> None:
    """Until the breaker opens, after five silences."""
    policy = HedgePolicy.adaptive(budget, **options)
    waits, firsts, reports = await called([SILENT] * 5, policy)
    assert firsts == "aaaaa"
    assert all(wait <= most for wait, most in zip(waits, [3.31, *[1.81] * 4], strict=True))
    if budget == 0:
        assert waits == pytest.approx([3.3, *[1.8] * 4])
        assert {a.launch_reason for r in reports for a in r.attempts[1:]} == {"silence"}


@pytest.mark.parametrize(
    ("silence_secs", "waited", "reason"), [(4.0, 4.3, "silence"), (None, 20.3, "failure")]
)
async def test_silence_secs_sets_the_guard(
    silence_secs: float | None, waited: float, reason: str
) -> None:
    """Without one a silent provider has its ``timeout_secs``."""
    policy = HedgePolicy.adaptive(0, silence_secs=silence_secs, stall_secs=None)
    waits, _, [report] = await called([SILENT], policy, timeout_secs=20)
    assert waits == pytest.approx([waited])
    assert [a.launch_reason for a in report.attempts] == ["primary", reason]


@pytest.mark.parametrize(
    ("policy", "silences", "well"), [("fallback", 2, 18), ("default", 4, 32), ("budget=0", 4, 32)]
)
async def test_silent_provider_regains_its_place(policy: str, silences: int, well: int) -> None:
    """A breaker's first recovery takes 60 s."""
    first = [SILENT] * silences + [WELL] * well
    waits, firsts, _ = await called(first, POLICIES[policy])
    assert firsts[-6:] == "aaaaaa"
    assert max(waits[1:]) <= 1.81


@pytest.mark.parametrize("policy", ["default", "budget=0"])
@pytest.mark.parametrize("secs", [2.0, 4.0])
async def test_slow_provider_keeps_its_place(secs: float, policy: str) -> None:
    """Its first answers are waited for although they lost."""
    slow: list[Step] = [Wait(secs), Say("Yes.")]
    waits, firsts, _ = await called([slow] * 10, POLICIES[policy], pause_secs=4.0)
    assert firsts == "a" * 10
    assert max(waits) == pytest.approx(secs)


@pytest.mark.parametrize("budget", [0, DEFAULT])
async def test_reasoning_is_no_silence(budget: float) -> None:
    """A model that reasons for 4 s is heard once its time is known, and not cut short."""
    reasons: list[Step] = [Wait(0.1), *[LLMThoughtTextFrame("Hm"), Wait(0.1)] * 39, Say("Yes.")]
    policy = HedgePolicy.adaptive(budget, order="given")
    waits, firsts, reports = await called([reasons] * 6, policy, pause_secs=3.0)
    assert firsts == "a" * 6
    assert "".join(report.winner or "-" for report in reports) == "b" + "a" * 5
    assert waits[1:] == pytest.approx([4.0] * 5)
    if budget == 0:
        assert waits[0] == pytest.approx(3.3)


async def test_cut_silences_never_lengthen_the_next() -> None:
    """A provider that is silent in every third turn."""
    first = [SILENT, WELL, WELL] * 8
    waits, _, _ = await called(first, HedgePolicy.adaptive(0, order="given"))
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
