"""A turn can end at every point, in every way, and leaves nothing behind.

A provider may hang before its request, before the first token, mid-answer, after a tool call, or
while closing. However the turn ends then, it ends in bounded time, is framed and reported once,
counts against no cancelled provider, and the next turn works.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from pipecat.frames.frames import (
    CancelFrame,
    EagerEndOfTurnCancelFrame,
    EndFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.race.task_scope import CLOSE_SECS
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

NEVER = float("inf")
OPENING_SECS, CLOSING_SECS = 5.0, 5.0
HUNG_AT = 1.0
"""By then every provider hangs where it should."""


class Hanging(ScriptedLLMService):
    """Hangs at a point of its first turn and answers the others."""

    def __init__(self, point: str, name: str):
        first: dict[str, Sequence[Step]] = {
            "before open": [],
            "before the first token": [Wait(NEVER)],
            "in mid-answer": [Say(f"{name} says. "), Say("And"), Wait(NEVER)],
            "during close": [Wait(NEVER)],
        }
        super().__init__(first[point], [Say("Hello again.")])
        self._point = point
        self.live = 0

    async def process_frame(self, frame: Any, direction: FrameDirection) -> None:
        is_first = isinstance(frame, LLMContextFrame) and not self.contexts
        self.live += 1
        try:
            if is_first and self._point == "before open":
                self.contexts.append(frame.context)
                await asyncio.sleep(OPENING_SECS * 100)
            await super().process_frame(frame, direction)
        except asyncio.CancelledError:
            if is_first and self._point == "during close":
                await asyncio.sleep(CLOSING_SECS)
            raise
        finally:
            self.live -= 1


POINTS = ["before open", "before the first token", "in mid-answer", "during close"]


def hedged(
    *members: ScriptedLLMService, timeout_secs: float | None = None, **options: Any
) -> HedgedLLMService:
    providers = [
        Provider(name, member, timeout_secs=timeout_secs)
        for name, member in zip("ab", members, strict=True)
    ]
    options.setdefault("stall_secs", None)
    return HedgedLLMService(providers, policy=HedgePolicy.race(2, **options))


def context() -> LLMContext:
    return LLMContext([{"role": "user", "content": "Hello?"}])


async def over(line: Line, *members: Hanging) -> float:
    """Wait for the turn's report and return how long that took."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    await line.report()
    taken = loop.time() - since
    await asyncio.sleep(CLOSING_SECS)
    assert [member.live for member in members] == [0, 0]
    assert len(line.reports) == 1
    return taken


def framed_once(line: Line) -> bool:
    return line.framing.count("<") == line.framing.count(">") == 1


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
async def test_interruption_ends_the_turn(point: str, commit: Any) -> None:
    members = Hanging(point, "A"), Hanging(point, "B")
    async with Line(hedged(*members, commit=commit)) as line:
        await line.send(LLMContextFrame(context()))
        await asyncio.sleep(HUNG_AT)
        await line.interrupt()
        assert await over(line, *members) <= CLOSE_SECS * 1.01
        assert framed_once(line)
        outcomes = {attempt.outcome for attempt in line.reports[0].attempts}
        assert outcomes <= {"interrupted", "superseded"}
        assert line.reports[0].outcome == "interrupted"
        await line.ask()
    assert line.text.endswith("Hello again.")
    assert line.errors == []


@pytest.mark.parametrize("point", POINTS)
async def test_withdrawn_speculation_releases_nothing(point: str) -> None:
    members = Hanging(point, "A"), Hanging(point, "B")
    async with Line(hedged(*members)) as line:
        await line.send(LLMContextFrame(context(), speculation=True))
        await asyncio.sleep(HUNG_AT)
        await line.send(EagerEndOfTurnCancelFrame())
        assert await over(line, *members) <= CLOSE_SECS * 1.01
        assert line.framing == []
        await line.ask()
    assert line.text == "Hello again."
    assert line.errors == []


@pytest.mark.parametrize("point", POINTS)
async def test_cancelled_session_ends_despite_a_hanging_provider(point: str) -> None:
    members = Hanging(point, "A"), Hanging(point, "B")
    line = Line(hedged(*members))
    async with line:
        await line.send(LLMContextFrame(context()))
        await asyncio.sleep(HUNG_AT)
        await line.send(CancelFrame())
        await line.until(lambda: bool(line.frames(CancelFrame)))
        assert await over(line, *members) <= CLOSE_SECS * 1.01
    assert {a.outcome for a in line.reports[0].attempts} <= {"interrupted", "superseded"}


TIMES = [*itertools.product(POINTS, ["deadline", "timeout"])]


@pytest.mark.parametrize(("point", "end"), TIMES)
async def test_deadline_reports_one_error(point: str, end: str) -> None:
    options: dict[str, Any] = {
        "deadline": {"deadline_secs": 2.0},
        "timeout": {"timeout_secs": 2.0},
    }[end]
    members = Hanging(point, "A"), Hanging(point, "B")
    llm = hedged(*members, fallback_text="Sorry.", commit="first_sentence", **options)
    async with Line(llm) as line:
        await line.send(LLMContextFrame(context()))
        if end == "deadline" and point == "in mid-answer":  # it has been met
            await asyncio.sleep(HUNG_AT + 2)
            assert not line.reports
            await line.interrupt()
        await over(line, *members)
        assert framed_once(line)
        if line.reports[0].outcome == "failed":
            assert len(line.errors) == 1
            assert line.text == ("A says. Sorry." if point == "in mid-answer" else "Sorry.")
        await line.ask()
    assert line.text.endswith("Hello again.")


@pytest.mark.parametrize("point", POINTS)
async def test_answer_completes_before_the_loser_closes(point: str) -> None:
    loser, winner = Hanging(point, "A"), ScriptedLLMService([Wait(HUNG_AT), Say("Hi.")])
    if point == "in mid-answer":
        loser._scripts[0] = [Say("A never says"), Wait(NEVER)]
    async with Line(hedged(loser, winner, commit="first_sentence")) as line:
        await line.ask()
        answered_at = line.times(LLMFullResponseEndFrame)[0]
        assert answered_at - line.times(LLMFullResponseStartFrame)[0] == pytest.approx(HUNG_AT)
        report = await line.report()
        await asyncio.sleep(CLOSING_SECS)
        assert loser.live == 0
    assert [attempt.outcome for attempt in report.attempts] == ["superseded", "won"]
    assert (line.text, line.errors) == ("Hi.", [])


@pytest.mark.parametrize("point", POINTS)
async def test_end_frame_does_not_wait_for_a_loser(point: str) -> None:
    loser, winner = Hanging(point, "A"), ScriptedLLMService([Wait(HUNG_AT), Say("Hi.")])
    if point == "in mid-answer":
        loser._scripts[0] = [Say("A never says"), Wait(NEVER)]
    async with Line(hedged(loser, winner, commit="first_sentence")) as line:
        await line.send(LLMContextFrame(context()), EndFrame())
        await line.until(lambda: bool(line.frames(EndFrame)))
        taken = line.times(EndFrame)[0] - line.times(LLMFullResponseStartFrame)[0]
        assert taken <= HUNG_AT + CLOSE_SECS * 1.01
        await asyncio.sleep(CLOSING_SECS)
    assert line.text == "Hi."
