"""The requests that a race may still make."""

from __future__ import annotations

from pipecat_hedge.race.events import Seat
from pipecat_hedge.race.slots import ROOM_AGAIN_SECS, OpenSeats

A, B, C = (Seat(name) for name in "abc")


def test_as_many_are_taken_as_may_be_in_order() -> None:
    """Also where there are more seats."""
    seats = OpenSeats([A, B, C], 2, None)
    assert seats
    assert [seats.take("primary"), seats.take("hedge")] == [A, B]
    assert not seats


def test_who_refuses_comes_after_who_does_not() -> None:
    """But for the first of all; and if all refuse, it is said why."""
    seats = OpenSeats([A, B, C], 3, None)
    seats.refuse({"a": "is full", "b": "is full"}, {"a": 2, "b": 3})
    assert seats.next("primary") == A
    assert seats.next("hedge") == seats.next("failure") == C
    assert seats.refusal is None
    seats.refuse({"a": "is full", "b": "is full", "c": "is down"}, {"a": 2, "b": 1, "c": 3})
    assert seats.next("failure") == B
    assert seats.next("hedge") == A
    assert seats.refusal == "no hedge: a is full"


def test_who_refuses_hedges_only_stands_in_in_its_place() -> None:
    """As where a limit was found out, or the event loop is behind."""
    seats = OpenSeats([A, B], 2, None)
    seats.refuse({"a": "is full", "b": "is full"}, {})
    assert seats.next("stall") == seats.next("failure") == A


def test_who_is_only_tried_stands_in_after_those_who_are_well() -> None:
    """And before those who refuse callers' own requests."""
    seats = OpenSeats([A, B], 2, "a")
    seats.refuse({"b": "is full"}, {"b": 3})
    assert seats.next("failure") == A
    seats.refuse({"b": "is full"}, {})
    assert seats.next("hedge") == A
    assert seats.next("failure") == seats.next("stall") == B
    assert [seats.take("failure"), seats.take("failure")] == [B, A]


def test_a_seat_comes_back_after_a_while_and_is_the_last_then() -> None:
    """Or at once, where everybody is needed."""
    seats = OpenSeats([A, B, C], 2, None)
    taken = seats.take("primary")
    seats.give_back(taken, 5.0)
    assert seats.room_at == 5.0 + ROOM_AGAIN_SECS
    seats.readmit(5.9, everybody=False)
    assert seats.take("hedge") == B
    seats.readmit(6.0, everybody=False)
    assert seats.room_at is None
    assert seats.take("hedge") == C
    assert not seats, "two are all that there are"
    seats.give_back(C, 7.0)
    seats.readmit(7.0, everybody=True)
    assert seats.next("hedge") == A


def test_who_is_struck_does_not_come_back() -> None:
    """Whether its seat is open or on its way back."""
    seats = OpenSeats([A, B, A], 3, None)
    seats.give_back(seats.take("primary"), 0.0)
    seats.strike("a")
    seats.readmit(9.0, everybody=True)
    assert seats.take("hedge") == B
    assert not seats
