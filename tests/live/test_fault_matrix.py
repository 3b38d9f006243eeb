"""Every fault × wire × who is faulty × policy × commit: the caller is answered or told.

Over real sockets, through the simulator. Whatever a provider does, what is heard is the answer, or
the fallback text, alone or after a part of the answer that ends with a whole sentence; it is framed
once; no more requests are made than the policy allows; and none is left open.
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

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider, TurnReport
from pipecat_hedge.tools.simulator import Simulator
from tests.support.line import Line
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

ANSWER = "We are open till nine. The kitchen closes at eight. Do come by."
FALLBACK = "I am sorry, one moment please."
WHOLE = [ANSWER[: i + 1] for i, char in enumerate(ANSWER) if char == "."]
"""The answer after each whole sentence."""

# How each fault is asked of the simulator. The two that happen before there is a connection are
# addresses, the others a part of the model's name.
FAULTS = {
    "refused": "refused_url",
    "connect_hang": "hanging_url",
    "reset": "fault=reset",
    "hang": "fault=hang",
    "headers_then_silence": "fault=headers_then_silence",
    "keepalives": "fault=keepalives",
    "400": "fault=400",
    "401": "fault=401",
    "402": "fault=402",
    "403": "fault=403",
    "404": "fault=404",
    "429": "fault=429,retry_after=2",
    "500": "fault=500",
    "503": "fault=503",
    "529": "fault=529",
    "error_in_band": "fault=error_in_band",
    "malformed_sse": "fault=malformed_sse",
    "empty": "fault=empty",
    "whitespace": "fault=whitespace",
    "reasoning_forever": "fault=reasoning_forever",
    "dribble": "fault=dribble",
    "stall": "fault=stall",
    "cut": "fault=cut",
    "cut_in_tool": "fault=cut_in_tool",
    "slow_close": "fault=slow_close,delay=1",
}
SAYS_NOTHING = {"empty", "whitespace"}
"""Answers that are complete and without a word; what two providers say is meant."""
SPEAKS_FIRST = {"dribble", "stall", "cut", "slow_close"}
"""Faults that strike after the first words, so that a race has been won and spent by then."""

Faulty = Literal["primary", "hedge", "both"]
QUICK, LATER = "fixed@ttft=0.03,tps=400", "fixed@ttft=0.09,tps=400"
HEDGE_SECS, STALL_SECS, TIMEOUT_SECS = 0.4, 0.5, 1.2


@dataclass(frozen=True)
class Cell:
    """One case: a fault on one wire, and how it is met."""

    fault: str
    wire: str
    faulty: Faulty
    policy: str
    commit: Literal["first_sentence", "first_token"]

    def __str__(self) -> str:
        return f"{self.fault} on {self.wire}: {self.faulty} faulty, {self.policy}, {self.commit}"


@dataclass(frozen=True)
class Heard:
    """What came of it."""

    text: str
    framing: str
    errors: int
    tools: int
    report: TurnReport


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("fault", FAULTS)
async def test_the_caller_is_answered_or_told(fault: str, wire: str) -> None:
    """All cells of one fault on one wire, side by side against one simulator."""
    cells = [
        Cell(fault, wire, faulty, policy, commit)
        for faulty, policy, commit in itertools.product(
            ("primary", "hedge", "both"),
            ("race", "after", "fallback"),
            ("first_sentence", "first_token"),
        )
    ]
    # Clients are slow to make: nobody asks before all are there, or a sound provider would seem to
    # stall.
    ready = asyncio.Barrier(len(cells))
    async with Simulator(port=0, seed=1) as sim:
        heard = await asyncio.gather(*(run(cell, sim, ready) for cell in cells))
        await sim.wait_idle(1.0)
        requests = sim.ledger.requests
    for cell, result in zip(cells, heard, strict=True):
        check(cell, result)
    asked = sum(len(result.report.attempts) for result in heard)
    if fault not in ("refused", "connect_hang"):
        assert len(requests) <= asked, "a request that no report tells of"


async def run(cell: Cell, sim: Simulator, ready: asyncio.Barrier) -> Heard:
    """Play one cell: one turn, from the context to the end of the answer."""
    other = "anthropic" if cell.wire == "openai" else "openai"
    members: list[LLMService[Any]] = [
        member(cell, sim, cell.wire, QUICK, cell.faulty in ("primary", "both")),
        member(
            cell,
            sim,
            other if cell.faulty == "primary" else cell.wire,
            LATER,
            cell.faulty in ("hedge", "both"),
        ),
    ]
    llm = HedgedLLMService(
        [
            Provider(name, service, timeout_secs=TIMEOUT_SECS)
            for name, service in zip("ab", members, strict=True)
        ],
        policy=policy_of(cell),
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
            return Heard(line.text, "".join(line.framing), len(line.errors), len(ran), report)
    finally:
        await close(*members)


def member(cell: Cell, sim: Simulator, wire: str, pace: str, faulty: bool) -> LLMService[Any]:
    """A provider that is sound, or has the cell's fault."""
    spell = FAULTS[cell.fault]
    says = f"answer={ANSWER}"
    if cell.fault == "cut_in_tool":
        says = 'tool=book_table,args={"party_size":2}'
    if not faulty:
        return simulated(wire, sim, f"{pace},{says}")
    if spell.endswith("_url"):
        return simulated(wire, sim, f"{pace},{says}", url=getattr(sim, spell))
    return simulated(wire, sim, f"{pace},{says},{spell}")


