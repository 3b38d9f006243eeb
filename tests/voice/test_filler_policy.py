"""Whether to fill the silence, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipecat_hedge.policy import SurvivalCurve
from pipecat_hedge.voice.filler_policy import FillerDecision, FillerRule

FILLER = 0.8
RULE = FillerRule(after_secs=0.8, margin_secs=0.4)


def fixed(secs: float) -> SurvivalCurve:
    """All answers after so long, give or take a tenth; a few never before much later."""
    return SurvivalCurve.of([0.9 * secs, secs, 1.1 * secs], [0.9, 0.5, 0.01], 0.1)


def decided(wait: SurvivalCurve, rule: FillerRule = RULE, **known: Any) -> FillerDecision:
    facts: dict[str, Any] = {"turn": 5, "waited_secs": 0.0, "filler_secs": FILLER, **known}
    return rule.decide(wait, **facts)


@given(
    st.lists(st.floats(0.05, 8.0), min_size=3, max_size=30),
    st.floats(0.0, 2.0),
    st.floats(0.2, 2.0),
    st.floats(0.05, 5.0),
)
@example(answers=[1.0, 1.0, 2.0], waited=0.0, filler_secs=1.0, tail=1.0)
def test_filler_begins_when_it_first_pays(
    answers: list[float], waited: float, filler_secs: float, tail: float
) -> None:
    """Compared with looking at every hundredth of a second."""
    secs = np.sort(np.array(answers))
    wait = SurvivalCurve.of(secs, 1.0 - np.arange(1, len(secs) + 1) / (len(secs) + 1), tail)
    decision = decided(wait, waited_secs=waited, filler_secs=filler_secs)

    def pays(at: float, give: float = 0.0) -> bool:
        landing = 1.0 - float(wait.share_after(at + filler_secs) / wait.share_after(at))
        return wait.expected_remaining(at) >= filler_secs + 0.4 - give and landing <= 0.5 + give

    begins = max(waited, 0.8)
    at_secs = decision.at_secs
    assert at_secs is not None
    hangs_at = max(begins, 2 * wait.quantile(0.998))
    # At a step of the curve it pays before or behind it; where exactly half land, only there.
    assert at_secs == hangs_at or pays(at_secs - 1e-9, 1e-6) or pays(at_secs + 1e-9, 1e-6)
    assert begins <= at_secs <= hangs_at
    assert not any(pays(at) for at in np.arange(begins, at_secs - 1e-6, 0.01))


def test_fillers_are_rare() -> None:
    """Not in the first turn, once a turn, and not soon after the last one."""
    wait = fixed(5.0)
    assert decided(wait, turn=1) == FillerDecision(None, "no fillers before turn 2")
    assert decided(wait, turn=2).at_secs == 0.8
    assert decided(wait, fillers=1).reason == "1 spoken in this turn, the most per turn"
    assert decided(wait, FillerRule(per_turn=2), fillers=1).at_secs == 0.8
    assert decided(wait, since_filler_secs=12.5).at_secs == pytest.approx(2.5)
    late = decided(wait, since_filler_secs=10.5).at_secs
    assert late is not None
    assert late > 10, "before that, little is left to wait"
    assert decided(wait, since_filler_secs=60.0).at_secs == 0.8


def test_wait_beyond_all_observations_is_exceptional() -> None:
    """Also where the curve says that nobody waits so long."""
    assert decided(fixed(1.0), waited_secs=9.0).at_secs == 9.0
    ended = SurvivalCurve.of([1.0, 2.0], [0.5, 0.0], 0.1)
    assert decided(ended, waited_secs=3.0).at_secs == 4.0
    assert decided(ended, waited_secs=9.0).at_secs == 9.0
