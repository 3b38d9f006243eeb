"""The requests that a race may still make."""

from __future__ import annotations

from pipecat_hedge.race.events import Slot
from pipecat_hedge.race.slots import SLOT_RETRY_SECS, SlotQueue

A, B, C = (Slot(name) for name in "abc")


def test_slots_are_used_in_order_up_to_the_maximum() -> None:
    slots = SlotQueue([A, B, C], 2, None)
    assert slots
    assert [slots.take("primary"), slots.take("hedge")] == [A, B]
    assert not slots


def test_hedge_prefers_providers_that_accept_hedges() -> None:
    slots = SlotQueue([A, B, C], 3, None)
    slots.refuse({"a": "is full", "b": "is full"}, {"a": 2, "b": 3})
    assert slots.next("primary") == A
    assert slots.next("hedge") == slots.next("failure") == C
    assert slots.refusal is None
    slots.refuse({"a": "is full", "b": "is full", "c": "is down"}, {"a": 2, "b": 1, "c": 3})
    assert slots.next("failure") == B
    assert slots.next("hedge") == A
    assert slots.refusal == "no hedge: a is full"


def test_replacement_uses_provider_that_only_refuses_hedges() -> None:
    slots = SlotQueue([A, B], 2, None)
    slots.refuse({"a": "is full", "b": "is full"}, {})
    assert slots.next("stall") == slots.next("failure") == A


def test_probed_provider_replaces_only_after_healthy_ones() -> None:
    slots = SlotQueue([A, B], 2, "a")
    slots.refuse({"b": "is full"}, {"b": 3})
    assert slots.next("failure") == A
    slots.refuse({"b": "is full"}, {})
    assert slots.next("hedge") == A
    assert slots.next("failure") == slots.next("stall") == B
    assert [slots.take("failure"), slots.take("failure")] == [B, A]


def test_rejected_slot_returns_last_after_a_delay() -> None:
    slots = SlotQueue([A, B, C], 2, None)
    taken = slots.take("primary")
    slots.release(taken, 5.0)
    assert slots.room_at == 5.0 + SLOT_RETRY_SECS
    slots.readmit(5.9, ignore_delay=False)
    assert slots.take("hedge") == B
    slots.readmit(6.0, ignore_delay=False)
    assert slots.room_at is None
    assert slots.take("hedge") == C
    assert not slots, "two are all that there are"
    slots.release(C, 7.0)
    slots.readmit(7.0, ignore_delay=True)
    assert slots.next("hedge") == A


def test_excluded_provider_does_not_return() -> None:
    slots = SlotQueue([A, B, A], 3, None)
    slots.release(slots.take("primary"), 0.0)
    slots.exclude("a")
    slots.readmit(9.0, ignore_delay=True)
    assert slots.take("hedge") == B
    assert not slots
