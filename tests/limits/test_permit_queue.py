"""The order in which requests wait for room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits.permit_queue import PermitQueue, Ticket
from pipecat_hedge.limits.priority import WORK_CLASSES, WorkClass
from pipecat_hedge.race import TIERS, Tier


def ticket(
    work: WorkClass = "primary",
    tier: Tier = "standard",
    deadline: float = 3.0,
    joined_at: float = 0.0,
    candidates: tuple[str, ...] = ("a",),
    sheds: bool = False,
) -> Ticket:
    return Ticket(work, tier, deadline, candidates, joined_at, sheds=sheds)


def test_order_is_work_tier_deadline_arrival() -> None:
    queue = PermitQueue()
    in_order = [
        ticket(tier="premium", deadline=9.0),
        ticket(joined_at=0.5),
        ticket(joined_at=1.0),
        ticket(deadline=5.0),
        ticket("background", "premium"),
    ]
    for place in (4, 3, 2, 1, 0):
        queue.join(in_order[place])
    assert list(queue.waiting_for("a")) == in_order


def test_shedding_ticket_does_not_delay_other_callers() -> None:
    queue = PermitQueue()
    queue.join(ticket(tier="premium", sheds=True))
    assert not queue.is_behind(ticket(tier="economy"), "a")
    assert queue.is_behind(ticket(tier="economy", sheds=True), "a")
    assert queue.is_behind(ticket("hedge", "premium"), "a")
    queue.join(ticket())
    assert queue.is_behind(ticket(tier="economy"), "a")
    assert not queue.is_behind(ticket(tier="economy", candidates=("b",)), "b")


@given(
    st.lists(
        st.builds(
            ticket,
            st.sampled_from(WORK_CLASSES),
            st.sampled_from(TIERS),
            st.floats(0, 10),
            st.floats(0, 10),
            st.lists(st.sampled_from("abc"), min_size=1, unique=True).map(tuple),
        ),
        max_size=20,
    )
)
def test_tickets_wait_at_each_candidate_until_they_leave(waiting: list[Ticket]) -> None:
    queue = PermitQueue()
    for each in waiting:
        queue.join(each)
    assert len(queue) == len(waiting)
    for name in "abc":
        found = list(queue.waiting_for(name))
        assert {id(each) for each in found} == {
            id(each) for each in waiting if name in each.candidates
        }
        assert [each.rank for each in found] == sorted(each.rank for each in found)
    for each in waiting * 2:  # leaving twice is allowed
        queue.leave(each)
    assert len(queue) == 0
