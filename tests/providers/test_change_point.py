"""When a provider's latency has changed: slower for a time, or faster for good."""

from __future__ import annotations

import math
import random

import pytest

from pipecat_hedge.providers import Backend, ProviderRegistry
from pipecat_hedge.providers.change_point import CREDIT, EARNED_BY, ChangePoint
from pipecat_hedge.providers.survival import SurvivalCurve

BACKEND = Backend("a", "m")


class Provider:
    """A provider, learned and watched."""

    def __init__(self, seed: int = 1):
        self.rng = random.Random(seed)
        self.stats = ProviderRegistry()

    @property
    def curve(self) -> SurvivalCurve:
        return self.stats.estimates([BACKEND], None, by_sentence=False)["a"].first_token

    @property
    def seen(self) -> int:
        """How many observations are believed to be of the present."""
        return self.stats.latencies()[BACKEND.key].seen

    def take(self, secs: float, *, censored: bool = False) -> None:
        self.stats.record_wait(BACKEND, secs, None, censored=censored)

    def run(self, turns: int, factor: float = 1.0, censored_after: float = 1e9) -> None:
        for _ in range(turns):
            secs = factor * self.rng.lognormvariate(-0.7, 0.15)
            self.take(min(secs, censored_after), censored=secs > censored_after)


@pytest.mark.parametrize("factor", [3.0, 1.6, 0.5])
def test_change_is_seen_within_a_dozen_turns(factor: float) -> None:
    """The new level is known at once, the tail's shape is kept."""
    provider = Provider()
    provider.run(600)
    before = provider.curve
    provider.run(15, factor)
    after = provider.curve
    assert after.quantile(0.5) == pytest.approx(factor * before.quantile(0.5), rel=0.15)
    assert after.quantile(0.95) == pytest.approx(factor * before.quantile(0.95), rel=0.4)


def test_clock_jitter_is_no_change() -> None:
    provider = Provider()
    for turn in range(400):
        provider.take(0.5 - 1e-9 * (turn % 7))
    assert provider.seen == 400


def test_late_cancellations_show_a_change() -> None:
    provider = Provider()
    provider.run(600)
    provider.run(15, 3.0, censored_after=1.1)
    assert provider.curve.quantile(0.5) > 1.0


def test_recovery_is_believed_after_two_answers_and_restores_the_tail() -> None:
    provider = Provider()
    provider.run(600)
    before = [provider.curve.quantile(p) for p in (0.5, 0.9, 0.99)]
    provider.run(40, 3.0)
    assert provider.seen < 100
    assert provider.curve.quantile(0.5) > 1.2
    provider.take(0.5)
    assert provider.curve.quantile(0.5) > 1.2
    provider.take(0.48)
    assert 590 <= provider.seen < 620
    assert [provider.curve.quantile(p) for p in (0.5, 0.9, 0.99)] == pytest.approx(before, rel=0.1)


def test_early_cancellations_are_no_recovery() -> None:
    provider = Provider()
    provider.run(600)
    provider.run(40, 3.0)
    provider.take(0.5)
    for _ in range(3):
        provider.take(0.4, censored=True)
    provider.run(40, 3.0)
    assert provider.seen < 100


def test_a_slow_period_that_gets_worse_ends_at_the_level_from_before() -> None:
    provider = Provider()
    provider.run(600)
    typical = provider.curve.quantile(0.5)
    provider.run(30, 3.0)
    provider.run(30, 9.0)
    provider.run(3)
    assert provider.curve.quantile(0.5) == pytest.approx(typical, rel=0.15)


@pytest.mark.parametrize("smooth", [0.8, 0.95])
def test_changes_of_a_wandering_level_are_rate_limited(smooth: float) -> None:
    watch, rng, wandering = ChangePoint(), random.Random(1), 0.0
    known = SurvivalCurve.of([0.0, 0.5, 1.0], [1.0, 0.5, 0.1], 1.0)
    changes, turns = 0, 6_000
    for _ in range(turns):
        wandering = smooth * wandering + rng.gauss(0, 0.3)
        found = watch.observe(0.3 * math.exp(wandering), censored=False, curve=known)
        changes += found is not None
    assert 2 < changes <= CREDIT + turns / EARNED_BY
