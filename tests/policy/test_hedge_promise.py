"""Which requests keep a promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.policy.slo_hedge import MOST_DRAWN, Aim, AimedDelay, aim_at
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting
from tests.policy.test_hedge_delay import HEAVY, LIGHT, lognormal


def of(profile: str) -> SurvivalCurve:
    secs = PROFILES[profile].samples(4000, 1)
    secs.sort()
    return SurvivalCurve.of(secs[15::32], [1 - (32 * n + 16) / 4001 for n in range(125)], 5.0)


JAGGED = of("jagged")
CURVES = [HEAVY, LIGHT, JAGGED, of("gpt-4.1"), lognormal(0.1, 0.2)]
WITHIN, PROMISED = st.floats(0.05, 5.0), st.floats(0.5, 0.999)
SHARES = st.floats(0.0, 1.0)


def late(first: SurvivalCurve, further: SurvivalCurve, within: float, sent: float) -> float:
    """The share of turns that are late if all that still wait then are hedged."""
    in_time = 1.0 - float(further.share_after(within - sent)) if sent < within else 0.0
    return float(first.share_after(within)) * (1.0 - in_time)


@given(st.sampled_from(CURVES), st.sampled_from(CURVES), WITHIN, PROMISED, SHARES)
def test_no_more_is_drawn_than_its_part_of_the_budget_pays(
    first: SurvivalCurve, further: SurvivalCurve, within: float, promised: float, share: float
) -> None:
    """And it is sent early enough to be of use, and no earlier than all turns could be."""
    aim = aim_at(first, further, within, promised, share)
    if aim is None:
        return
    assert 0 < aim.spends <= MOST_DRAWN
    assert 0 < aim.probability <= 1
    sent = aim.probability * float(first.share_after(aim.at_secs))
    assert sent <= aim.spends * share * (1 + 1e-6)
    assert 0 <= aim.at_secs < within
    assert float(first.share_after(aim.at_secs)) >= share * 0.99


@given(st.sampled_from(CURVES), st.sampled_from(CURVES), WITHIN, PROMISED, SHARES)
def test_a_promise_that_is_kept_anyway_changes_nothing(
    first: SurvivalCurve, further: SurvivalCurve, within: float, promised: float, share: float
) -> None:
    """By the first provider alone, or by the usual hedges."""
    at = first.quantile(1 - max(share, 1e-6)) if share < 1 else 0.0
    if late(first, further, within, at if share else within) <= 1 - promised:
        assert aim_at(first, further, within, promised, share) is None


def test_where_many_are_late_some_are_helped_early() -> None:
    """A tenth of the turns may be hedged, and a seventh is late: all at once would be too late."""
    aim = aim_at(JAGGED, JAGGED, 0.8, 0.95, 0.1)
    assert aim is not None
    assert 0.3 < aim.at_secs < 0.7 < JAGGED.quantile(0.9)
    assert aim.spends == MOST_DRAWN
    assert 0.15 < aim.probability < 0.45


def test_no_more_of_the_tail_is_given_up_than_the_promise_needs() -> None:
    """A promise that is nearly kept takes a smaller part than one that cannot be."""
    nearly, hardly = (aim_at(JAGGED, JAGGED, 1.2, share, 0.1) for share in (0.92, 0.99))
    assert nearly is not None
    assert hardly is not None
    assert nearly.spends < hardly.spends == MOST_DRAWN


@pytest.mark.parametrize(
    ("first", "further", "within"),
    [(JAGGED, lognormal(3.0, 0.1), 0.8), (JAGGED, JAGGED, 0.01), (LIGHT, LIGHT, 9.0)],
    ids=["too slow to help", "promised at once", "never late"],
)
def test_where_nothing_is_gained_nothing_is_drawn(
    first: SurvivalCurve, further: SurvivalCurve, within: float
) -> None:
    """The budget is the tail's then."""
    assert aim_at(first, further, within, 0.95, 0.1) is None


# ---- the launch


class Usual:
    """Launches at a time that is given."""

    def __init__(self, at: float | None):
        self._at = at

    def next_launch(self, waiting: Waiting) -> LaunchDecision:
        return LaunchDecision(self._at, "as usual")


def decided(usual_at: float | None, *in_flight: InFlight) -> LaunchDecision:
    rule = AimedDelay(Usual(usual_at), Aim(0.4, 0.25, 0.5), 0.8)
    return rule.next_launch(Waiting(10.0, in_flight or (InFlight("a", 10.0, None),), "b"))


def test_a_drawn_turn_is_hedged_at_the_time_aimed_at() -> None:
    """And says why."""
    told = "0.8 s are promised: hedge at 0.40 s, in 25% of turns"
    assert decided(11.3) == decided(None) == LaunchDecision(10.4, told)


def test_the_usual_time_counts_where_it_is_earlier() -> None:
    """Nobody waits longer for having been drawn."""
    assert decided(10.2) == LaunchDecision(10.2, "as usual")


def test_only_the_first_further_request_is_aimed() -> None:
    """A third attempt, and an answer that dribbles, are as usual."""
    two = (InFlight("a", 10.0, None), InFlight("b", 10.4, None))
    assert decided(12.0, *two).reason == "as usual"
    assert decided(12.0, InFlight("a", 10.0, 10.3, 10.3)).reason == "as usual"
