"""What a service promises, and who counts how it is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, Slo, TurnReport
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.slo_board import MOST_PROMISES, SloBoard
from pipecat_hedge.testing import Error, Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line
from tests.voice.test_turn_latency import Phone

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


# ---- the LLM's turns


async def test_every_turn_is_counted() -> None:
    """In time, late, and failed; a failed one is bad though its caller heard the fallback."""
    llm = service(PROMPT, LATE, FAILS)
    async with Line(llm) as line:
        assert counted(llm) == {"ttft": (0, 0), "ttfs": (0, 0), "voice_to_voice": (0, 0)}
        await line.ask()
        await line.report(1)
        assert counted(llm) == {"ttft": (1, 0), "ttfs": (1, 0), "voice_to_voice": (0, 0)}
        await line.ask()
        await line.report(2)
        assert counted(llm)["ttft"] == (2, 1)
        await line.ask()
        assert (await line.report(3)).outcome == "failed"
    assert counted(llm) == {"ttft": (3, 2), "ttfs": (3, 1 + 1), "voice_to_voice": (0, 0)}


async def test_the_report_s_handler_reads_it_with_the_turn_counted() -> None:
    """What a hook sees is up to date."""
    llm = service(PROMPT)
    seen: list[dict[str, tuple[int, int]]] = []

    @llm.event_handler("on_turn_report")
    async def on_turn_report(service: HedgedLLMService, report: TurnReport) -> None:
        seen.append(counted(service))

    async with Line(llm) as line:
        await line.ask()
        await line.report()
    assert seen[0]["ttft"] == (1, 0)


@pytest.mark.parametrize(("after_secs", "turns"), [(0.5, 0), (1.0, 1)])
async def test_who_speaks_before_the_time_has_run_out_says_nothing(
    after_secs: float, turns: int
) -> None:
    """And who has waited longer has waited too long."""
    llm = service(SILENT)
    async with Line(llm) as line:
        asked = asyncio.create_task(line.ask())
        await asyncio.sleep(after_secs)
        await line.interrupt()
        await asked
        await line.report()
    assert counted(llm)["ttft"] == (turns, turns)
    assert counted(llm)["ttfs"] == (0, 0)


async def test_sessions_of_a_tier_count_together_and_tiers_apart() -> None:
    """One board for the process, by what is promised to whom."""
    stats = ProviderStats()
    for tier in ("premium", "premium", "standard"):
        llm = service(PROMPT, tier=tier, stats=stats)
        async with Line(llm) as line:
            await line.ask()
            await line.report()
    assert counted(llm)["ttft"] == (1, 0)
    told = [(s.tier, s.windows[0].turns) for s in stats.slo_board.status() if s.objective == "ttft"]
    assert told == [("premium", 2), ("standard", 1)]


# ---- as the caller hears it


async def test_the_answer_is_what_counts_and_not_the_filler() -> None:
    """A filler at once does not keep the promise of an answer that comes late."""
    llm = service(
        [Wait(4.0), Say("Yes. We are open.")],
        policy=HedgePolicy.fallback(1),
        slo=Slo(voice_to_voice_secs=2.0),
    )
    async with Phone(llm, fillers=True) as phone:
        await phone.speak()
        turn = await phone.answered()
    assert turn.first_sound_secs is not None
    assert turn.first_sound_secs < 2.0 < (turn.voice_to_voice_secs or 0.0)
    assert counted(llm)["voice_to_voice"] == (1, 1)


async def test_the_fallback_is_no_answer() -> None:
    """Heard in time, and bad."""
    llm = service(FAILS)
    async with Phone(llm) as phone:
        await phone.speak()
        turn = await phone.answered()
    assert turn.first_answer_secs is not None
    assert turn.first_answer_secs < 1.5
    assert counted(llm)["voice_to_voice"] == (1, 1)


@pytest.mark.parametrize(("after_secs", "turns"), [(0.3, 0), (3.0, 1)])
async def test_a_caller_who_speaks_again(after_secs: float, turns: int) -> None:
    """Before the time had run out: nothing. Later: the promise was broken."""
    llm = service(SILENT, PROMPT)
    async with Phone(llm) as phone:
        await phone.speak()
        await asyncio.sleep(after_secs)
        await phone.line.interrupt()
        await phone.answered(3.0)
    assert counted(llm)["voice_to_voice"] == (turns, turns)


# ---- what is written


async def test_a_promise_may_be_the_policy_s() -> None:
    """Then it is counted, too."""
    slo = Slo(ttft_secs=0.5)
    llm = service(PROMPT, slo=None, policy=HedgePolicy.adaptive(slo=slo))
    assert llm.slo == slo
    assert {s.within_secs for s in llm.slo_status()} == {0.5, 1.2, 1.5}
    assert service(PROMPT, slo=None).slo is None
    assert service(PROMPT, slo=None).slo_status() == ()


async def test_contradictions_are_refused() -> None:
    """With both, or what it should have been."""
    policy = HedgePolicy.adaptive(slo=Slo(ttft_secs=0.5))
    with pytest.raises(ConfigurationError, match=r"but the policy aims at .*: give both the same"):
        service(PROMPT, slo=Slo(), policy=policy)
    with pytest.raises(ConfigurationError, match=r"slo must be a Slo, got 0\.8: write Slo"):
        service(PROMPT, slo=0.8)


# ---- the board


def test_the_board_does_not_grow_with_promises() -> None:
    """What has been spoken of longest ago is forgotten."""
    board = SloBoard(clock=lambda: 100.0)
    first = Slo(ttft_secs=0.5)
    board.count("standard", first, {"ttft": True})
    for n in range(MOST_PROMISES):
        board.count("standard", Slo(ttft_secs=1.0 + n), {"ttft": True})
    assert board.status("standard", first) == ()
    assert len({s.within_secs for s in board.status() if s.objective == "ttft"}) == MOST_PROMISES


def test_what_leaves_the_window_is_forgiven() -> None:
    """By the board's own clock."""
    now = 1_000_000.0
    board = SloBoard(clock=lambda: now)
    board.count("standard", Slo(), {"ttft": False})
    assert board.status()[0].burns == pytest.approx((20.0,) * 4)
    now += 400
    assert board.status()[0].burns[0] is None
    assert board.status()[0].budget_left == pytest.approx(-19.0)
    now += 4 * 86_400
    assert board.status()[0].budget_left == 1.0
