"""When what was learned is no longer true."""

from __future__ import annotations

import math
import random

import pytest

from pipecat_hedge.policy.change_point import CREDIT, EARNED_BY, ENOUGH, Change, ChangePoint
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
        """The turns at which a change was seen."""
        found: list[int] = []
        for turn in range(turns):
            secs = factor * self.rng.lognormvariate(-0.7, spread)
            cut = secs > censored_after
            if self.take(min(secs, censored_after), censored=cut) is not None:
                found.append(turn)
        return found


def test_a_steady_provider_does_not_change() -> None:
    """Hardly ever, in 8,000 turns."""
    assert len(Provider().run(8_000)[1:]) <= 1


@pytest.mark.parametrize("factor", [3.0, 1.6, 0.5])
def test_a_change_is_seen_within_a_dozen_turns(factor: float) -> None:
    """Slower or faster; the new level is known at once, the tail's shape kept."""
    provider = Provider()
    provider.run(600)
    before = provider.curve
    assert provider.run(15, factor)
    after = provider.curve
    assert after.quantile(0.5) == pytest.approx(factor * before.quantile(0.5), rel=0.15)
    assert after.quantile(0.99) == pytest.approx(factor * before.quantile(0.99), rel=0.4)


def test_a_clock_that_trembles_is_no_change() -> None:
    """Answers that always take the same lie above and below their own p20 by nanoseconds."""
    provider = Provider()
    for _ in range(100):
        provider.take(0.5)
    found = [provider.take(0.5 - 1e-9 * (turn % 7)) for turn in range(300)]
    assert found == [None] * 300


def test_cancelled_answers_show_it_too() -> None:
    """All that is seen of a provider that turned slow is that it was cancelled late."""
    provider = Provider()
    provider.run(600)
    assert provider.run(15, 3.0, censored_after=1.1)
    assert provider.curve.quantile(0.5) > 1.0


def test_a_return_is_believed_after_two_answers() -> None:
    """Because it is known what to expect; what was known before is known again."""
    provider = Provider()
    provider.run(600)
    before = provider.curve
    provider.run(40, 3.0)
    assert provider.curve.quantile(0.5) > 1.2
    assert provider.take(0.5) is None
    assert provider.take(0.48) is not None
    assert provider.curve.quantile(0.5) == pytest.approx(before.quantile(0.5), rel=0.1)


def test_what_is_known_of_the_tail_comes_back_with_the_level() -> None:
    """A level that returns brings its observations with it, not a guess made of its curve."""
    provider = Provider()
    provider.run(600)
    tail = [provider.curve.quantile(p) for p in (0.9, 0.99)]
    assert len(provider.run(40, 3.0)) == 1
    assert len(provider.model) < 100
    assert len(provider.run(10)) == 1
    assert 600 <= len(provider.model) < 620
    assert [provider.curve.quantile(p) for p in (0.9, 0.99)] == pytest.approx(tail, rel=0.05)


@pytest.mark.parametrize("smooth", [0.8, 0.95])
def test_a_level_that_wanders_is_not_run_after(smooth: float) -> None:
    """Slow turns in clusters: the long view is kept, and what is known of the tail with it."""
    provider, wandering = Provider(), 0.0
    changes, turns = list[Change](), 6_000
    for _ in range(turns):
        wandering = smooth * wandering + provider.rng.gauss(0, (1 - smooth**2) ** 0.5)
        change = provider.take(0.5 * math.exp(wandering))
        changes += [change] if change is not None else []
    assert len([c for c in changes if c.kind != "returned"]) <= CREDIT + turns / EARNED_BY
    assert len(changes) > 2, "or nothing is shown"


def test_one_fast_answer_is_no_return() -> None:
    """Nor is a cancellation that came too early to tell."""
    provider = Provider()
    provider.run(600)
    provider.run(40, 3.0)
    assert provider.take(0.5) is None
    for _ in range(3):
        assert provider.take(0.4, censored=True) is None
    assert provider.run(40, 3.0) == []


def test_a_level_that_was_held_is_the_one_to_come_back_to() -> None:
    """After a hundred turns at the second level, a third one returns to that."""
    provider = Provider()
    provider.run(600)
    provider.run(200, 3.0)
    settled = provider.curve.quantile(0.5)
    provider.run(40, 12.0)
    provider.run(3, 3.0)
    assert provider.curve.quantile(0.5) == pytest.approx(settled, rel=0.15)


def test_a_short_spell_does_not_become_the_level_to_come_back_to() -> None:
    """Two changes in a row: the way back leads to where it began."""
    provider = Provider()
    provider.run(600)
    began = provider.curve.quantile(0.5)
    provider.run(30, 3.0)
    provider.run(30, 9.0)
    provider.run(3)
    assert provider.curve.quantile(0.5) == pytest.approx(began, rel=0.15)


def test_a_change_says_what_belongs_to_the_present() -> None:
    """The observations that gave it away."""
    watch = ChangePoint()
    changes = [watch.observe(5.0, censored=False, known=PRIOR) for _ in range(ENOUGH)]
    assert changes[:-1] == [None] * (ENOUGH - 1)
    change = changes[-1]
    assert change is not None
    assert change.keep == ENOUGH
    assert change.factor == pytest.approx(10.0)
