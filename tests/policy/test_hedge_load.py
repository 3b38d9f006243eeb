"""The load of hedging on a provider in trouble, with all callers of a fleet at once."""

from __future__ import annotations

import math
import statistics

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.policy.hedge_burst import MOST_TOKENS as BURST
from pipecat_hedge.policy.hedge_burst import SLACK, HedgeBurst
from pipecat_hedge.tools.bench import percentile
from tests.support.crowd import PROVIDERS, Crowd

pytestmark = pytest.mark.slow

BUDGET = 0.1
CHANCE = 3 * math.sqrt(BUDGET * (1 - BUDGET) / 150)
"""Three standard deviations of the requests per turn, over 150 turns."""
MOST, MOST_IN_SLOW_PERIOD = 1 + BUDGET + CHANCE, 1 + SLACK * BUDGET + 8 * BURST / 150
"""Requests per turn, over 150 turns: each of eight processes may spend what it has saved."""
EVENT, UNTIL = 60.0, 80.0


def crowd(seed: int, until: float = EVENT) -> Crowd:
    callers = Crowd(HedgePolicy.adaptive(BUDGET, max_attempts=3), seed=seed)
    callers.run(until)
    return callers


@pytest.mark.parametrize(
    ("slow", "queue_secs", "most"),
    [
        pytest.param({"first": 5.0}, {}, MOST_IN_SLOW_PERIOD, id="slow"),
        pytest.param({"first": math.inf}, {}, MOST_IN_SLOW_PERIOD, id="hang"),
        pytest.param(dict.fromkeys(PROVIDERS, 5.0), {}, MOST_IN_SLOW_PERIOD, id="all slow"),
        pytest.param(
            dict.fromkeys(PROVIDERS, 4.0),
            dict.fromkeys(PROVIDERS, 2.5),
            MOST_IN_SLOW_PERIOD + BUDGET,
            id="queues",
        ),
        pytest.param({}, {}, MOST, id="calm"),
    ],
)
def test_extra_requests_per_second_are_bounded(
    slow: dict[str, float], queue_secs: dict[str, float], most: float
) -> None:
    """Requests beside silent ones excepted, which are few. Without the bound: 1.6 per turn.

    At the mean of three seeds: the worst second of a seed alone may be beyond three deviations.
    """
    until = UNTIL + 20 if queue_secs else UNTIL
    worst, beside_silent = list[float](), list[float]()
    for seed in (1, 2, 3):
        callers = crowd(seed)
        callers.slow |= slow
        callers.queue_secs |= queue_secs
        callers.run(until)
        worst.append(callers.worst(EVENT - 20, until))
        beside_silent.append(callers.beside_silent(EVENT, until))
    print(f"beside silent ones: {statistics.mean(beside_silent):.2f} a turn")
    assert statistics.mean(beside_silent) < 0.25
    assert 1.0 < statistics.mean(worst) <= most


def test_bound_costs_little_without_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at the p95 and a tenth of the p99."""

    def percentiles() -> list[float]:
        waits = [secs for seed in (1, 2, 3) for at, secs in crowd(seed, 120.0).waits if at >= 20]
        return [percentile(waits, share) or math.nan for share in (0.5, 0.95, 0.99)]

    bounded = percentiles()
    monkeypatch.setattr(HedgeBurst, "permits", lambda *_: True)
    for with_it, without, most in zip(bounded, percentiles(), (1.05, 1.05, 1.2), strict=True):
        assert with_it <= most * without


def test_deferred_callers_are_rescued_from_a_silent_provider() -> None:
    """5 s, and then what the second provider takes, for nearly all callers of the first.

    At the mean of three seeds: of 36 seeds one alone has its p90 anywhere from 5.5 to 8.4 s.
    """
    p90: list[float] = []
    for seed in (1, 2, 3):
        callers = crowd(seed)
        callers.slow["first"] = math.inf
        callers.run(UNTIL)
        p90.append(callers.p(0.9, EVENT, EVENT + 4))
        replaced = [at for at, reason in callers.sent if reason == "silence" and at >= EVENT]
        assert min(replaced) >= EVENT + 3.0
    assert sum(p90) / 3 < 5.0 + 1.7
