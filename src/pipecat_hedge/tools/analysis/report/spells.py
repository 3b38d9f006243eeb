"""When a provider was slow, or failing: from when to when. Pure.

The problem: a provider that is slow for five minutes of a day hardly moves the day's percentiles,
and an operator must see who it was, when, and what it cost. The naive answer cuts the log into
stretches and looks for stretches with a high p95: too coarse a cut hides the spell, too fine a cut
finds one in every tenth stretch, because a p95 of twelve turns is chance.

Ours asks for the stretch, of any length, that speaks most for "it was bad then". A request is *bad*
if it failed or took longer than ``SLOW`` times the provider's usual median; one that was cancelled
sooner than that says nothing and is left out. With a share p0 of bad requests as usual, and p1 in a
spell, each request scores log(p1/p0) if it is bad and log((1-p1)/(1-p0)) if it is not, which is
negative. The stretches whose scores sum to most are found in one pass (Ruzzo and Tompa, 1999). How
large a sum comes by chance is known: for such scores, in n requests one of S or more comes with a
probability of at most n * exp(-S) (Karlin and Altschul, 1990), so with S above log(n/``BY_CHANCE``)
one log in a hundred shows a spell that was none. What is usual is counted a second time without the
spells that were found, so that a spell of a third of the log is not taken for what is usual.

Left out: a provider that has been slow all the time, which is not a spell but what it is like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SLOW", "Stretch", "bad_stretches"]

SLOW = 1.5
"""So many usual medians are slow: hedges mostly are sent later than that, so that it is seen."""
BY_CHANCE = 0.01
LEAST_BAD = 5
"""Fewer bad requests than this are no spell, however unlikely."""
LEAST_RAISED = 0.5
LEAST_USUAL = 0.01
"""The share of bad requests that is taken to be usual is at least this: none is never believed."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of a sequence.

    Parameters:
        start: Its first element.
        stop: The element after its last.
        score: How much speaks for it.
    """

    start: int
    stop: int
    score: float


def bad_stretches(bad: Sequence[bool]) -> list[Stretch]:
    """The stretches in which so much was bad that it is not chance.

    Args:
        bad: Whether each request was bad, in the order of time.

    Returns:
        The stretches in the order of time; each begins and ends with a bad request.
    """
    found = list[Stretch]()
    for _ in range(2):
        inside = sum(sum(bad[s.start : s.stop]) for s in found)
        outside = len(bad) - sum(s.stop - s.start for s in found)
        usual = (sum(bad) - inside + 0.5) / (outside + 1)
        if usual >= 0.9:  # nothing can be told from that
            return found
        usual = max(usual, LEAST_USUAL)
        raised = max((1 + usual) / 2, LEAST_RAISED)
        up, down = math.log(raised / usual), math.log((1 - raised) / (1 - usual))
        least = math.log(max(len(bad), 1) / BY_CHANCE)
        scores = [up if each else down for each in bad]
        found = [
            stretch
            for stretch in _maximal(scores)
            if stretch.score >= least and sum(bad[stretch.start : stretch.stop]) >= LEAST_BAD
        ]
    return found


def _maximal(scores: Sequence[float]) -> list[Stretch]:
    """All maximal scoring stretches of a sequence: Ruzzo and Tompa's algorithm, in linear time."""
    done, open_ones = list[Stretch](), list[tuple[int, int, float, float]]()
    total = 0.0
    for index, score in enumerate(scores):
        before, total = total, total + score
        if score <= 0:
            continue
        start, left = index, before
        while True:
            at = len(open_ones) - 1
            while at >= 0 and open_ones[at][2] >= left:
                at -= 1
            if at < 0:  # nothing earlier can grow any more
                done += [Stretch(a, b, right - low) for a, b, low, right in open_ones]
                open_ones = [(start, index + 1, left, total)]
                break
            if open_ones[at][3] >= total:
                open_ones.append((start, index + 1, left, total))
                break
            start, left = open_ones[at][0], open_ones[at][2]
            del open_ones[at:]
    return done + [Stretch(a, b, right - low) for a, b, low, right in open_ones]
