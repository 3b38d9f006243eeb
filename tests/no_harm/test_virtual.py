"""Hedged callers lose and wait for nothing by protection; in virtual time, turn by turn."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest
from pipecat.frames.frames import ErrorFrame, LLMFullResponseEndFrame, LLMTextFrame
from pipecat.services.llm_service import LLMService
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import HedgedLLMService, HedgePolicy, ProviderStats, TurnReport
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.tools.analysis import at_quantile, single_r
from pipecat_hedge.tools.bench import percentile
from tests.no_harm.figures import ANSWER, BARE, Comparison, Turn
from tests.no_harm.virtual import SORRY, Scripts, hedged, now, unwell
from tests.service.builders import said
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

NEVER = float("inf")
TTFT_SECS = 0.3
FINE: list[Step] = [Wait(TTFT_SECS), Say("Yes, do come.")]
REJECTS: list[Step] = [Wait(0.01), Error("too many", category=ErrorCategory.RATE_LIMIT)]
FAILS: list[Step] = [Wait(0.01), Error()]
HANGS: list[Step] = [Wait(NEVER)]
POLICIES = [
    HedgePolicy.adaptive(),
    HedgePolicy.adaptive(0.3, max_attempts=3),
    at_quantile(0.9),
    single_r(),
    HedgePolicy.race(2),
    HedgePolicy.after(0.5),
    HedgePolicy.fallback(),
]


Turns = list[tuple[float, TurnReport]]


def session(*scripts: Callable[[], Sequence[Step]], **options: Any) -> HedgedLLMService:
    """A new session of providers that play what a function says."""
    return hedged(*(Scripts(script, sums_up_secs=0.5) for script in scripts), **options)


def p95(reports: Sequence[TurnReport]) -> float:
    """The 95th percentile of the times to first token."""
    secs = percentile([r.ttft_secs for r in reports if r.ttft_secs is not None], 0.95)
    assert secs is not None
    return secs


async def calls(
    sessions: Sequence[HedgedLLMService], turns: int, *, pause_secs: float = 5.0
) -> Turns:
    """So many turns of all sessions, which begin one after the other; when each began, and it."""
    found: Turns = []

    async def call(number: int, line: Line) -> None:
        await asyncio.sleep(pause_secs * number / len(sessions))
        for turn in range(turns):
            began = now()
            await line.ask()
            found.append((began, await line.report(turn + 1)))
            await asyncio.sleep(pause_secs)

    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(Line(service)) for service in sessions]
        await asyncio.gather(*(call(number, line) for number, line in enumerate(lines)))
    return found


@pytest.mark.parametrize("outage", [REJECTS, FAILS, HANGS], ids=["reject", "fail", "hang"])
async def test_no_turn_after_an_outage_is_lost_or_delayed(outage: list[Step]) -> None:
    """Of all providers, for 30 s: each turn that begins then is answered as in calm."""

    def script() -> Sequence[Step]:
        return outage if 30.0 <= now() < 60.0 else FINE

    policy = HedgePolicy.fallback(deadline_secs=6.0, fallback_text=SORRY)
    sessions = [session(script, script, policy=policy) for _ in range(6)]
    reports = await calls(sessions, 16)
    assert any(report.outcome == "failed" for began, report in reports if began >= 30.0)
    after = [report for began, report in reports if began >= 60.0]
    assert len(after) > 20
    for report in after:
        assert report.outcome == "answered"
        assert report.ttft_secs == pytest.approx(TTFT_SECS)


@pytest.mark.slow
async def test_a_silent_provider_is_hardly_asked_and_comes_back() -> None:
    silent_from, silent_until = 20.0, 90.0
    rng, began = random.Random(1), now()

    def answers() -> list[Step]:
        return [Wait(rng.lognormvariate(math.log(0.54), 0.6)), Say("Yes, do come.")]

    def first() -> list[Step]:
        return HANGS if silent_from <= now() - began < silent_until else answers()

    turns = await calls([session(first, answers) for _ in range(20)], 95, pause_secs=1.5)

    def during(after: float, before: float) -> list[TurnReport]:
        return [report for at, report in turns if began + after <= at < began + before]

    assert {report.outcome for _, report in turns} == {"answered"}
    calm, silent = during(0, silent_from), during(silent_from + 10, silent_until)
    assert p95(silent) <= 1.5 * p95(calm)
    sent = sum(attempt.provider == "a" for report in silent for attempt in report.attempts)
    assert sent <= 0.05 * len(silent)
    after = during(silent_until + 90, silent_until + 120)  # a slow spell by chance takes seconds
    assert sum(report.attempts[0].provider == "a" for report in after) > len(after) / 2


Latencies = Callable[[int, random.Random], tuple[float, float]]
"""Of the first and the second provider in a turn, by the turn's number."""


