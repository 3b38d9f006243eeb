"""A turn can end at every point, in every way, and leaves nothing behind.

A provider may hang before its request, before the first token, mid-answer, or while closing.
However the turn ends then, it ends in bounded time, is framed and reported once, counts against no
cancelled provider, and the next turn works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pipecat.frames.frames import (
    CancelFrame,
    EagerEndOfTurnCancelFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.processors.frame_processor import FrameDirection

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.race.task_scope import CLOSE_SECS
from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from tests.service.builders import NEVER, racing, said, scripted
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

CLOSING_SECS = 5.0
HUNG_AT = 1.0
"""By then every provider hangs where it should."""
POINTS = ["before open", "before the first token", "in mid-answer", "during close"]
at_each_point = pytest.mark.parametrize("point", POINTS)


class Hanging(ScriptedLLMService):
    """Hangs at a point of its first turn and answers the others."""

    def __init__(self, point: str, sentence: str):
        first: Sequence[Step] = [Wait(NEVER)]
        if point == "in mid-answer":
            first = [Wait(0.01), Say(sentence), Say("And"), Wait(NEVER)]
        super().__init__(first, [Say("Hello again.")])
        self._point = point
        self.live = 0

    async def process_frame(self, frame: Any, direction: FrameDirection) -> None:
        is_first = isinstance(frame, LLMContextFrame) and not self.contexts
        self.live += 1
        try:
            if is_first and self._point == "before open":
                self.contexts.append(frame.context)
                await asyncio.sleep(500)
            await super().process_frame(frame, direction)
        except asyncio.CancelledError:
            if is_first and self._point == "during close":
                await asyncio.sleep(CLOSING_SECS)
            raise
        finally:
            self.live -= 1


def both(point: str) -> tuple[Hanging, Hanging]:
    return Hanging(point, "A says. "), Hanging(point, "B says. ")


def hedged(*members: Any, **options: Any) -> HedgedLLMService:
    options.setdefault("stall_secs", None)
    return racing(*members, policy=HedgePolicy.race(2, **options))


async def over(line: Line, *members: Hanging) -> float:
    """Wait for the turn's report and return how long that took."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    await line.report()
    taken = loop.time() - since
    await asyncio.sleep(CLOSING_SECS)
    assert not any(member.live for member in members)
    assert len(line.reports) == 1
    return taken


@at_each_point
@pytest.mark.parametrize("commit", ["first_sentence", "first_token"])
@pytest.mark.parametrize("end", [InterruptionFrame, EagerEndOfTurnCancelFrame, CancelFrame])
async def test_turn_ends_at_once_and_the_next_works(
    point: str, commit: Any, end: type[Frame]
) -> None:
    """By an interruption, a speculation that is withdrawn, or the session's end."""
    is_speculation = end is EagerEndOfTurnCancelFrame
    members = both(point)[: 1 if is_speculation else 2]  # the second is not asked so early
    async with Line(hedged(*members, commit=commit, fallback_text="Sorry.")) as line:
        await line.send(LLMContextFrame(said(), speculation=is_speculation))
        await asyncio.sleep(HUNG_AT)
        await line.send(end())
        assert await over(line, *members) <= CLOSE_SECS * 1.01
        report = line.reports[0]
        assert report.outcome == ("withdrawn" if is_speculation else "interrupted")
        assert report.degraded_reason is None
        assert {attempt.outcome for attempt in report.attempts} <= {"interrupted", "superseded"}
        if end is CancelFrame:
            return
        assert line.framing.count("<") == line.framing.count(">") == (not is_speculation)
        assert bool(line.framing) is not is_speculation
        before = line.text
        assert "Sorry" not in before
        await line.ask()
    assert (line.text, line.errors) == (before + "Hello again.", [])


@at_each_point
@pytest.mark.parametrize("end", ["deadline", "timeout"])
async def test_deadline_reports_at_most_one_error(point: str, end: str) -> None:
    members = both(point)
    timeout_secs = 2.0 if end == "timeout" else None
    providers = [
        Provider(name, member, timeout_secs=timeout_secs)
        for name, member in zip("ab", members, strict=True)
    ]
    deadline_secs = 2.0 if end == "deadline" else None
    options: dict[str, Any] = {"commit": "first_sentence", "deadline_secs": deadline_secs}
    async with Line(hedged(*providers, fallback_text="Sorry.", **options)) as line:
        await line.send(LLMContextFrame(said()))
        is_met = end == "deadline" and point == "in mid-answer"
        if is_met:
            await asyncio.sleep(HUNG_AT + 2)
            assert not line.reports
            await line.interrupt()
        await over(line, *members)
        assert line.framing.count("<") == line.framing.count(">") == 1
        if end == "timeout" and point == "in mid-answer":  # the one that lost continues it
            assert (line.reports[0].outcome, line.errors) == ("answered", [])
            assert line.text == "A says. Hello again."
        elif not is_met:
            assert (line.reports[0].outcome, len(line.errors)) == ("failed", 1)
            assert line.text == "Sorry."
        await line.ask()
    assert line.text.endswith("Hello again.")


@at_each_point
@pytest.mark.parametrize("ends", [False, True], ids=["turn", "session"])
async def test_turn_completes_before_the_loser_closes(point: str, ends: bool) -> None:
    loser, winner = Hanging(point, "A never says"), scripted(Wait(HUNG_AT), Say("Hi."))
    last: type[LLMFullResponseEndFrame | EndFrame] = EndFrame if ends else LLMFullResponseEndFrame
    async with Line(hedged(loser, winner, commit="first_sentence")) as line:
        await line.send(LLMContextFrame(said()), *[EndFrame()] * ends)
        await line.until(lambda: bool(line.frames(last)))
        taken = line.times(last)[0] - line.times(LLMFullResponseStartFrame)[0]
        assert HUNG_AT <= taken <= HUNG_AT + CLOSE_SECS * 1.01 * ends
        report = await line.report()
        await asyncio.sleep(CLOSING_SECS)
        assert loser.live == 0
    assert [attempt.outcome for attempt in report.attempts] == ["superseded", "won"]
    assert (line.text, line.errors) == ("Hi.", [])
