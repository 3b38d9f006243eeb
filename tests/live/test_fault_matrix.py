"""Every fault × faulty provider × policy: the caller is answered, or hears the fallback.

Over real sockets, through the simulator. Whatever a provider does, the caller hears the answer, or
the fallback text, alone or after a part of the answer that ends with a whole sentence; it is framed
once; no more requests are sent than the policy allows; and none is left open.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import FunctionCallResultFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams, LLMService

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

ANSWER = "We are open till nine. The kitchen closes at eight. Do come by."
FALLBACK = "I am sorry, one moment please."
WHOLE = [ANSWER[: i + 1] for i, char in enumerate(ANSWER) if char == "."]
"""The answer after each whole sentence."""

# How each fault is requested from the simulator: before there is a connection by an address,
# otherwise by the model's name.
URLS = {"refused": "refused_url", "connect_hang": "hanging_url"}
OPTIONS = {"429": "429,retry_after=2", "slow_close": "slow_close,delay=1"}
FAULTS = (
    *(*URLS, "reset", "hang", "headers_then_silence", "keepalives"),
    *("400", "401", "429", "500", "529", "error_in_band", "malformed_sse"),
    *("empty", "whitespace", "reasoning_forever", "dribble", "stall", "cut", "cut_in_tool"),
    "slow_close",
)
SAYS_NOTHING = {"empty", "whitespace"}
"""Complete answers without text; one from two providers is meant."""
SPEAKS_FIRST = {"dribble", "stall", "cut", "slow_close"}
"""Faults after the first tokens: the race has a winner then, and no request is left."""

Faulty = Literal["primary", "hedge", "both"]
WIRES, COMMITS = ("openai", "anthropic"), ("first_sentence", "first_token")
QUICK, LATER = "fixed@ttft=0.03,tps=400", "fixed@ttft=0.09,tps=400"
HEDGE_SECS, STALL_SECS, TIMEOUT_SECS = 0.4, 0.5, 1.2


@dataclass(frozen=True)
class Cell:
    """One case: a fault on one wire, and the policy that meets it."""

    fault: str
    wire: str
    faulty: Faulty
    policy: str
    commit: str


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_caller_is_answered_or_told(fault: str) -> None:
    """All cells of one fault, concurrently against one simulator; each wire has half of them."""
    cases = itertools.product(("primary", "hedge", "both"), ("race", "after", "fallback"))
    cells = [
        Cell(fault, WIRES[(n + FAULTS.index(fault)) % 2], *case, COMMITS[n // 2 % 2])
        for n, case in enumerate(cases)
    ]
    # Clients take long to make: no turn begins before all exist, or a healthy provider would seem
    # to stall.
    ready = asyncio.Barrier(len(cells))
    async with Simulator(port=0, seed=1) as sim:
        lines = await asyncio.gather(*(run(cell, sim, ready) for cell in cells))
        await sim.wait_idle(1.0)
        requests = sim.ledger.requests
    for cell, (line, tools) in zip(cells, lines, strict=True):
        check(cell, line, tools)
    if fault not in URLS:
        assert len(requests) <= sum(len(line.reports[0].attempts) for line, _ in lines)


async def run(cell: Cell, sim: Simulator, ready: asyncio.Barrier) -> tuple[Line, int]:
    """The line after one turn, and how often its tool has run."""
    hedge_wire = cell.wire
    if cell.faulty == "primary":
        hedge_wire = "anthropic" if cell.wire == "openai" else "openai"
    members = [
        member(cell, sim, cell.wire, QUICK, cell.faulty != "hedge"),
        member(cell, sim, hedge_wire, LATER, cell.faulty != "primary"),
    ]
    options: Any = {"commit": cell.commit, "stall_secs": STALL_SECS, "fallback_text": FALLBACK}
    policies = {
        "race": HedgePolicy.race(2, **options),
        "after": HedgePolicy.after(HEDGE_SECS, **options),
        "fallback": HedgePolicy.fallback(**options),
    }
    llm = HedgedLLMService(
        [
            Provider(name, m, timeout_secs=TIMEOUT_SECS)
            for name, m in zip("ab", members, strict=True)
        ],
        policy=policies[cell.policy],
    )
    ran: list[str] = []

    async def book_table(params: FunctionCallParams) -> None:
        ran.append(params.tool_call_id)
        await params.result_callback("booked")

    context = LLMContext([{"role": "user", "content": "hello"}])
    if cell.fault == "cut_in_tool":
        schema = FunctionSchema("book_table", "Books.", {}, [], handler=book_table)
        context.set_tools([schema])  # pyright: ignore[reportArgumentType]
    try:
        async with Line(llm) as line:
            await ready.wait()
            await line.ask(context=context)
            report = await line.report()
            if report.outcome == "answered_with_tools":
                await line.until(lambda: bool(line.frames(FunctionCallResultFrame)))
            return line, len(ran)
    finally:
        await close(*members)


def member(cell: Cell, sim: Simulator, wire: str, pace: str, faulty: bool) -> LLMService[Any]:
    """A provider that is healthy, or has the cell's fault."""
    answer = f"answer={ANSWER}"
    if cell.fault == "cut_in_tool":
        answer = 'tool=book_table,args={"party_size":2}'
    if faulty and cell.fault in URLS:
        return simulated(wire, sim, f"{pace},{answer}", url=getattr(sim, URLS[cell.fault]))
    fault = f",fault={OPTIONS.get(cell.fault, cell.fault)}" if faulty else ""
    return simulated(wire, sim, f"{pace},{answer}{fault}")


