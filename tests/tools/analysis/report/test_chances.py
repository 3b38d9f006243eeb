"""What chance alone makes of two replays: measured against logs that differ by nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.tools.analysis.report.chances import Chances
from pipecat_hedge.tools.analysis.whatif import Measured, Question, Recorded, what_if
from pipecat_hedge.tools.analysis.whatif.answer import Answer

HAIKU = PROFILES["claude-haiku-4-5"]
NONE = HedgePolicy.fallback(1, stall_secs=None)
POLICIES = (("one request", NONE), ("failed replaced", HedgePolicy.fallback(2, stall_secs=None)))
Floats = npt.NDArray[np.float64]


def alone(recorded: Recorded, who: str) -> Answer:
    question = Question(first=who, second=who, least_turns=1000, policies=POLICIES)
    return what_if(recorded, question)


def means(chances: Chances, recorded: Recorded, who: str) -> Floats:
    answer = alone(recorded, who)
    return chances.means(recorded, answer, [answer.outcomes[0].secs])[0]


def same_twice(seed: int) -> Recorded:
    """Two providers that are alike: one known from 1,000 turns, one from 120, half of them cut."""
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(1000, 120, replace=False))
    rare, cut_at = HAIKU.samples(120, 1000 + seed), rng.exponential(1.2, 120)
    no = np.zeros(1000, np.bool_)
    return Recorded(
        {
            "often": Measured("often", HAIKU.samples(1000, seed), no, no, np.arange(1000)),
            "rarely": Measured("rarely", np.minimum(rare, cut_at), rare > cut_at, no[:120], rows),
        },
        1000,
        0,
        (),
        "s",
    )


def test_two_that_are_alike_differ_by_as_much_as_chance_says() -> None:
    """Over forty logs: the difference in standard errors has about the spread 1.

    Told by how many turns are replayed, the rarely asked one would seem to differ in most of them.
    """
    errors, naive = list[float](), list[float]()
    for seed in range(1, 41):
        recorded = same_twice(seed)
        chances = Chances(recorded, "often")
        one, other = (means(chances, recorded, who) for who in ("often", "rarely"))
        difference = one - other
        errors.append(float(difference[0] / difference[1:].std()))
        waits = alone(recorded, "often").outcomes[0].secs
        naive.append(float(difference[0] / (waits.std() * np.sqrt(2 / 1000))))
    assert np.mean(np.abs(errors) > 2.5) <= 0.1
    assert 0.7 < np.std(errors) < 1.5
    assert np.std(naive) > 2


def test_what_both_replays_have_in_common_is_no_difference() -> None:
    """Two policies over the same draws: as they answer alike, nothing is left to chance."""
    recorded = same_twice(1)
    answer = alone(recorded, "often")
    one, other = Chances(recorded, "often").means(
        recorded, answer, [outcome.secs for outcome in answer.outcomes]
    )
    assert one == pytest.approx(other)
    assert one.std() > 0


def test_the_log_as_it_is_comes_first() -> None:
    """Its mean is the replay's own where nothing was cut short, failures in their share."""
    no, failed = np.zeros(200, np.bool_), np.arange(200) % 4 == 0
    one = Measured("one", HAIKU.samples(200, 1), no, failed, np.arange(200))
    recorded = Recorded({"one": one}, 200, 0, (), "s")
    answer = alone(recorded, "one")
    waits = np.where(failed, 60.0, one.secs)[np.arange(1000) % 200]
    (told,) = Chances(recorded, "one").means(recorded, answer, [waits])
    assert told[0] == pytest.approx(waits.mean(), rel=0.1)
    assert told[1:].mean() == pytest.approx(waits.mean(), rel=0.1)


def test_what_was_cut_short_weighs_as_kaplan_and_meier_have_it() -> None:
    """By hand: of 1, 2+, 3 and 4 s, the one that was cut off shares its quarter with the later."""
    secs = np.tile([1.0, 2.0, 3.0, 4.0], 50)
    cut, no = np.tile([False, True, False, False], 50), np.zeros(200, np.bool_)
    one = Measured("one", secs, cut, no, np.arange(200))
    recorded = Recorded({"one": one}, 200, 0, (), "s")
    answer = alone(recorded, "one")
    (told,) = Chances(recorded, "one").means(recorded, answer, [answer.outcomes[0].secs])
    assert told[0] == pytest.approx(0.25 * 1 + 0.375 * 3 + 0.375 * 4, rel=1e-3)