def policy_of(cell: Cell) -> HedgePolicy:
    """The cell's policy, quick enough for a test."""
    options: Any = {
        "commit": cell.commit,
        "stall_secs": STALL_SECS,
        "fallback_text": FALLBACK,
    }
    if cell.policy == "race":
        return HedgePolicy.race(2, **options)
    if cell.policy == "after":
        return HedgePolicy.after(HEDGE_SECS, **options)
    return HedgePolicy.fallback(**options)


def part_before_fallback(cell: Cell, heard: Heard) -> str | None:
    """The part of the answer that the fallback text follows; None if it is no part, or no text."""
    if not heard.text.endswith(FALLBACK):
        return None
    part = heard.text.removesuffix(FALLBACK).rstrip().removesuffix("...").rstrip()
    parts = WHOLE if cell.commit == "first_sentence" else [ANSWER[:n] for n in range(1, 99)]
    return part if part in ["", *parts] else None


def check(cell: Cell, heard: Heard) -> None:
    """What must hold in every cell."""
    report = heard.report
    assert heard.framing.count("<") == heard.framing.count(">") == 1, cell
    assert heard.framing[0] == "<", cell
    assert heard.framing[-1] == ">", cell
    # Where both have failed in passing, both are asked again, as often as their SDKs would have.
    rounds = 3 if report.outcome == "failed" else 1
    assert sum(a.sent_secs is not None for a in report.attempts) <= 2 * rounds, cell
    assert heard.errors <= 1, cell
    assert heard.tools <= 1, cell
    assert heard.errors == (report.outcome == "failed"), cell
    # Whom a busy machine kept silent for too long has been as faulty as the other.
    sound = "b" if cell.faulty == "primary" else "a"
    is_busy = any(
        attempt.provider == sound and attempt.error_category in ("stalled", "timeout")
        for attempt in report.attempts
    )
    if cell.fault == "cut_in_tool":
        is_told = cell.faulty == "both" or is_busy
        said = heard.text or "tool"
        assert (said, heard.tools) == ((FALLBACK, 0) if is_told else ("tool", 1)), (cell, report)
        return
    if cell.fault == "slow_close":  # nothing is wrong with the answer
        # Nobody can tell an answer that lingers for longer than a stall from one that goes on.
        told = f"{ANSWER} {FALLBACK}" if report.outcome == "failed" else ANSWER
        assert heard.text == told, cell
        return
    if cell.fault in SAYS_NOTHING and (cell.faulty == "both" or (is_busy and not heard.text)):
        # An empty answer is what that model said, where the other was kept silent too.
        assert (heard.text.strip(), report.outcome) == ("", "answered"), (cell, heard.text, report)
        return
    if cell.faulty == "both" or is_busy:
        spoke_first = is_busy or cell.fault in SPEAKS_FIRST
        part = part_before_fallback(cell, heard)
        assert part == "" or (spoke_first and part is not None), (cell, heard.text)
        return
    outcomes = [attempt.outcome for attempt in report.attempts]
    broken_winner = {"primary": ["failed", "superseded"], "hedge": ["superseded", "failed"]}
    if cell.fault in SPEAKS_FIRST and outcomes == broken_winner.get(cell.faulty):
        # It had won before it broke, and with the loser both requests were spent. Under fallback
        # only a primary that was silent for stall_secs, as on a busy machine, has a rival; and a
        # hedge that starts with the primary wins where the machine comes to it first.
        reasons = [attempt.launch_reason for attempt in report.attempts]
        assert cell.policy != "fallback" or reasons[-1] == "stall", cell
        assert part_before_fallback(cell, heard), (cell, heard.text)
        return
    assert heard.text == ANSWER, (cell, heard.text, report)
    assert report.outcome == "answered", cell