def part_before_fallback(cell: Cell, heard: Line) -> str | None:
    """The part of the answer that the fallback text follows; None if it is no part, or no text."""
    if not heard.text.endswith(FALLBACK):
        return None
    part = heard.text.removesuffix(FALLBACK).rstrip().removesuffix("...").rstrip()
    parts = WHOLE if cell.commit == "first_sentence" else [ANSWER[:n] for n in range(1, 99)]
    return part if part in ["", *parts] else None


def check(cell: Cell, heard: Line, tools: int) -> None:
    """What must hold in every cell."""
    report, info = heard.reports[0], (cell, heard.text, heard.reports)
    assert heard.framing.count("<") == heard.framing.count(">") == 1, info
    assert (heard.framing[0], heard.framing[-1]) == ("<", ">"), info
    # If both have transient failures, both are asked again, as often as their SDKs would.
    rounds = 3 if report.outcome == "failed" else 1
    lost = sum(a.outcome == "superseded" for a in report.attempts)  # asked to continue the answer
    assert sum(a.sent_secs is not None for a in report.attempts) <= 2 * rounds + lost, info
    assert tools <= 1, info
    assert len(heard.errors) == (report.outcome == "failed"), info
    # On a busy machine the healthy provider may be silent for too long as well.
    healthy = "b" if cell.faulty == "primary" else "a"
    all_faulty = cell.faulty == "both" or any(
        attempt.provider == healthy and attempt.error_category in ("stalled", "timeout")
        for attempt in report.attempts
    )
    if cell.fault == "cut_in_tool":
        expected = (FALLBACK, 0) if all_faulty else ("tool", 1)
        assert (heard.text or "tool", tools) == expected, info
        return
    if cell.fault == "slow_close":  # nothing is wrong with the answer
        # An answer that lingers for longer than a stall looks like one that goes on.
        suffix = f" {FALLBACK}" if report.outcome == "failed" else ""
        assert heard.text == ANSWER + suffix, info
        return
    if cell.fault in SAYS_NOTHING and all_faulty and (cell.faulty == "both" or not heard.text):
        assert (heard.text.strip(), report.outcome) == ("", "answered"), info
        return
    if all_faulty:
        speaks_first = cell.faulty != "both" or cell.fault in SPEAKS_FIRST
        part = part_before_fallback(cell, heard)
        assert part == "" or (speaks_first and part is not None), info
        return
    outcomes = [attempt.outcome for attempt in report.attempts]
    broken_winner = {"primary": ["failed", "superseded"], "hedge": ["superseded", "failed"]}
    if cell.fault in SPEAKS_FIRST and outcomes == broken_winner.get(cell.faulty):
        # It had won before it broke, and with the loser both requests were used. Under fallback
        # only a primary that was silent for stall_secs, as on a busy machine, has a rival; and a
        # hedge that starts with the primary wins where the machine comes to it first.
        assert cell.policy != "fallback" or report.attempts[-1].launch_reason == "stall", info
        assert part_before_fallback(cell, heard), info
        return
    assert (heard.text, report.outcome) == (ANSWER, "answered"), info
