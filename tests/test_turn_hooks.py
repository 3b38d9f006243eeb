"""Who is told of every turn of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from loguru import logger

from pipecat_hedge import turn_hooks
from pipecat_hedge.loop_work import LoopWork
from pipecat_hedge.reports import TurnReport
from pipecat_hedge.turn_hooks import TurnHooks

TURN = TurnReport(1, None, "failed", None, None, 0.1, ())


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="WARNING")
    yield said
    logger.remove(sink)


def test_each_hook_is_told_until_it_is_removed() -> None:
    """In the order in which they came."""
    hooks, told = TurnHooks(), list[str]()

    def first(_: TurnReport) -> None:
        told.append("first")

    def second(_: TurnReport) -> None:
        told.append("second")

    hooks.add(first)
    hooks.add(second)
    hooks.tell(TURN)
    hooks.remove(first)
    hooks.tell(TURN)
    assert told == ["first", "second", "second"]


def test_a_hook_that_fails_is_named_once(warnings: list[str]) -> None:
    """And called again all the same; those behind it are told."""
    hooks, told = TurnHooks(), list[str]()

    def fails(_: TurnReport) -> None:
        told.append("failing")
        raise ValueError("no")

    hooks.add(fails)
    hooks.add(lambda _: told.append("next"))
    hooks.tell(TURN)
    hooks.tell(TURN)
    assert told == ["failing", "next"] * 2
    assert len(warnings) == 1
    assert "fails" in warnings[0]


async def test_beats_while_there_are_sessions_and_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last one is after the last session has ended, so that nothing stale is left."""
    monkeypatch.setattr(turn_hooks, "BEAT_SECS", 0.001)
    hooks = TurnHooks()
    work = LoopWork({"beats": hooks.run_if_real})
    beaten = asyncio.Event()
    sessions: list[int] = []

    def beat() -> None:
        sessions.append(work.holders)
        beaten.set()

    hooks.add(lambda _: None, beat=beat)
    work.hold()
    await asyncio.wait_for(beaten.wait(), 10)
    assert sessions[-1] == 1
    await work.release()
    assert sessions[-1] == 0
    count = len(sessions)
    await asyncio.sleep(0.005)
    assert len(sessions) == count


@pytest.mark.virtual_time
async def test_no_beats_on_a_virtual_loop() -> None:
    """A timer would have it run ahead of its threads."""
    hooks = TurnHooks()
    await asyncio.wait_for(hooks.run_if_real(), 1)
