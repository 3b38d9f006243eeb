"""SLOs of a service: which turns are counted, and what attainment, budget and burn rate say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipecat.frames.frames import InterruptionFrame

from pipecat_hedge import (
    FillerProcessor,
    HedgedLLMService,
    HedgePolicy,
    Provider,
    ProviderStats,
    Slo,
    TurnReport,
)
from pipecat_hedge.telemetry.slo_tracker import (
    MAX_SLOS,
    SLICES,
    WINDOWS_SECS,
    SloStatus,
    SloTracker,
    WindowCount,
)
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from tests.service.builders import asked, racing, scripted
from tests.support.call import SPEAKS, PhoneCall
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

PROMPT: list[Step] = [Wait(0.3), Say("Yes. We are open.")]
LATE: list[Step] = [Wait(1.0), Say("Yes. "), Wait(1.0), Say("We are.")]
FAILS: list[Step] = [Error("down")]
SILENT: list[Step] = [Wait(30)]


def service(*scripts: list[Step], **options: Any) -> HedgedLLMService:
    options = {"slo": Slo(), "policy": HedgePolicy.fallback(1, fallback_text="Sorry."), **options}
    return HedgedLLMService([Provider("a", ScriptedLLMService(*scripts))], **options)


def counted(llm: HedgedLLMService) -> dict[str, tuple[int, int]]:
    """By objective, turns and bad ones of the last five minutes."""
    return {s.objective: (s.windows[0].turns, s.windows[0].bad) for s in llm.slo_status()}


# ---- a service's turns


async def test_every_turn_is_counted_before_its_report() -> None:
    llm = service(PROMPT, LATE, FAILS)
    seen: list[dict[str, tuple[int, int]]] = []

    @llm.event_handler("on_turn_report")
    async def on_turn_report(service: HedgedLLMService, report: TurnReport) -> None:
        seen.append(counted(service))

    async with Line(llm) as line:
        assert counted(llm) == {"ttft": (0, 0), "ttfs": (0, 0), "voice_to_voice": (0, 0)}
        for number in (1, 2, 3):
            await line.ask()
            await line.report(number)
    assert [(s["ttft"], s["ttfs"]) for s in seen] == [
        ((1, 0), (1, 0)),
        ((2, 1), (2, 1)),
        ((3, 2), (3, 2)),  # a failed turn is bad, although its caller heard the fallback
    ]


async def test_sessions_of_a_tier_count_together() -> None:
    stats = ProviderStats()
    for tier in ("premium", "premium", "standard"):
        llm = service(PROMPT, tier=tier, stats=stats)
        async with Line(llm) as line:
            await line.ask()
            await line.report()
    assert counted(llm)["ttft"] == (1, 0)
    ttft = [status for status in stats.slo_tracker.status() if status.objective == "ttft"]
    assert [(status.tier, status.windows[0].turns) for status in ttft] == [
        ("premium", 2),
        ("standard", 1),
    ]


@pytest.mark.parametrize("script", [[Wait(4.0), Say("Yes. We are open.")], FAILS])
async def test_fillers_and_fallbacks_keep_no_voice_to_voice_slo(script: list[Step]) -> None:
    llm = service(script)
    async with PhoneCall(llm, fillers=FillerProcessor(not_before_turn=1)) as call:
        turn = await call.speak()
    assert turn.first_sound_secs is not None
    assert counted(llm)["voice_to_voice"] == (1, 1)


@pytest.mark.parametrize(("after_secs", "turns"), [(0.3, 0), (3.0, 1)])
async def test_interrupted_turn_counts_after_its_limit(after_secs: float, turns: int) -> None:
    llm = service(SILENT, PROMPT)
    async with PhoneCall(llm) as call:
        await call.play(*SPEAKS, after_secs, InterruptionFrame, 3.0)
    assert counted(llm)["voice_to_voice"] == (turns, turns)


async def test_slo_of_the_policy_is_tracked() -> None:
    policy = HedgePolicy.adaptive(slo=Slo(ttft_secs=0.5))
    llm = service(PROMPT, slo=None, policy=policy)
    assert llm.slo == Slo(ttft_secs=0.5)
    assert {s.within_secs for s in llm.slo_status()} == {0.5, 1.2, 1.5}
    assert service(PROMPT, slo=None).slo_status() == ()


async def test_slo_of_the_policy_moves_no_hedge() -> None:
    """Hedges in time for it need ``target_ttft_secs``."""
    due: list[tuple[str, float | None]] = []
    for slo in (None, Slo(ttft_secs=0.8)):
        slow, fast = (scripted(Wait(secs), Say("Yes."), model="jagged") for secs in (9.0, 0.1))
        policy = HedgePolicy.adaptive(slo=slo)
        llm = racing(slow, fast, policy=policy, stats=ProviderStats())
        (report,) = (await asked(llm)).reports
        due.append((report.hedge_reason or "", report.attempts[1].launched_secs))
    assert due[0] == due[1]


# ---- the board

STEPS = st.one_of(
    st.floats(0.0, 90_000.0), st.floats(0.0, 20.0), st.integers(0, 200).map(lambda n: n * 5.0)
)


@settings(deadline=None)
@given(st.lists(st.tuples(STEPS, st.booleans()), max_size=60), STEPS)
def test_windows_count_the_turns_of_their_last_slots(
    turns: list[tuple[float, bool]], later: float
) -> None:
    now, events = 0.0, list[tuple[float, bool]]()
    board = SloTracker(clock=lambda: now)
    board.add("standard", Slo())
    for step, kept in turns:
        now += step
        events.append((now, kept))
        board.record("standard", Slo(), {"ttft": kept})
    now += later
    ttft = next(s for s in board.status() if s.objective == "ttft")
    for window, secs in zip(ttft.windows, WINDOWS_SECS, strict=True):
        width = secs / SLICES
        kept = [k for at, k in events if now // width - SLICES < at // width]
        assert window == WindowCount(secs, len(kept), kept.count(False))
        assert window.turns <= sum(at >= math.nextafter(now - secs, -math.inf) for at, _ in events)
        assert window.turns >= sum(at > now - secs + width for at, _ in events)


def test_attainment_budget_and_burn() -> None:
    half, twice = WindowCount(300.0, 200, 5), WindowCount(259_200.0, 200, 20)
    status = SloStatus("standard", "ttft", 0.8, 0.95, (half, twice))
    assert status.attainment == pytest.approx(0.9)
    assert status.budget_left == pytest.approx(-1.0)
    assert status.burns == pytest.approx((0.5, 2.0))
    quiet = SloStatus("standard", "ttft", 0.8, 0.95, (WindowCount(300.0, 0, 0),))
    assert (quiet.attainment, quiet.budget_left, quiet.burns) == (None, 1.0, (None,))


def test_board_does_not_grow_with_slos() -> None:
    board = SloTracker()
    first = Slo(ttft_secs=0.5)
    board.record("standard", first, {"ttft": True})
    for number in range(MAX_SLOS):
        board.record("standard", Slo(ttft_secs=1.0 + number), {"ttft": True})
    assert board.status("standard", first) == ()
    assert len(board.slos()) == MAX_SLOS
