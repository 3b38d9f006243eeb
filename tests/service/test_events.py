"""The event hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from loguru import logger

from pipecat_hedge.race import BreakerReport, TurnReport
from pipecat_hedge.service.events import EventHub

TURN = TurnReport(1, None, "failed", None, None, 0.1, ())


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), level="WARNING")
    yield lines
    logger.remove(sink)


def test_subscribers_are_called_until_they_unsubscribe() -> None:
    hub, calls = EventHub(), list[str]()

    def first(_: TurnReport) -> None:
        calls.append("first")

    hub.subscribe(TurnReport, first)
    hub.subscribe(TurnReport, lambda _: calls.append("second"))
    hub.publish(TURN)
    hub.unsubscribe(first)
    hub.publish(TURN)
    assert calls == ["first", "second", "second"]


def test_only_events_of_the_subscribed_type_arrive() -> None:
    hub, events = EventHub(), list[object]()
    change = BreakerReport("a", None, "closed", "open", "5 failures")
    hub.subscribe(BreakerReport, events.append)
    hub.publish(TURN)
    hub.publish(change)
    assert events == [change]


def test_events_are_passed_on_to_the_parent_only() -> None:
    parent = EventHub()
    child, sibling = EventHub(parent), EventHub(parent)
    at_parent, at_sibling = list[object](), list[object]()
    parent.subscribe(TurnReport, at_parent.append)
    sibling.subscribe(TurnReport, at_sibling.append)
    child.publish(TURN)
    assert (at_parent, at_sibling) == ([TURN], [])


def test_a_failing_subscriber_is_logged_once(warnings: list[str]) -> None:
    hub, calls = EventHub(), list[str]()

    def fails(_: TurnReport) -> None:
        calls.append("failing")
        raise ValueError("no")

    hub.subscribe(TurnReport, fails)
    hub.subscribe(TurnReport, lambda _: calls.append("next"))
    hub.publish(TURN)
    hub.publish(TURN)
    assert calls == ["failing", "next"] * 2
    assert len(warnings) == 1
    assert "fails" in warnings[0]
