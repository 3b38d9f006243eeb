"""The event hub."""

from __future__ import annotations

from pipecat_hedge.race import TurnReport
from pipecat_hedge.service.events import EventHub
from tests.support.logged import logged

TURN = TurnReport(1, None, "failed", None, None, 0.1, ())


def test_events_are_passed_on_to_the_parent_only() -> None:
    parent = EventHub()
    child, sibling = EventHub(parent), EventHub(parent)
    at_parent, at_sibling = list[object](), list[object]()
    parent.subscribe(TurnReport, at_parent.append)
    sibling.subscribe(TurnReport, at_sibling.append)
    child.publish(TURN)
    assert (at_parent, at_sibling) == ([TURN], [])


def test_a_failing_subscriber_is_logged_once() -> None:
    hub, others = EventHub(), list[object]()

    def fails(_: TurnReport) -> None:
        raise ValueError("no")

    hub.subscribe(TurnReport, fails)
    hub.subscribe(TurnReport, others.append)
    with logged() as warnings:
        hub.publish(TURN)
        hub.publish(TURN)
    assert others == [TURN, TURN]
    assert len(warnings) == 1
    assert "fails" in warnings[0]
