"""Races between real services over real sockets, in every wire format."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from google.genai import types
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.google.llm import GoogleLLMService

from pipecat_hedge import HedgePolicy
from pipecat_hedge.tools.simulator import Simulator
from tests.support.simulated import WIRES, line_to, simulated

pytestmark = pytest.mark.live


@pytest.mark.parametrize("fault", ["429", "reset", "empty", "error_in_band"])
async def test_fast_failure_of_google_does_not_win(sim: Simulator, fault: str) -> None:
    """Without an error frame and without hidden retries; ``test_fault_matrix`` has the others."""
    faulty = simulated("google", sim, f"fixed@ttft=0.01,fault={fault}")
    healthy = simulated("openai", sim, "fixed@ttft=0.1,answer=I am still here.")
    async with line_to(faulty, healthy, policy=HedgePolicy.fallback()) as line:
        await line.ask()
        report = await line.report()
    assert line.text == "I am still here."
    assert line.framing.count("<") == line.framing.count(">") == 1
    assert line.errors == []
    assert [a.outcome for a in report.attempts] == ["failed", "won"]
    assert len(sim.ledger.requests) == 2


@pytest.mark.parametrize("fault", ["headers_then_silence", "stall"])
async def test_timeout_of_the_google_service_stays_in_force(sim: Simulator, fault: str) -> None:
    settings = GoogleLLMService.Settings(model=f"fixed@ttft=0.01,fault={fault},answer=We are. Up.")
    options = types.HttpOptions(base_url=sim.url)
    google = GoogleLLMService(
        api_key="any", http_options=options, settings=settings, stream_idle_timeout_secs=0.3
    )
    async with line_to(google, policy=HedgePolicy.fallback(stall_secs=None)) as line:
        await line.ask()
        report = await line.report()
    assert [a.outcome for a in report.attempts] == ["failed"]
    assert ["connectivity" in error.error for error in line.errors] == [True]
    await sim.wait_idle(1.0)


@pytest.mark.parametrize("fastest", WIRES)
async def test_each_wire_can_win_a_race_of_three(sim: Simulator, fastest: str) -> None:
    members = [
        simulated(wire, sim, f"fixed@ttft={0.05 if wire == fastest else 5},answer=I am {wire}.")
        for wire in WIRES
    ]
    async with line_to(*members, policy=HedgePolicy.race(3)) as line:
        await line.ask()
        report = await line.report()
    assert line.text == f"I am {fastest}."
    won = [a for a in report.attempts if a.outcome == "won"]
    assert [a.provider for a in won] == ["abc"[WIRES.index(fastest)]]
    assert (won[0].output_tokens or 0) >= 3
    assert not won[0].tokens_estimated
    await sim.wait_idle(1.0)
    lost = [entry for entry in sim.ledger.requests if entry.wire != fastest]
    assert [(entry.outcome, entry.tokens_sent) for entry in lost] == [("aborted", 0)] * 2


@pytest.mark.parametrize("wire", WIRES)
async def test_image_in_the_conversation(sim: Simulator, wire: str) -> None:
    """Each member converts it for its own wire; the token estimate does not count its bytes."""
    image = await LLMContext.create_image_message(
        format="RGB", size=(64, 64), image=bytes(64 * 64 * 3), text="What is this?"
    )
    members = [
        simulated(wire, sim, "fixed@ttft=0.02,answer=A%20black%20square."),
        simulated("openai", sim, "fixed@ttft=2"),
    ]
    async with line_to(*members, policy=HedgePolicy.race(2)) as line:
        await line.ask(context=LLMContext([image]))
        report = await line.report()
    assert line.text == "A black square."
    assert report.attempts[1].tokens_estimated
    assert report.attempts[1].input_tokens == pytest.approx(1000, abs=10)


@pytest.mark.timeout(120)
async def test_many_turns_leave_nothing_behind(sim: Simulator) -> None:
    """No task, no socket and no open request, with every tenth turn failing over.

    The slow one is never heard, so that a loser may become an observed loser, the last one too.
    """
    turns = 300
    quick = simulated("openai", sim, "fixed@ttft=0.002,tps=5000,answer=One two three.")
    slow = simulated("anthropic", sim, "fixed@ttft=1,headers=0,fault=529,rate=0.1")
    observed_secs = 5.0
    async with line_to(quick, slow, policy=HedgePolicy.race(2)) as line:
        for _ in range(10):
            await line.ask()
        await sim.wait_idle(observed_secs)
        tasks, sockets = len(asyncio.all_tasks()), count_sockets()
        for _ in range(turns):
            await line.ask()
        await sim.ledger.wait_until(lambda ledger: len(ledger.open) <= 1, 1.0)
        await sim.wait_idle(observed_secs)
        await line.report(turns + 10)
        # Two more: an idle connection in a pool, or one that is being reopened.
        assert len(asyncio.all_tasks()) <= tasks + 2
        assert count_sockets() <= sockets + 2
        assert line.text == "One two three." * (turns + 10)
        sent = [a for r in line.reports for a in r.attempts if a.sent_secs is not None]
    requests = sim.ledger.requests
    assert len(requests) == len(sent)
    assert not sim.ledger.open
    assert {e.outcome for e in requests if e.wire == "openai"} == {"completed"}
    assert {e.outcome for e in requests if e.wire == "anthropic"} == {"aborted", "failed"}


def count_sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            count += os.readlink(link).startswith("socket:")
        except FileNotFoundError:  # the descriptor that read the folder
            continue
    return count
