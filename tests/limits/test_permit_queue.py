"""The order in which requests wait for room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits.permit_queue import OPTIONAL, RESERVED, PermitQueue, Ticket
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.race import TIERS, Tier


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


def test_order_is_work_tier_deadline_arrival() -> None:
    queue = PermitQueue()
    background = ticket("background", "premium")
    late = ticket(deadline=5.0)
    second, first = ticket(joined_at=1.0), ticket(joined_at=0.5)
    premium = ticket(tier="premium", deadline=9.0)
    for each in (background, late, second, first, premium):
        queue.join(each)
    assert list(queue.waiting_for("a")) == [premium, first, second, late, background]


def test_ticket_waits_at_each_candidate() -> None:
    queue = PermitQueue()
    both, b = ticket(candidates=("a", "b")), ticket("tool_follow_up", candidates=("b",))
    queue.join(b)
    queue.join(both)
    assert list(queue.waiting_for("a")) == [both]
    assert list(queue.waiting_for("b")) == [both, b]
    assert list(queue.waiting_for("c")) == []


def test_shedding_ticket_does_not_delay_other_callers() -> None:
    queue = PermitQueue()
    sheds = Ticket("primary", "premium", 3.0, ("a",), 0.0, sheds=True)
    queue.join(sheds)
    assert not queue.is_behind(ticket(tier="economy"), "a")
    assert queue.is_behind(Ticket("primary", "economy", 3.0, ("a",), 0.0, sheds=True), "a")
    assert queue.is_behind(ticket("hedge", "premium"), "a")
    queue.join(ticket())
    assert queue.is_behind(ticket(tier="economy"), "a")
    assert not queue.is_behind(ticket(tier="economy", candidates=("b",)), "b")


def test_leaving_twice_is_allowed() -> None:
    queue = PermitQueue()
    one = ticket()
    queue.join(one)
    queue.leave(one)
    queue.leave(one)
    assert list(queue.waiting_for("a")) == []


@given(st.lists(tickets, max_size=20))
def test_queue_keeps_any_number_of_tickets(waiting: list[Ticket]) -> None:
    queue = PermitQueue()
    for each in waiting:
        queue.join(each)
    assert len(queue) == len(waiting)
    for name in "abc":
        found = list(queue.waiting_for(name))
        assert [each.rank for each in found] == sorted(each.rank for each in found)
        for each in found:
            queue.leave(each)
    assert len(queue) == 0


def test_only_hedges_and_warm_ups_are_optional() -> None:
    assert frozenset({"hedge", "warm_up"}) == OPTIONAL
    assert {work for work in WORK_CLASSES if ticket(work).is_optional} == OPTIONAL
    assert {work for work, share in RESERVED.items() if share > 0} == OPTIONAL
