"""The stretches that speak most for a bad time, and what chance alone finds."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecat_hedge.tools.analysis.report import spells
from pipecat_hedge.tools.analysis.report.spells import bad_stretches


@given(st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.5, 1.0, 3.0]), max_size=60))
@settings(max_examples=300)
def test_the_best_stretch_is_found(scores: list[float]) -> None:
    """No stretch of any length scores more; the found ones do not overlap."""
    found = spells._maximal(scores)
    best = max(
        (sum(scores[a:b]) for a in range(len(scores)) for b in range(a + 1, len(scores) + 1)),
        default=0.0,
    )
    assert max((s.score for s in found), default=0.0) == pytest.approx(max(best, 0.0))
    for stretch in found:
        assert stretch.score == pytest.approx(sum(scores[stretch.start : stretch.stop]))
        for end in range(stretch.start + 1, stretch.stop + 1):  # every beginning of it counts
            assert sum(scores[stretch.start : end]) > 0
    for before, after in itertools.pairwise(found):
        assert before.stop <= after.start


@pytest.mark.parametrize("usual", [0.01, 0.05, 0.2, 0.35])
def test_chance_alone_is_no_spell(usual: float) -> None:
    """In one log of a hundred at most: of two hundred, in hardly any."""
    rng = random.Random(7)
    logs = ([rng.random() < usual for _ in range(1000)] for _ in range(200))
    assert sum(bool(bad_stretches(log)) for log in logs) <= 4


@pytest.mark.parametrize("usual", [0.01, 0.1, 0.3])
@pytest.mark.parametrize("length", [60, 300])
def test_a_spell_is_found_where_it_is(usual: float, length: int) -> None:
    """Within a few requests, be it a third of the log; more where much is bad anyway."""
    near = 12 if usual < 0.3 else 30
    for seed in range(10):
        rng = random.Random(seed)
        bad = [rng.random() < (0.9 if 400 <= n < 400 + length else usual) for n in range(900)]
        (found,) = bad_stretches(bad)
        assert abs(found.start - 400) <= near
        assert abs(found.stop - 400 - length) <= near


def test_two_spells_are_two() -> None:
    """With a calm between them."""
    bad = [n in range(100, 140) or n in range(600, 640) for n in range(1000)]
    assert [(s.start, s.stop) for s in bad_stretches(bad)] == [(100, 140), (600, 640)]


@pytest.mark.parametrize("bad", [[], [True], [True] * 50, [False] * 50, [True, False] * 25])
def test_what_is_always_so_is_no_spell(bad: list[bool]) -> None:
    """Nor is anything in a log of nothing."""
    assert bad_stretches(bad) == []
