"""What hedging bought and what a change would do, in words: a least is not compared."""

from __future__ import annotations

import dataclasses

import pytest

from pipecat_hedge.tools.analysis.report.changes import Change, Replays
from pipecat_hedge.tools.analysis.report.figures import Figures, figures_of
from pipecat_hedge.tools.analysis.report.headlines import bought, effect_of
from pipecat_hedge.tools.analysis.report.hedging_part import changes_part
from pipecat_hedge.tools.analysis.report.predictions import Prediction
from pipecat_hedge.tools.analysis.report.turns import Log
from tests.tools.analysis.report.made_up import turn

WAS = Prediction("adaptive(10 %)", 0.5, 1.4, 3.0, 1.3, 1.5, {}, 0.6, 0.9, 0.0, 1.05, 2.0)
NOW = dataclasses.replace(WAS, p95_secs=1.2, p99_secs=2.0, p95_low_secs=1.1, p95_high_secs=1.3)
CUT = dataclasses.replace(NOW, at_least={"p95": 1.62, "p99": 2.53})


def change(before: Prediction, after: Prediction) -> Change:
    return Change("policy", "Hedge more", "policy=HedgePolicy…", before, after, 0.1, 0.1)


def replays(without: Prediction, *changes: Change, unseen: float | None = None) -> Replays:
    known = () if unseen is None else (("gpt", unseen),)
    return Replays("haiku", "gpt", NOW, True, without, None, changes, known, 7, 4000, "so")


@pytest.fixture
def page_figures() -> Figures:
    return figures_of(Log(("turns.jsonl",), (turn(),)), replay=False)


def test_what_is_known_of_both_is_compared() -> None:
    """With and without hedges, before and after."""
    assert bought(replays(WAS)) == (
        "Replayed with and without hedges: p95 1.20 s instead of 1.40 s, p99 2.00 s instead of "
        "3.00 s."
    )
    assert effect_of(change(WAS, NOW)).startswith("p95 1.20 s instead of 1.40 s, p99 2.00 s inst")
    assert bought(replays(NOW)) == ("Replayed without hedges, callers would have waited no longer.")


def test_a_bound_is_compared_with_what_lies_before_it() -> None:
    """At least 2.53 s is more than 2 s, and less is not known of it; on whichever side it is."""
    least = dataclasses.replace(WAS, at_least={"p99": 2.53})
    told = "Replayed with and without hedges: p95 1.20 s instead of 1.40 s"
    assert bought(replays(least)) == f"{told}, p99 2.00 s instead of > 2.53 s."
    assert "p99 2.00 s instead of > 2.53 s" in effect_of(change(least, NOW))
    assert "p99 > 2.53 s instead of 2.00 s" in effect_of(change(NOW, least))
    early = dataclasses.replace(WAS, at_least={"p99": 1.99})
    unknown = "What it did to p99 is not known: requests were cut short."
    assert bought(replays(early)) == f"{told}. {unknown}"
    for before, after in ((early, NOW), (NOW, early)):
        assert "what becomes of p99 is not known" in effect_of(change(before, after))


def test_two_bounds_are_no_comparison() -> None:
    """Nor is one that lies before what is known of the other."""
    early = dataclasses.replace(CUT, at_least={"p95": 1.1, "p99": 1.9})
    for before, after in ((early, NOW), (WAS, early), (CUT, CUT), (early, CUT)):
        told = effect_of(change(before, after))
        assert "instead of 1.40" not in told
        assert ">" not in told
        assert "what becomes of p95 and p99 is not known" in told


def test_no_interval_is_told_of_a_bound(page_figures: Figures) -> None:
    """The one contradicts the other."""
    known = dataclasses.replace(page_figures, replays=replays(WAS, change(WAS, NOW)))
    assert "its p95 would lie between 1.10 s and 1.30 s" in changes_part(known)
    cut = dataclasses.replace(page_figures, replays=replays(WAS, change(WAS, CUT)))
    assert "would lie between" not in changes_part(cut)
    assert "It saves about 0.10 s of the mean wait, if" in changes_part(cut)


def test_who_is_not_known_is_said_not_to_be(page_figures: Figures) -> None:
    """In place of advice that rests on a guess."""
    told = changes_part(dataclasses.replace(page_figures, replays=replays(WAS, unseen=0.83)))
    assert "Not known is what asking gpt first would do" in told
    assert "beyond 0.83 s" in told
