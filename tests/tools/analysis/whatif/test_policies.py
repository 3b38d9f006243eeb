"""Policies that the asker names, and an order of providers that is learned, replayed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.analysis.whatif import Measured, Question, Recorded, what_if

Floats = npt.NDArray[np.float64]
NONE = ("one", HedgePolicy.fallback(1, stall_secs=None))
GIVEN = ("given", HedgePolicy.adaptive(0.1, order="given", stall_secs=None))
LEARNED = ("learned", HedgePolicy.adaptive(0.1, stall_secs=None))
COUNT = 1200


def recorded(first: Floats, second: Floats) -> Recorded:
    no = np.zeros(COUNT, np.bool_)
    both = {
        name: Measured(name, secs, no, no, np.arange(COUNT))
        for name, secs in (("first", first), ("second", second))
    }
    return Recorded(both, COUNT, 0, (), "s")


def means(first: Floats, second: Floats) -> dict[str, float]:
    question = Question(least_turns=1, policies=(NONE, GIVEN, LEARNED))
    answer = what_if(recorded(first, second), question)
    assert [o.policy for o in answer.outcomes] == ["one", "given", "learned"]
    return {o.policy: o.mean_secs for o in answer.outcomes}


def test_where_the_first_turns_slow_for_good_the_order_is_learned() -> None:
    """Each request has its own provider's latency, whoever is asked first."""
    first, second = (PROFILES["claude-haiku-4-5"].samples(COUNT, seed) for seed in (1, 2))
    slow = np.where(np.arange(COUNT) >= 400, 5 * first, first)
    found = means(slow, second)
    assert found["learned"] < 0.75 * found["given"] < found["one"]


def test_where_nothing_changes_the_order_is_as_given() -> None:
    """A learned order costs nothing there."""
    first, second = (PROFILES["claude-haiku-4-5"].samples(COUNT, seed) for seed in (3, 4))
    found = means(first, second)
    assert found["learned"] == pytest.approx(found["given"], rel=0.02)


def test_a_recovery_is_seen() -> None:
    """The probes are followed to their first token, so the first provider comes back."""
    first = np.full(COUNT, 0.4)
    first[300:600] = 4.0
    second = np.full(COUNT, 0.9)
    assert means(first, second)["learned"] < 0.4 + 0.25 * 0.5 + 0.2


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ((NONE,), "policies must be two at least"),
        (
            (NONE, ("three", HedgePolicy.race(3))),
            "attempts is 2, and one of the policies makes more",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(
    policies: tuple[tuple[str, HedgePolicy], ...], message: str
) -> None:
    """With the remedy."""
    with pytest.raises(ConfigurationError, match=message):
        Question(policies=policies)