def quick(rng: random.Random) -> float:
    return rng.lognormvariate(-0.6, 0.4)


def thinks(rng: random.Random) -> float:
    return rng.uniform(4.0, 6.0)


@pytest.mark.parametrize("budget", [0.1, 0.5])
@pytest.mark.parametrize(
    "latencies",
    [
        pytest.param(
            lambda n, r: (thinks(r), quick(r) if n < 12 else NEVER),
            id="before any is typical",
        ),
        pytest.param(
            lambda n, r: (quick(r) if n < 25 else thinks(r), quick(r) if n < 40 else NEVER),
            id="that took the place of a slow one",
        ),
        pytest.param(
            lambda n, r: (NEVER if n < 20 else quick(r), quick(r) if n < 25 else NEVER),
            id="that took the place of a silent one",
        ),
        pytest.param(lambda n, r: (quick(r), NEVER), id="from the beginning"),
    ],
)
async def test_a_second_provider_that_hangs_delays_at_most_one_turn(
    latencies: Latencies, budget: float
) -> None:
    """Beside the first provider's own service.

    By the silence guard at most: the first one's breaker may still be open when the second hangs.
    """
    rng = random.Random(3)
    secs = [latencies(turn, rng) for turn in range(60)]
    script_of: list[Callable[[], list[Step]]] = [
        lambda: [Wait(secs[len(line.reports)][0]), Say("Yes, do come.")],
        lambda: [Wait(secs[len(line.reports)][1]), Say("Yes, do come.")],
    ]
    async with Line(session(*script_of, policy=HedgePolicy.adaptive(budget))) as line:
        for _ in secs:
            await line.ask()
            await asyncio.sleep(5.0)
    later = [
        (report.ttft_secs or NEVER) - bare
        for report, (bare, _) in zip(line.reports, secs, strict=True)
    ]
    assert sorted(later)[-2] < 0.5
    assert max(later) <= 3.0 + 1e-6


@pytest.mark.parametrize(
    "policy", [HedgePolicy.adaptive(0.05), HedgePolicy.fallback()], ids=lambda policy: policy.name
)
async def test_a_model_that_thinks_holds_no_turn_back(policy: HedgePolicy) -> None:
    """A quarter of the answers takes 4 to 6 s, of both providers; thirty callers of each arm."""
    rng = random.Random(1)

    def script() -> Sequence[Step]:
        thinks = rng.random() < 0.25
        secs = rng.uniform(4.0, 6.0) if thinks else rng.lognormvariate(-0.8, 0.3)
        return [Wait(secs), Say(ANSWER)]

    arms: dict[str, Callable[[ProviderStats], LLMService[Any]]] = {
        **dict.fromkeys(BARE, lambda _: Scripts(script, sums_up_secs=None)),
        "hedged": lambda stats: session(script, script, policy=policy, stats=stats),
        "alone": lambda stats: session(script, policy=policy, stats=stats),
    }
    result = Comparison([*arms], ["all"])

    async def call(arm: str, line: Line, number: int) -> None:
        await asyncio.sleep(2.0 * number / 30)
        for _ in range(10):
            line.forget()
            began = now()
            await line.ask()
            first_at = min(line.times(LLMTextFrame), default=NEVER)
            report = None if arm in BARE else await line.report()
            result.turns.append(Turn(arm, "all", first_at - began, line.text, None, True, report))
            await asyncio.sleep(2.0)

    async with AsyncExitStack() as stack:
        calls = [
            call(arm, await stack.enter_async_context(Line(make(stats))), number)
            for (arm, make), stats in [(each, ProviderStats()) for each in arms.items()]
            for number in range(30)
        ]
        await asyncio.gather(*calls)
    print(result.table())
    for arm in arms:
        figures = result.figures(arm)
        assert (figures.turns, figures.lost, figures.cut) == (300, 0, 0)
        assert result.harms(arm) == []
    assert max(turn.ttft_secs for turn in result.turns) < 6.1
    outcomes = {turn.report.outcome for turn in result.turns if turn.report is not None}
    assert outcomes == {"answered"}


