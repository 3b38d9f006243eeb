"""Sessions leave nothing in the process but their providers' statistics."""

from __future__ import annotations

import asyncio
import gc
import types
from typing import Any

import pytest
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race import TIERS, Attempt, AttemptError, AttemptOutcome, Slot, TurnReport
from pipecat_hedge.service.admission import Admission, admission_settings
from pipecat_hedge.service.provider_pool import ProviderPool
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.service.turn_planner import TurnPlanner
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Wait
from tests.support.line import Line

pytestmark = [pytest.mark.slow, pytest.mark.virtual_time]

NOT_ITS_OWN = (type, types.ModuleType, types.FunctionType, asyncio.AbstractEventLoop)
ENDINGS: tuple[tuple[AttemptOutcome, Verdict], ...] = (
    ("won", "answered"),
    ("won", "answered"),
    ("superseded", "dropped"),
    ("interrupted", "dropped"),
    ("failed", "silent"),
)


def kept_by(root: object) -> int:
    """The number of objects that one keeps alive, itself included; numbers excluded."""
    seen: dict[int, object] = {}
    left = [root]
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, (*NOT_ITS_OWN, int, float)):
            continue
        seen[id(each)] = each
        left += gc.get_referents(each)
    return len(seen)


def parts(stats: ProviderStats) -> dict[str, int]:
    """The objects kept: in total, by breakers and limits, and by the loop watch."""
    return {
        "all": kept_by(stats),
        "health": kept_by(stats.health),
        "loop_watch": kept_by(stats.loop_watch),
        "loops": len(stats.loop_watch._loops),
        "providers": len(stats.health.entries()),
    }


def test_count_detects_one_more_object() -> None:
    stats = ProviderStats()
    before = parts(stats)
    stats.health.entry("a")
    assert parts(stats)["health"] > before["health"]
    grown = kept_by(stats)
    stats.events.subscribe(TurnReport, lambda _: None)
    assert kept_by(stats) > grown


async def session(stats: ProviderStats, members: ProviderPool, number: int) -> None:
    """One session of one turn with all process-wide parts."""
    loop = asyncio.get_running_loop()
    stats.hold()
    candidates = members.candidates(loop.time())
    settings = admission_settings("open", TIERS[number % len(TIERS)], None, None)
    admission = Admission(stats.health, candidates, settings, stats.loop_watch, 3.0)
    context = LLMContext([{"role": "user", "content": "word " * (number % 1000)}])
    planner = TurnPlanner(HedgePolicy.adaptive(), candidates, context, stats, "first_token")
    name = await admission.admit(planner.candidates, "primary")
    assert name is not None
    admission.refusals(["a", "b"])
    permit = await admission.permit(name, "primary")
    outcome, verdict = ENDINGS[number % len(ENDINGS)]
    attempt = Attempt(0, Slot(name), "primary", loop.time())
    planner.sent(attempt)
    attempt.outcome, attempt.ended_at = outcome, attempt.launched_at + 1.5 + number % 7 / 10
    if outcome == "won":
        attempt.first_token_at = attempt.launched_at + 0.3 + number % 11 / 10
        admission.record_first_token(permit, number % 3)
    elif outcome == "failed":
        attempt.error = AttemptError("server", "down")
    planner.learn([attempt])
    admission.release(permit, verdict, has_begun=outcome == "won")
    admission.close()
    stats.health.take_changes()
    await asyncio.sleep(0.1)
    assert len(stats.loop_watch._loops) == 1
    await stats.release()


async def test_ten_thousand_sessions_do_not_grow_the_registry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(LoopWatch, "run_if_real", LoopWatch.run)
    stats = ProviderStats()
    providers = [Provider(name, ScriptedLLMService([Say("Yes.")])) for name in "ab"]
    members = ProviderPool(providers, stats.health)
    for number in range(2_000):
        await session(stats, members, number)
    before = parts(stats)
    for number in range(2_000, 12_000):
        await session(stats, members, number)
    after = parts(stats)
    print(f"objects kept, before and after 10000 sessions: {before}, {after}")
    assert after["providers"] == before["providers"] == 2
    assert after["loops"] == before["loops"] == 1  # this one, for as long as it lives
    for part in ("all", "health", "loop_watch"):
        assert after[part] <= 1.02 * before[part], part


async def test_pipeline_sessions_do_not_grow_the_registry() -> None:
    stats = ProviderStats()
    fine, slow = [Wait(0.2), Say("Yes.")], [Wait(3.0), Say("Late.")]
    scripts: list[tuple[Any, Any]] = [(fine, fine), (slow, fine), ([Error()], fine)]
    sizes: list[int] = []
    for number in range(240):
        first, second = scripts[number % len(scripts)]
        pair = [Provider("a", ScriptedLLMService(first)), Provider("b", ScriptedLLMService(second))]
        async with Line(HedgedLLMService(pair, stats=stats)) as line:
            await line.ask()
        await asyncio.sleep(10)
        sizes.append(kept_by(stats.health))
    assert len(stats.health.entries()) == 2
    assert max(sizes) - min(sizes) < 60
