"""Breakers, limits and the queue, together: permits are bounded, ordered and never lost."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pipecat_hedge.ending import ANSWERED, DROPPED, SILENT, Ending
from pipecat_hedge.health import Health
from pipecat_hedge.policies.permit_queue import Ticket, displaces
from pipecat_hedge.provider_health import Permit
from pipecat_hedge.provider_registry import UNHEARD
from pipecat_hedge.work import TIERS, WORK_CLASSES, Tier, WorkClass

FAILED, BUSY = Ending("failed", "failed"), Ending("busy", "busy")


def registry() -> Health:
    return Health(random.Random(1))


def ticket(*keys: str, work: WorkClass = "primary", tier: Tier = "standard") -> Ticket:
    return Ticket(work, tier, 3.0, keys, 0.0)


def fail(health: Health, key: str, now: float, times: int = 5) -> None:
    for _ in range(times):
        permit = health.take(ticket(key), now)
        assert permit is not None
        health.give_back(permit, FAILED, now)


class Permits(RuleBasedStateMachine):
    """Whatever happens in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.health = registry()
        self.now = 0.0
        self.out: list[Permit] = []
        self.waiting: dict[Ticket, list[Permit | None]] = {}
        self.called: list[Permit] = []

    def recall(self, permit: Permit) -> None:
        """Somebody is called back: who was not heard, and is less urgent than one that waits."""
        assert permit.is_out
        assert not permit.is_heard
        if permit.is_displaced:
            assert permit.makes_room
            assert any(displaces(t.urgency, permit.urgency) for t in self.health._granted)
        self.called.append(permit)

    def got(self, permit: Permit, rank: tuple[Any, ...]) -> None:
        """A permit was given: below the limit, and to nobody in front of whom somebody waits."""
        limit = self.health.of(permit.key).limit
        assert limit.in_flight <= limit.limit(self.now)
        ahead = [t for t, given in self.waiting.items() if not given and permit.key in t.candidates]
        assert all(t.rank >= rank for t in ahead)
        permit.recall = partial(self.recall, permit)
        self.out.append(permit)

    @rule(
        work=st.sampled_from(WORK_CLASSES),
        tier=st.sampled_from(TIERS),
        keys=st.lists(st.sampled_from("abc"), min_size=1, unique=True),
        waits=st.booleans(),
    )
    def arrive(self, work: WorkClass, tier: Tier, keys: list[str], waits: bool) -> None:
        wanted = Ticket(work, tier, self.now + 3.0, tuple(keys), self.now)
        if (permit := self.health.take(wanted, self.now)) is not None:
            self.got(permit, wanted.rank)
        elif waits:
            given: list[Permit | None] = []

            def grant(permit: Permit | None) -> None:
                given.append(permit)
                if permit is not None:
                    self.got(permit, wanted.rank)

            self.waiting[wanted] = given
            if self.health.wait(wanted, grant, self.now) is not None:
                del self.waiting[wanted]

    @rule(data=st.data(), ending=st.sampled_from([ANSWERED, DROPPED, SILENT, FAILED, BUSY]))
    def end(self, data: st.DataObject, ending: Ending) -> None:
        if self.out:
            permit = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
            self.health.give_back(permit, ending, self.now, ttft_secs=0.3)
            self.health.give_back(permit, ending, self.now)  # a second time changes nothing

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Somebody who waits is interrupted, before or after the permit was given."""
        if self.waiting:
            wanted = data.draw(st.sampled_from(list(self.waiting)))
            self.health.leave(wanted)
            for permit in self.waiting.pop(wanted):
                if permit is not None and permit in self.out:
                    self.out.remove(permit)
                    self.health.give_back(permit, DROPPED, self.now)

    @rule(data=st.data(), may=st.booleans())
    def hear(self, data: st.DataObject, may: bool) -> None:
        """An answer begins, or its turn has nobody else to ask."""
        if self.out:
            permit = data.draw(st.sampled_from(self.out))
            permit.makes_room &= may
            if may:
                self.health.heard(permit, self.now)

    @rule()
    def make_room(self) -> None:
        """Who has been called back goes, unless it was heard or has ended meanwhile."""
        called, self.called = self.called, []
        for permit in called:
            if permit in self.out and permit.makes_room and not permit.is_heard:
                self.out.remove(permit)
                self.health.give_back(permit, DROPPED, self.now)

    @rule(secs=st.floats(0.0, 90.0))
    def pass_time(self, secs: float) -> None:
        self.now += secs
        for wanted in list(self.waiting):
            self.health.look_again(wanted, self.now)

    @rule(key=st.sampled_from("abc"), at_most=st.integers(0, 5))
    def believe(self, key: str, at_most: int) -> None:
        self.health.of(key).limit.believe(at_most, self.now + 1.0)

    @rule(key=st.sampled_from("abc"))
    def probe(self, key: str) -> None:
        if self.health.claim_probe(key, self.now):
            assert not self.health.claim_probe(key, self.now)  # one at a time
            wanted = ticket(key)
            permit = self.health.take(wanted, self.now, probe=key)
            if permit is None:
                self.health.drop_probe(key, self.now)
            else:
                assert permit.is_probe
                self.out.append(permit)

    @invariant()
    def as_many_are_in_flight_as_are_out(self) -> None:
        for key, entry in self.health.entries().items():
            assert entry.limit.in_flight == sum(p.key == key for p in self.out)

    def teardown(self) -> None:
        for wanted in list(self.waiting):
            self.health.leave(wanted)
        for permit in self.out:
            self.health.give_back(permit, DROPPED, self.now)
        assert all(entry.limit.in_flight == 0 for entry in self.health.entries().values())
        assert not self.health._granted
        assert not self.health._making_room


TestPermits = Permits.TestCase


def test_a_request_goes_where_there_is_room() -> None:
    """The preferred provider has none: the next one is asked, nobody waits."""
    health = registry()
    health.of("a").limit.believe(1, until=10.0)
    first = health.take(ticket("a", "b"), 0.0)
    second = health.take(ticket("a", "b"), 0.0)
    assert first is not None
    assert second is not None
    assert (first.key, second.key) == ("a", "b")


def test_a_hedge_leaves_room_for_turns() -> None:
    health = registry()
    health.of("a").limit.believe(20, until=10.0)
    hedges = [health.take(ticket("a", work="hedge"), 0.0) for _ in range(20)]
    assert sum(permit is not None for permit in hedges) == 18
    told = health.refusals(["a"], "hedge", "standard", 0.0)
    assert told == {"a": "has 18 of 20 requests in flight"}
    assert health.refusals(["a"], "primary", "standard", 0.0) == {}


def test_a_failing_provider_is_left_alone_and_tried_by_one_at_a_time() -> None:
    health = registry()
    fail(health, "a", 0.0)
    assert health.state("a", 1.0) == "open"
    assert health.take(ticket("a"), 1.0) is None
    (why,) = health.refusals(["a", "b"], "primary", "standard", 1.0).values()
    assert "5 failures in a row" in why
    assert health.state("a", 100.0) == "half_open"
    assert health.claim_probe("a", 100.0)
    assert not health.claim_probe("a", 100.0)
    assert health.take(ticket("a"), 100.0) is None
    probe = health.take(ticket("a"), 100.0, probe="a")
    assert probe is not None
    health.give_back(probe, ANSWERED, 101.0)
    assert health.claim_probe("a", 101.0)


def test_changes_are_told_once_with_their_reason() -> None:
    health = registry()
    fail(health, "a", 0.0)
    (change,) = health.take_changes()
    assert (change.key, change.event.before, change.event.after) == ("a", "closed", "open")
    assert "5 failures in a row" in change.event.reason
    assert health.take_changes() == ()
    assert health.told("a", 1.0) == change.event.reason
    assert health.told("b", 1.0) == ""


def test_waiting_is_no_use_where_everybody_is_left_alone() -> None:
    health = registry()
    fail(health, "a", 0.0)
    assert health.wait(ticket("a"), lambda permit: None, 0.0) is not None
    assert health.wait(ticket("a", "b"), lambda permit: None, 0.0) is None


def test_waiting_ends_when_the_last_candidate_is_left_alone() -> None:
    health = registry()
    health.of("a").limit.believe(5, until=10.0)
    out = [health.take(ticket("a"), 0.0) for _ in range(5)]
    waiting = ticket("a")
    assert health.wait(waiting, lambda permit: None, 0.0) is None
    for permit in out:
        assert permit is not None
        health.of("a").limit.believe(1, until=10.0)
        health.give_back(permit, FAILED, 0.0)
    assert health.look_again(waiting, 0.0) == "everybody who could be asked is left alone"


def test_who_is_overtaken_again_and_again_is_unheard_until_it_says_something() -> None:
    health = registry()

    def end(ending: Ending, *, was_unheard: bool, ttft_secs: float | None = None) -> None:
        permit = health.take(ticket("a"), 0.0)
        assert permit is not None
        health.give_back(permit, ending, 0.0, ttft_secs=ttft_secs, was_unheard=was_unheard)

    for _ in range(UNHEARD):
        assert not health.is_unheard("a")
        end(DROPPED, was_unheard=True)
    assert health.is_unheard("a")
    end(DROPPED, was_unheard=False)  # interrupted: says nothing
    end(SILENT, was_unheard=False)
    assert health.is_unheard("a")
    assert health.state("a", 0.0) == "closed"
    end(DROPPED, was_unheard=False, ttft_secs=2.0)  # overtaken, but after it had begun
    assert not health.is_unheard("a")


def test_one_that_was_waited_for_in_vain_tells_of_those_before_it() -> None:
    """Four were overtaken before a word came; of the fifth it was seen that none comes."""
    health = registry()
    for ending in (DROPPED, DROPPED, DROPPED, DROPPED, SILENT):
        assert health.state("a", 0.0) == "closed"
        permit = health.take(ticket("a"), 0.0)
        assert permit is not None
        health.give_back(permit, ending, 3.0, was_unheard=ending is DROPPED)
    assert health.state("a", 3.0) == "open"


def test_who_is_waited_for_in_vain_counts_once() -> None:
    """Five times, and not after three of which each counts those before it again."""
    health = registry()
    for _ in range(5):
        assert health.state("a", 0.0) == "closed"
        permit = health.take(ticket("a"), 0.0)
        assert permit is not None
        health.give_back(permit, SILENT, 0.0)
    assert health.state("a", 0.0) == "open"
    assert health.told("a", 0.0).startswith("5 failures in a row")


def test_those_that_were_overtaken_are_told_of_once() -> None:
    """Three, one of which it is seen that no word comes, and one more: five in a row."""
    health = registry()
    for ending in (DROPPED, DROPPED, DROPPED, SILENT, SILENT):
        assert health.state("a", 0.0) == "closed"
        permit = health.take(ticket("a"), 0.0)
        assert permit is not None
        health.give_back(permit, ending, 0.0, was_unheard=ending is DROPPED)
    assert health.is_unheard("a")
    assert health.told("a", 0.0).startswith("5 failures in a row")


def test_who_breaks_off_in_mid_answer_has_been_heard() -> None:
    """It failed, and is not silent; what was overtaken before it says nothing any more."""
    health = registry()
    for _ in range(4):
        permit = health.take(ticket("a"), 0.0)
        assert permit is not None
        health.give_back(permit, SILENT, 0.0, ttft_secs=0.4)
        assert not health.is_unheard("a")
    for ending, ttft_secs in ((DROPPED, None), (DROPPED, None), (SILENT, 0.4)):
        assert health.state("a", 0.0) == "closed"
        permit = health.take(ticket("a"), 0.0)
        assert permit is not None
        health.give_back(permit, ending, 0.0, ttft_secs=ttft_secs, was_unheard=ending is DROPPED)
    assert health.told("a", 0.0).startswith("5 failures in a row")


@pytest.mark.parametrize("by_the_fleet", [False, True])
def test_whoever_is_found_well_again_is_given_twice_as_much_with_each_round(
    by_the_fleet: bool,
) -> None:
    """Its limit was cut while it hung; once two probes have answered, caution is over.

    Also where another process's news had it tried before its time.
    """
    health = registry()
    permits = [health.take(ticket("a"), 0.0) for _ in range(5)]
    for permit in permits:
        assert permit is not None
        health.give_back(permit, SILENT, 3.0)
    entry = health.of("a")
    assert (health.state("a", 3.0), entry.limit.limit(3.0)) == ("open", 4)
    now = 10.0 if by_the_fleet else 100.0
    if by_the_fleet:
        entry.limit.follow_cut(now)
        assert entry.breaker.follow_closed(now, "the fleet")
    for _ in range(2):
        assert health.claim_probe("a", now)
        probe = health.take(ticket("a"), now, probe="a")
        assert probe is not None
        health.give_back(probe, ANSWERED, now + 0.5, ttft_secs=0.4)
    assert health.state("a", now + 0.5) == "closed"
    entry.limit.follow_cut(now + 0.6)  # somebody who does not know yet
    limits: list[int] = []
    for _ in range(4):
        now += 1.0
        for permit in [*entry.live]:
            health.give_back(permit, ANSWERED, now, ttft_secs=0.4)
            while health.take(ticket("a"), now):
                pass
        while health.take(ticket("a"), now):
            pass
        limits.append(entry.limit.limit(now))
    assert limits[0] >= 2
    assert limits == [limits[0] * 2**n for n in range(4)]


def test_it_is_known_when_the_latest_was_sent_that_is_answered() -> None:
    """An earlier one that is answered later changes nothing."""
    health = registry()
    early, late = health.take(ticket("a"), 1.0), health.take(ticket("a"), 2.0)
    assert early is not None
    assert late is not None
    assert health.answered_since("a") == float("-inf")
    health.heard(late, 3.0)
    assert health.answered_since("a") == 2.0
    health.heard(early, 4.0)
    assert health.answered_since("a") == 2.0
    assert health.answered_since("b") == float("-inf")
    assert (health.word_at("a"), health.word_at("b")) == (4.0, float("-inf"))


def test_rest_is_for_everybody_and_ends() -> None:
    health = registry()
    assert health.rests_secs("a", 0.0) == 0.0
    health.rest("a", 5.0)
    assert health.rests_secs("a", 2.0) == 3.0
    assert health.rests_secs("a", 6.0) == 0.0
    health.rest("a", 4.0)  # the longer counts
    assert health.rests_secs("a", 2.0) == 3.0


def test_a_full_queue_turns_the_least_urgent_away() -> None:
    health = registry()
    health.of("a").limit.believe(1, until=10.0)
    assert health.take(ticket("a"), 0.0) is not None
    told: list[Permit | None] = []
    assert health.wait(ticket("a", work="background"), told.append, 0.0) is None
    for _ in range(100):
        assert health.wait(ticket("a"), lambda permit: None, 0.0) is None
    assert told == [None]


def full(tier: Tier = "standard", work: WorkClass = "primary") -> tuple[Health, list[Permit]]:
    """A provider that takes two, and two requests on their way there, the later one last."""
    health = registry()
    health.of("a").limit.believe(2, until=100.0)
    permits = [health.take(ticket("a"), 0.0), health.take(ticket("a", work=work, tier=tier), 0.1)]
    assert permits[0] is not None
    assert permits[1] is not None
    return health, [permits[0], permits[1]]


def called_back(permits: list[Permit]) -> list[Permit]:
    told: list[Permit] = []
    for permit in permits:
        permit.recall = lambda permit=permit: told.append(permit)
    return told


def test_a_better_tier_has_the_latest_that_is_unheard_called_back() -> None:
    """Its place goes to whoever waited for it; and the next one to wait has the next called."""
    health, permits = full()
    told = called_back(permits)
    premium = [ticket("a", tier="premium"), ticket("a", tier="premium")]
    got: list[Permit | None] = []
    assert health.wait(premium[0], got.append, 0.2) is None
    assert told == [permits[1]]
    assert health.look_again(premium[0], 0.3) is None
    assert told == [permits[1]], "one makes room already"
    assert health.wait(premium[1], got.append, 0.3) is None
    assert told == [permits[1], permits[0]]
    health.give_back(permits[1], DROPPED, 0.4)
    assert [permit.urgency for permit in got if permit] == [premium[0].urgency]


def test_who_was_heard_before_it_was_gone_stays_and_another_makes_room() -> None:
    health, permits = full()
    told = called_back(permits)
    premium = ticket("a", tier="premium")
    assert health.wait(premium, lambda permit: None, 0.2) is None
    health.heard(permits[1], 0.25)
    assert health.look_again(premium, 0.3) is None
    assert told == [permits[1], permits[0]]


def test_a_premium_callers_own_kind_does_not_shield_the_others() -> None:
    """Of three on their way the least urgent is not one that a premium turn displaces."""
    health = registry()
    health.of("a").limit.believe(3, until=100.0)
    wanted = [ticket("a"), ticket("a"), ticket("a", tier="premium", work="tool_follow_up")]
    permits = [health.take(each, n / 10) for n, each in enumerate(wanted)]
    assert all(permits)
    told = called_back([permit for permit in permits if permit])
    assert health.wait(ticket("a", tier="premium"), lambda permit: None, 0.5) is None
    assert told == [permits[1]]


@pytest.mark.parametrize("why", ["its own tier", "heard", "nobody else to ask", "a premium caller"])
def test_nobody_is_called_back(why: str) -> None:
    health, permits = full()
    told = called_back(permits)
    for permit in permits:
        if why == "heard":
            health.heard(permit, 0.15)
        permit.makes_room = why != "nobody else to ask"
        permit.urgency = ticket(tier="premium").urgency if "caller" in why else permit.urgency
    tier: Tier = "standard" if why == "its own tier" else "premium"
    waiting = ticket("a", tier=tier)
    assert health.wait(waiting, lambda permit: None, 0.2) is None
    assert health.look_again(waiting, 0.3) is None
    assert told == []


@pytest.mark.parametrize("work", ["hedge", "background"])
def test_a_turn_has_called_back_what_no_caller_waits_for(work: WorkClass) -> None:
    health, permits = full("premium", work)
    told = called_back(permits)
    assert health.wait(ticket("a"), lambda permit: None, 0.2) is None
    assert told == [permits[1]]


def test_a_queue_that_moves_too_slowly_is_not_joined() -> None:
    """Two permits a second come back, ten wait already, and three seconds are left."""
    health = registry()
    health.of("a").limit.believe(1, until=100.0)
    for n in range(10):
        permit = health.take(ticket("a"), n / 2)
        assert permit is not None
        health.give_back(permit, ANSWERED, n / 2)
    assert health.take(ticket("a"), 5.0) is not None
    joined = [
        health.wait(Ticket("primary", "standard", 8.0, ("a",), 5.0), lambda permit: None, 5.0)
        for _ in range(20)
    ]
    assert joined[0] is None
    assert "it would come too late" in str(joined[-1])
    premium = Ticket("primary", "premium", 8.0, ("a",), 5.0)
    assert health.wait(premium, lambda permit: None, 5.0) is None


def test_threads_do_not_exceed_the_limit() -> None:
    health = registry()
    health.of("a").limit.believe(5, until=float("inf"))
    most = 0
    errors: list[BaseException] = []

    def work() -> None:
        nonlocal most
        try:
            for _ in range(500):
                if (permit := health.take(ticket("a"), 0.0)) is not None:
                    most = max(most, health.of("a").limit.in_flight)
                    time.sleep(0)  # lets another thread in while the permit is out
                    health.give_back(permit, ANSWERED, 0.0)
        except BaseException as error:  # told below: a thread's own would be lost
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert 1 <= most <= 5
    assert health.of("a").limit.in_flight == 0


@pytest.mark.parametrize("providers", [1, 100])
def test_a_registry_grows_with_providers_only(providers: int) -> None:
    health = registry()
    for session in range(1000):
        key = str(session % providers)
        permit = health.take(ticket(key), float(session))
        assert permit is not None
        health.give_back(permit, ANSWERED, float(session), ttft_secs=0.3)
    assert len(health.entries()) == providers


@pytest.mark.parametrize("others", [True, False])
def test_a_lost_request_is_no_sign_of_load_where_later_ones_are_answered(others: bool) -> None:
    """In a queue it would have come before them; where nobody is answered, it may be load."""
    health = registry()
    permits = [health.take(ticket("a"), float(n)) for n in range(5)]
    lost, *later = permits
    assert lost is not None
    if others:
        for permit in later:
            assert permit is not None
            health.heard(permit, 6.0)
    health.give_back(lost, SILENT, 7.0)
    assert (health.occupancy("a", 7.0)[1] < 100) == (not others)


def test_who_asks_next_does_not_look_through_what_is_being_answered() -> None:
    """Looked through are requests of which no word has come; none of those that are over stays."""
    health = registry()
    permits = [health.take(ticket("a"), 0.0) for _ in range(60)]
    entry = health.of("a")
    for n, permit in enumerate(permits):
        assert permit is not None
        if n < 20:
            health.heard(permit, 0.3)
        elif n < 40:
            health.expect_no_word(permit)
    assert list(entry.silent) == permits[40:]
    assert list(entry.live) == permits
    for permit in permits:
        assert permit is not None
        health.give_back(permit, DROPPED, 1.0)
    assert not entry.silent
    assert not entry.live
