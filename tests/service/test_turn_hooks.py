"""Who is told of every turn of a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loguru import logger

from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.service.turn_hooks import TurnHooks

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
