"""Who gets the next permit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policies.permit_queue import PermitQueue, Ticket, displaces, reserve
from pipecat_hedge.work import TIERS, WORK_CLASSES, Tier, WorkClass


def ticket(
    work: WorkClass = "primary",
    tier: Tier = "standard",
    deadline: float = 3.0,
    candidates: tuple[str, ...] = ("a",),
    joined_at: float = 0.0,
) -> Ticket:
    return Ticket(work, tier, deadline, candidates, joined_at)


tickets = st.builds(
    ticket,
    st.sampled_from(WORK_CLASSES),
    st.sampled_from(TIERS),
    st.floats(0, 10),
    st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(tuple),
    st.floats(0, 10),
)


def test_the_order_is_by_class_then_tier_then_deadline_then_arrival() -> None:
    queue = PermitQueue()
    hedge = ticket("hedge", "premium")
    late = ticket(deadline=5.0)
    second, first = ticket(joined_at=1.0), ticket(joined_at=0.5)
    premium = ticket(tier="premium", deadline=9.0)
    for each in (hedge, late, second, first, premium):
        assert queue.join(each) is None
    order: list[Ticket] = []
    while (best := queue.first_for("a")) is not None:
        order.append(best)
        queue.leave(best)
    assert order == [premium, first, second, late, hedge]
    assert len(queue) == 0


def test_whoever_names_several_providers_is_found_at_each() -> None:
    queue = PermitQueue()
    both, b = ticket(candidates=("a", "b")), ticket("tool_follow_up", candidates=("b",))
    queue.join(b)
    queue.join(both)
    assert queue.first_for("a") is both
    assert queue.first_for("b") is both
    assert queue.first_for("c") is None


def test_leaving_twice_is_no_mistake() -> None:
    queue = PermitQueue()
    one = ticket()
    queue.join(one)
    queue.leave(one)
    queue.leave(one)
    assert queue.first_for("a") is None


@given(st.lists(tickets, max_size=20))
def test_too_many_turn_the_least_urgent_away(waiting: list[Ticket]) -> None:
    """However they come, the most urgent stay."""
    queue = PermitQueue(most=5)
    gone = [away for each in waiting if (away := queue.join(each)) is not None]
    assert len(queue) == min(len(waiting), 5)
    assert len(queue) + len(gone) == len(waiting)
    left: list[Ticket] = []
    for name in "abc":
        while (best := queue.first_for(name)) is not None:
            queue.leave(best)
            left.append(best)
    assert len(left) == min(len(waiting), 5)
    for away in gone:
        assert all(kept.rank <= away.rank for kept in left)


def test_a_wait_that_ends_after_the_deadline_is_hopeless() -> None:
    """Ten are ahead and two a second come back: five seconds and a half, of which there are two."""
    queue = PermitQueue()
    for _ in range(10):
        queue.join(ticket(deadline=1.0))
    assert queue.is_hopeless(ticket(deadline=2.0), [2.0], now=0.0)
    assert not queue.is_hopeless(ticket(deadline=4.0), [2.0], now=0.0)
    assert not queue.is_hopeless(ticket(deadline=2.0), [2.0, 4.0], now=0.0)


def test_nobody_is_ahead_of_the_more_urgent() -> None:
    queue = PermitQueue()
    for _ in range(10):
        queue.join(ticket())
    assert not queue.is_hopeless(ticket(tier="premium", deadline=1.0), [2.0], now=0.0)
    assert not queue.is_hopeless(ticket(candidates=("b",), deadline=1.0), [2.0], now=0.0)


def test_a_place_is_taken_from_a_lower_tier_or_from_what_nobody_waits_for() -> None:
    turn, premium_turn = ticket().urgency, ticket(tier="premium").urgency
    hedge, premium_hedge = ticket("hedge").urgency, ticket("hedge", "premium").urgency
    follow_up = ticket("tool_follow_up").urgency
    assert displaces(premium_turn, turn)
    assert displaces(premium_turn, ticket("tool_follow_up").urgency)
    assert displaces(turn, hedge)
    assert displaces(turn, premium_hedge)
    assert displaces(follow_up, ticket("background", "premium").urgency)
    assert displaces(ticket("hedge", "premium").urgency, hedge)
    assert not displaces(turn, follow_up), "its caller waits as well, and was first"
    assert not displaces(premium_hedge, turn), "a hedge never takes a turn's place"
    assert not displaces(turn, turn)
    assert not displaces(hedge, ticket("background").urgency), "nobody waits for either"


@given(tickets, tickets)
def test_a_place_is_taken_by_the_more_urgent_only(one: Ticket, other: Ticket) -> None:
    if displaces(one.urgency, other.urgency):
        assert one.urgency < other.urgency
        assert not displaces(other.urgency, one.urgency)


def test_without_a_rate_nothing_is_hopeless() -> None:
    queue = PermitQueue()
    queue.join(ticket())
    assert not queue.is_hopeless(ticket(deadline=0.1), [0.0, 0.0], now=0.0)


def test_what_is_less_urgent_than_a_turn_leaves_room() -> None:
    assert [reserve(work, 20) for work in WORK_CLASSES] == [0, 0, 0, 2, 5, 5]
    assert reserve("hedge", 9) == 0
