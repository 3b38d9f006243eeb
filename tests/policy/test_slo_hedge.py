"""Which hedges help a turn to meet an SLO."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy import PROFILES
from pipecat_hedge.policy.slo_hedge import MOST_DRAWN, Aim, AimedDelay, aim_at
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting
from tests.policy.test_hedge_delay import HEAVY, LIGHT, lognormal
from tests.policy.test_routing import At


def of(profile: str) -> SurvivalCurve:
    secs = PROFILES[profile].samples(4000, 1)
    secs.sort()
    return SurvivalCurve.of(secs[15::32], [1 - (32 * n + 16) / 4001 for n in range(125)], 5.0)


JAGGED = of("jagged")
CURVES = st.sampled_from([HEAVY, LIGHT, JAGGED, of("gpt-4.1"), lognormal(0.1, 0.2)])


@given(CURVES, CURVES, st.floats(0.05, 5.0), st.floats(0.5, 0.999), st.floats(0.0, 1.0))
def test_aim_spends_at_most_its_part_and_only_if_needed(
    first: SurvivalCurve, further: SurvivalCurve, within: float, target: float, share: float
) -> None:
    aim = aim_at(first, further, within, target, share)
    usual_at = first.quantile(1 - max(share, 1e-6)) if 0 < share < 1 else within * (share == 0)
    helped = 1.0 - float(further.share_after(within - usual_at)) if usual_at < within else 0.0
    if float(first.share_after(within)) * (1.0 - helped) <= 1 - target:
        assert aim is None, "the SLO is met without it"
    if aim is not None:
        waiting = float(first.share_after(aim.at_secs))
        assert 0 < aim.spends <= MOST_DRAWN
        assert 0 < aim.probability <= 1
        assert aim.probability * waiting <= aim.spends * share * (1 + 1e-6)
        assert 0 <= aim.at_secs < within
        assert waiting >= share * 0.99


def test_drawn_turns_are_hedged_early() -> None:
    """A tenth of the turns may be hedged, and a seventh is late: all at once would be too late."""
    aim = aim_at(JAGGED, JAGGED, 0.8, 0.95, 0.1)
    assert aim is not None
    assert 0.3 < aim.at_secs < 0.7 < JAGGED.quantile(0.9)
    assert aim.spends == MOST_DRAWN
    assert 0.15 < aim.probability < 0.45


@pytest.mark.parametrize(
    ("first", "further", "within"),
    [(JAGGED, lognormal(3.0, 0.1), 0.8), (JAGGED, JAGGED, 0.01), (LIGHT, LIGHT, 9.0)],
    ids=["too slow to help", "due at once", "never late"],
)
def test_no_turn_is_drawn_without_a_gain(
    first: SurvivalCurve, further: SurvivalCurve, within: float
) -> None:
    assert aim_at(first, further, within, 0.95, 0.1) is None


DRAWN = LaunchDecision(10.4, "0.8 s are promised: hedge at 0.40 s, in 25% of turns")
ALONE = (InFlight("a", 10.0, None),)


@pytest.mark.parametrize(
    ("usual_at", "in_flight", "decision"),
    [
        pytest.param(11.3, ALONE, DRAWN, id="drawn"),
        pytest.param(None, ALONE, DRAWN, id="never hedged otherwise"),
        pytest.param(
            10.2, ALONE, LaunchDecision(10.2, "saves 2 s"), id="the usual time is earlier"
        ),
        pytest.param(
            12.0,
            (*ALONE, InFlight("b", 10.4, None)),
            LaunchDecision(12.0, "saves 2 s"),
            id="a third attempt",
        ),
        pytest.param(
            12.0,
            (InFlight("a", 10.0, 10.3, 10.3),),
            LaunchDecision(12.0, "saves 2 s"),
            id="an answer that has begun",
        ),
    ],
)
def test_first_hedge_of_a_drawn_turn_is_aimed(
    usual_at: float | None, in_flight: tuple[InFlight, ...], decision: LaunchDecision
) -> None:
    rule = AimedDelay(At(usual_at), Aim(0.4, 0.25, 0.5), 0.8)
    assert rule.next_launch(Waiting(10.0, in_flight, "b")) == decision
