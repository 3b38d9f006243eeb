"""Whether to fill the silence, and when."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from pipecat_hedge.policy import SurvivalCurve
from pipecat_hedge.voice.filler_policy import FillerDecision, FillerPhrases, FillerRule, Silence

FILLER = 0.8
RULE = FillerRule(after_secs=0.8, margin_secs=0.4)


def fixed(secs: float) -> SurvivalCurve:
    """All answers after so long, give or take a tenth; a few never before much later."""
    return SurvivalCurve.of([0.9 * secs, secs, 1.1 * secs], [0.9, 0.5, 0.01], 0.1)


def decided(wait: SurvivalCurve, rule: FillerRule = RULE, **known: Any) -> FillerDecision:
    facts: dict[str, Any] = {"turn": 5, "waited_secs": 0.0, "filler_secs": FILLER, **known}
    return rule.decide(Silence(wait=wait, **facts))


def test_a_short_wait_is_not() -> None:
    """However long the caller has waited when nearly all have been answered; unless it hangs."""
    decision = decided(fixed(0.6))
    longest = fixed(0.6).quantile(0.998)
    assert decision.at_secs == pytest.approx(2 * longest)
    assert "s left to wait at 0.80 s, a filler needs 1.20 s, and 1.6" in decision.reason
    assert decision.reason.endswith(" s would be exceptional")


# ---- words


def test_phrases_rotate_and_end_with_the_shortest_choices() -> None:
    phrases, rng = FillerPhrases(), random.Random(1)
    spoken: list[str] = []
    for _ in range(60):
        phrase, *others = phrases.choices("slow", rng)
        assert [len(other) for other in others] == sorted(len(other) for other in others)
        phrases.mark_spoken(phrase)
        spoken.append(phrase)
    assert all(one != other for one, other in itertools.pairwise(spoken))
    assert len(set(spoken)) == 4


def test_only_phrase_is_repeated() -> None:
    phrases, rng = FillerPhrases({"slow": ["Hm."]}), random.Random(1)
    for _ in range(2):
        assert phrases.choices("slow", rng) == ["Hm."]
        phrases.mark_spoken("Hm.")
    assert phrases.choices("tool", rng) == []
