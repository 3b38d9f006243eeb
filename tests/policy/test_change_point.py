"""When a provider's latency has changed."""

from __future__ import annotations

import math
import random

import pytest

from pipecat_hedge.policy.change_point import CREDIT, EARNED_BY, Change, ChangePoint
from pipecat_hedge.policy.latency_model import LatencyModel
from pipecat_hedge.policy.survival import SurvivalCurve

PRIOR = SurvivalCurve.of([0.0, 0.5, 1.0], [1.0, 0.5, 0.1], 1.0)


class Provider:
    """A provider, learned and watched."""

    def __init__(self, seed: int = 1):
        self.rng = random.Random(seed)
        self.model = LatencyModel(PRIOR)
        self.watch = ChangePoint()
        self.curve = PRIOR

    def take(self, secs: float, *, censored: bool = False) -> Change | None:
        self.model.record(secs, censored=censored)
        if len(self.model) % 16 == 0:
            self.curve = self.model.curve
        change = self.watch.observe(secs, censored=censored, known=self.curve)
        if change is not None:
            if change.kind == "returned":
                self.model.resume(change.keep)
            else:
                but = change.keep if change.kind == "left" else None
                self.model.restart(change.prior, change.keep, put_aside_but=but)
            self.curve = self.model.curve
        return change

    def run(
        self,
        turns: int,
        factor: float = 1.0,
        censored_after: float = 1e9,
        spread: float = 0.15,
    ) -> list[int]:
        """Record turns, and return those at which a change was seen."""
        found: list[int] = []
        for turn in range(turns):
            secs = factor * self.rng.lognormvariate(-0.7, spread)
            cut = secs > censored_after
            if self.take(min(secs, censored_after), censored=cut) is not None:
                found.append(turn)
        return found


@pytest.mark.parametrize("factor", [3.0, 1.6, 0.5])
def test_change_is_seen_within_a_dozen_turns(factor: float) -> None:
    """The new level is known at once, the tail's shape is kept."""
    provider = Provider()
    provider.run(600)
    before = provider.curve
    assert provider.run(15, factor)
    after = provider.curve
    assert after.quantile(0.5) == pytest.approx(factor * before.quantile(0.5), rel=0.15)
    assert after.quantile(0.99) == pytest.approx(factor * before.quantile(0.99), rel=0.4)


def test_clock_jitter_is_no_change() -> None:
    provider = Provider()
    for _ in range(100):
        provider.take(0.5)
    found = [provider.take(0.5 - 1e-9 * (turn % 7)) for turn in range(300)]
    assert found == [None] * 300


def test_late_cancellations_show_a_change() -> None:
    provider = Provider()
    provider.run(600)
    assert provider.run(15, 3.0, censored_after=1.1)
    assert provider.curve.quantile(0.5) > 1.0


def test_return_is_believed_after_two_answers_and_restores_the_tail() -> None:
    provider = Provider()
    provider.run(600)
    before = [provider.curve.quantile(p) for p in (0.5, 0.9, 0.99)]
    assert len(provider.run(40, 3.0)) == 1
    assert len(provider.model) < 100
    assert provider.curve.quantile(0.5) > 1.2
    assert provider.take(0.5) is None
    assert provider.take(0.48) is not None
    assert 600 <= len(provider.model) < 620
    assert [provider.curve.quantile(p) for p in (0.5, 0.9, 0.99)] == pytest.approx(before, rel=0.1)


@pytest.mark.parametrize("smooth", [0.8, 0.95])
def test_changes_of_a_wandering_level_are_rate_limited(smooth: float) -> None:
    provider, wandering = Provider(), 0.0
    changes, turns = list[Change](), 6_000
    for _ in range(turns):
        wandering = smooth * wandering + provider.rng.gauss(0, (1 - smooth**2) ** 0.5)
        change = provider.take(0.5 * math.exp(wandering))
        changes += [change] if change is not None else []
    assert len([c for c in changes if c.kind != "returned"]) <= CREDIT + turns / EARNED_BY
    assert len(changes) > 2


def test_one_fast_answer_or_early_cancellations_are_no_return() -> None:
    provider = Provider()
    provider.run(600)
    provider.run(40, 3.0)
    assert provider.take(0.5) is None
    for _ in range(3):
        assert provider.take(0.4, censored=True) is None
    assert provider.run(40, 3.0) == []


@pytest.mark.parametrize(
    ("turns", "returns_to"), [(200, 3.0), (30, 1.0)], ids=["a level held long", "a short period"]
)
def test_return_leads_to_the_level_that_was_held(turns: int, returns_to: float) -> None:
    provider = Provider()
    provider.run(600)
    usual = provider.curve.quantile(0.5)
    provider.run(turns, 3.0)
    provider.run(30, 9.0)
    provider.run(3, returns_to)
    assert provider.curve.quantile(0.5) == pytest.approx(returns_to * usual, rel=0.15)
