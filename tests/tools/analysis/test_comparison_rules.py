"""The textbook rules that ``whatif`` compares with."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipecat_hedge.policy import TurnFacts
from pipecat_hedge.providers import LatencyEstimate, SurvivalCurve
from pipecat_hedge.providers.latency_model import AnswerTimes
from pipecat_hedge.race import InFlight, LaunchDecision, Waiting
from pipecat_hedge.tools.analysis.comparison_rules import (
    AtQuantile,
    SingleR,
    at_quantile,
    best_reissue,
    single_r,
)


def lognormal(median: float, sigma: float, stalls: float = 0.0) -> SurvivalCurve:
    """A body, and a share of answers that stall for 5 s on average."""
    secs = np.geomspace(median / 20, median * 20, 4000)
    body = np.array([0.5 * math.erfc(math.log(t / median) / sigma / math.sqrt(2)) for t in secs])
    return SurvivalCurve.of(secs, (1 - stalls) * body + stalls * np.exp(-secs / 5), 5.0)


HEAVY, LIGHT = lognormal(0.5, 0.12, stalls=0.05), lognormal(0.8, 0.08)
KNOWN = {
    n: LatencyEstimate(c, None, c, 0.0, AnswerTimes(0, 0, 0, 0), 0)
    for n, c in (("a", HEAVY), ("b", LIGHT))
}


def waiting(*in_flight: tuple[str, float], further: str = "b") -> Waiting:
    return Waiting(0.0, tuple(InFlight(name, at, None) for name, at in in_flight), further)


def test_a_quantile_counts_from_the_attempt_before() -> None:
    rule = AtQuantile(0.95).rule_for(TurnFacts(("a", "b"), KNOWN, 0.0))
    p95 = HEAVY.quantile(0.95)
    assert rule.next_launch(waiting(("a", 0.0))) == LaunchDecision(p95, f"p95 is {p95:.2f} s")
    third = rule.next_launch(waiting(("a", 0.0), ("b", 0.7), further="a"))
    assert third.at == pytest.approx(0.7 + LIGHT.quantile(0.95))


@pytest.mark.parametrize(("percentile", "budget"), [(0.95, 0.05), (0.99, 0.05), (0.99, 0.02)])
def test_single_r_is_best_for_its_percentile(percentile: float, budget: float) -> None:
    """No other delay and probability within the budget reach the percentile sooner."""

    def reaches(delay: float, q: float) -> float:
        t = np.geomspace(0.01, 60, 6000)
        left = HEAVY.share_after(t)
        answered = 1 - left + q * left * (1 - HEAVY.share_after(t - delay)) * (t >= delay)
        return float(t[np.argmax(answered >= percentile)])

    delay, q = best_reissue(HEAVY, HEAVY, percentile, budget)
    assert q * float(HEAVY.share_after(delay)) <= budget * 1.001
    best = reaches(delay, q)
    for other in np.linspace(0, HEAVY.quantile(percentile), 40):
        most = min(1.0, budget / float(HEAVY.share_after(other)))
        assert best <= reaches(float(other), most) * 1.05


def test_single_r_helps_a_drawn_turn_once() -> None:
    rule = SingleR(0.99, 0.02)
    drawn, other = (rule.rule_for(TurnFacts(("a", "b"), KNOWN, draw)) for draw in (0.0, 0.999))
    assert drawn.next_launch(waiting(("a", 0.0))).at == drawn.secs
    assert drawn.next_launch(waiting(("a", 0.0), ("b", 0.6))).at is None
    assert other.q < 0.999
    assert other.next_launch(waiting(("a", 0.0))).at is None


def test_names_say_the_rule() -> None:
    assert at_quantile(0.9).name == "at p90"
    assert single_r(deadline_secs=9).name == "SingleR(p99, 5 %)"
