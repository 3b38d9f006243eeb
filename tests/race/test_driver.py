"""A race on a blocked event loop: the loop's delay is not a provider's silence."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest
from pipecat.frames.frames import Frame, LLMTextFrame
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from pipecat_hedge import HedgePolicy, Provider, TurnReport
from pipecat_hedge.testing import AutojumpLoop, Say, ScriptedLLMService, Step, Wait
from tests.service.builders import NEVER, Raising, asked, racing, scripted
from tests.support.line import Line

pytestmark = pytest.mark.virtual_time

DOWNSTREAM = FrameDirection.DOWNSTREAM
READING = [Wait(0)] * 10
"""What an answer takes from the socket to the race: some rounds of the loop, and no time."""


async def held_up(*script: Step, secs: float) -> TurnReport:
    """A turn whose loop is blocked for ``secs`` from 0.2 s on; the hedge is due at 0.4 s."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpLoop)
    second = scripted(Wait(0.1), Say("Good evening."))
    async with Line(racing(scripted(*script), second, policy=HedgePolicy.after(0.4))) as line:
        loop.call_later(0.2, loop._jump, secs)
        await line.ask()
        return await line.report()


@pytest.mark.parametrize("secs", [0.3, 0.6, 3.0])
async def test_unread_answer_prevents_a_hedge(secs: float) -> None:
    report = await held_up(Wait(0.3), *READING, Say("Hello."), secs=secs)
    assert [attempt.provider for attempt in report.attempts] == ["a"]


@pytest.mark.parametrize(("secs", "hedged_at"), [(0.1, 0.4), (0.21, 0.41), (0.3, 0.6), (3.0, 3.7)])
async def test_silent_provider_is_hedged_after_the_delay(secs: float, hedged_at: float) -> None:
    report = await held_up(Wait(NEVER), secs=secs)
    assert report.winner == "b"
    assert report.attempts[1].launched_secs == pytest.approx(hedged_at)


@pytest.mark.parametrize(("others", "outcome"), [("b", "answered"), ("", "failed")])
async def test_client_that_cancels_itself_fails_its_attempt(others: str, outcome: str) -> None:
    """From inside, as a broken cancel scope does."""
    second = [scripted(Say("Good evening.")) for _ in others]
    llm = racing(Raising(asyncio.CancelledError()), *second, policy=HedgePolicy.fallback())
    line = await asked(llm)
    report = line.reports[0]
    assert (report.outcome, report.attempts[0].outcome) == (outcome, "failed")
    assert len(line.errors) == (outcome == "failed")


async def test_attempt_inherits_nothing_from_the_one_whose_token_launched_it() -> None:
    """The loop was blocked: the token is read after another attempt's timeout, before its timer."""
    attempt: ContextVar[str] = ContextVar("attempt", default="none")
    seen: list[str] = []

    class Marking(ScriptedLLMService):
        async def _play(self, *args: Any, **options: Any) -> None:
            seen.append(attempt.get())
            attempt.set("another")
            await super()._play(*args, **options)

    loop = asyncio.get_running_loop()
    assert isinstance(loop, AutojumpLoop)
    members = [
        Provider("a", Marking([Wait(NEVER)]), timeout_secs=0.4),
        Marking([Wait(0.15), *READING, Say("Well, "), Wait(0.1), Say("good evening.")]),
        Marking([Wait(NEVER)]),
    ]
    policy = HedgePolicy.after(0.15, max_attempts=3, commit="first_sentence")
    async with Line(racing(*members, policy=policy)) as line:
        loop.call_later(0.2, loop._jump, 0.3)
        await line.ask()
        assert line.text == "Well, good evening."
    assert seen == ["none"] * 3


async def test_error_of_the_pipeline_is_no_failure_of_the_provider() -> None:
    llm = racing(scripted(Say("Hello."), Wait(1)), policy=HedgePolicy.fallback())
    push_frame = llm.push_frame

    async def failing(frame: Frame, direction: FrameDirection = DOWNSTREAM) -> None:
        if isinstance(frame, LLMTextFrame):
            raise RuntimeError("the next processor is broken")
        await push_frame(frame, direction)

    llm.push_frame = failing
    async with Line(llm) as line:
        await line.ask()
        report = await line.report()
    assert [error.exception.args for error in line.errors if error.exception] == [
        ("the next processor is broken",)
    ]
    assert [attempt.outcome for attempt in report.attempts] == ["interrupted"]


async def test_token_is_pushed_in_the_pass_of_the_loop_that_read_it() -> None:
    """Each further pass takes a tenth of a second on a busy machine."""
    order: list[str] = []

    class Noting(ScriptedLLMService):
        async def _push_llm_text(self, text: str) -> None:
            asyncio.get_running_loop().call_soon(order.append, "next pass")
            await super()._push_llm_text(text)

    first = Noting([Wait(0.1), Say("Hello "), Wait(0.1), Say("again.")])
    llm = racing(first, scripted(Wait(NEVER)), policy=HedgePolicy.race(2))
    push_frame = llm.push_frame

    async def noted(frame: Frame, direction: FrameDirection = DOWNSTREAM) -> None:
        if isinstance(frame, LLMTextFrame):
            order.append(frame.text)
        await push_frame(frame, direction)

    llm.push_frame = noted
    await asked(llm)
    assert order == ["Hello ", "next pass", "again.", "next pass"]


@pytest.mark.parametrize("blocked_secs", [1.0, 5.0, 20.0])
async def test_pipeline_that_is_slow_to_take_a_token_is_no_stall(blocked_secs: float) -> None:
    """Nothing is read of the provider meanwhile; it says the next word 2 s later."""

    class Slow(FrameProcessor):
        seen = 0

        async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
            await super().process_frame(frame, direction)
            self.seen += isinstance(frame, LLMTextFrame)
            if isinstance(frame, LLMTextFrame) and self.seen in (1, 3):
                await asyncio.sleep(blocked_secs)
            await self.push_frame(frame, direction)

    words = [step for word in "abcdef" for step in (Say(f"{word} "), Wait(2.0))]
    members = scripted(Wait(0.2), *words), scripted(Wait(0.5), Say("Another answer."))
    slow = Slow(enable_direct_mode=True)
    async with Line(racing(*members, policy=HedgePolicy.after(1.0)), processors=[slow]) as line:
        await line.ask()
        report = await line.report()
    assert line.text == "a b c d e f "
    assert [attempt.outcome for attempt in report.attempts] == ["won"]