def spoken(line: Line, since: float) -> list[tuple[float, str]]:
    """What is heard of a turn and when, in thousandths of a second since it was sent."""
    return [
        (round(at - since, 3), frame.text if isinstance(frame, LLMTextFrame) else "end")
        for at, frame in line.heard
        if at >= since and isinstance(frame, (LLMTextFrame, LLMFullResponseEndFrame))
    ]


async def heard(service: LLMService[Any], turns: int) -> list[list[tuple[float, str]]]:
    found: list[list[tuple[float, str]]] = []
    async with Line(service) as line:
        for _ in range(turns):
            await asyncio.sleep(2.0)
            began = now()
            await line.ask()
            found.append(spoken(line, began))
    return found


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
async def test_one_provider_alone_is_as_its_bare_service(policy: HedgePolicy) -> None:
    """To the millisecond, in every turn, however long it is silent and whatever fails."""
    scripts: list[list[Step]] = [
        [Wait(0.4), Say("Yes, "), Wait(0.3), Say("do come.")],
        [Wait(0.4), Say("Yes. "), Wait(4.0), Say("Do come.")],
        [Wait(6.0), Say("Yes, do come.")],
        [Wait(0.4), Say("Yes. "), Wait(9.0), Say("Do "), Wait(3.5), Say("come.")],
        [Wait(38.0), Say("Yes. "), Wait(38.0), Say("Do come.")],
        [Wait(0.1), Error()],
        [Wait(0.1), ErrorFrame("full", category=ErrorCategory.RATE_LIMIT)],
    ]
    turns = [scripts[number % 5 if number < 20 else number % 7] for number in range(70)]
    bare = await heard(ScriptedLLMService(*turns), len(turns))
    alone = HedgedLLMService([ScriptedLLMService(*turns)], policy=policy)
    assert await heard(alone, len(turns)) == bare


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
async def test_an_answer_that_begins_very_late_is_heard(policy: HedgePolicy) -> None:
    """As late as the slowest that was measured, 38 s, and from all providers at once."""
    late = [Wait(38.0), Say("Yes, do come.")]
    async with Line(session(lambda: late, lambda: late, policy=policy)) as line:
        for _ in range(3):
            await asyncio.sleep(2.0)
            began = now()
            await line.ask()
            assert spoken(line, began)[0] == (38.0, "Yes, do come.")
    assert not line.errors


async def test_no_turn_or_inference_is_lost_or_delayed_at_unwell_providers() -> None:
    """Breakers are open, limits reached and rate limits used up; in every tier."""
    llms = [
        session(lambda: FINE, lambda: FINE, tier=tier)
        for tier in ("premium", "standard", "economy")
        for _ in range(7)
    ]
    async with AsyncExitStack() as stack:
        lines = [await stack.enter_async_context(Line(llm)) for llm in llms]
        unwell("a")
        unwell("b")
        began = now()
        inferring = asyncio.gather(*(llm.run_inference(said()) for llm in llms))
        await asyncio.gather(*(line.ask() for line in lines))
        assert await inferring == ["In short."] * 21
        assert now() - began == pytest.approx(0.5, abs=0.01)
    for line in lines:
        assert line.text == "Yes, do come."
        assert line.reports[0].ttft_secs == pytest.approx(TTFT_SECS)
