"""What a record says, from made-up ones whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipecat_hedge.tools.bench.drill.figures import (
    broken_share,
    enough_secs,
    figures,
    highest,
    left_alone_secs,
    recovered_secs,
    requests_per_turn,
    waits_recovered_secs,
)
from pipecat_hedge.tools.bench.drill.plans import Drill
from pipecat_hedge.tools.bench.drill.records import Load, Turn

from .made_up import counts, record, steadily, turn

FIFTY = counts((200, 50))
"""Turns that begin in each second."""


def test_left_alone_from_the_second_on():
    """Broken at 20, asked for 3 s more, then only probed: noticed after 3 s."""
    series = counts((20, 50), (3, 50), (37, 0), (30, 50))
    assert left_alone_secs(series, FIFTY, 20, 60) == 3
    series[40] = 1  # a probe: 1 in 10 s is 0.2 % of the usual 500
    assert left_alone_secs(series, FIFTY, 20, 60) == 3


def test_a_trickle_is_not_left_alone():
    """2 % of the usual is too much; a hair less is not."""
    usual = counts((20, 50))
    assert left_alone_secs(np.concatenate([usual, counts((30, 1))]), FIFTY, 20, None) is None
    rarely = counts((30, 0))
    rarely[::10] = 9  # 9 in each 10 s, of the usual 500
    assert left_alone_secs(np.concatenate([usual, rarely]), FIFTY, 20, None) == 0


def test_noticed_too_late_for_anybody():
    """Who is asked until the return was never left alone, though the stretch before it is short."""
    assert left_alone_secs(counts((20, 50), (40, 50), (10, 50)), FIFTY, 20, 60) is None
    assert left_alone_secs(counts((20, 50), (38, 50), (2, 0), (10, 50)), FIFTY, 20, 60) == 38


def test_callers_who_hang_do_not_leave_it_alone():
    """They ask nobody, and the first who asks again asks it."""
    series = counts((20, 50), (1, 50), (29, 0), (10, 9), (30, 50))
    assert left_alone_secs(series, series, 20, 60) is None
    assert broken_share(series, series, 20, 60) == 1
    assert recovered_secs(series, series, 20, 60) == 0


def test_what_the_broken_one_gets():
    """Its first ten seconds do not count, nor does what follows its return."""
    series = counts((20, 50), (10, 50), (29, 0), (1, 29), (30, 50))
    assert broken_share(series, FIFTY, 20, 60) == pytest.approx(29 / 30 / 50)
    assert broken_share(series, FIFTY, 20, None) == pytest.approx((29 + 30 * 50) / 60 / 50)
    assert broken_share(series, FIFTY, 20, 25) is None
    assert broken_share(counts((20, 0), (40, 1)), FIFTY, 20, None) is None


def test_recovered_when_the_share_is_back():
    """Back at 60; probed until 70, half of it until 80, all from then on."""
    series = counts((20, 50), (40, 0), (10, 1), (10, 25), (40, 50))
    # from 78 on, ten seconds hold 2 x 25 + 8 x 50 = 450, which is 90 % of 500
    assert recovered_secs(series, FIFTY, 20, 60) == 18
    assert recovered_secs(counts((20, 50), (40, 0), (40, 44)), FIFTY, 20, 60) is None
    assert recovered_secs(counts((20, 50), (40, 0), (40, 45)), FIFTY, 20, 60) == 0


def test_recovered_needs_a_stretch():
    """What is too short to say is not said."""
    assert recovered_secs(counts((20, 50), (40, 0), (9, 50)), FIFTY, 20, 60) is None


def test_the_highest_load():
    """One second of 200 among the usual 50: four times it, or less where stretches are longer."""
    series = counts((20, 50), (40, 0), (5, 50), (1, 200), (20, 50))
    assert highest(series, 20, 60, 1) == 4
    assert highest(series, 20, 60, 3) == pytest.approx(300 / 150)
    assert highest(counts((20, 0), (40, 9)), 20, 30, 1) is None


def test_what_was_before_the_return_is_no_load_after_it():
    """A storm while it was away is another question."""
    assert highest(counts((20, 50), (40, 500), (20, 50)), 20, 60, 1) == 1


def test_requests_per_turn_where_they_were_most():
    """Two requests a turn for 2 s among one: 2 over 2 s, less over more, 1.1 over all."""
    began = counts((20, 10))
    sent = counts((9, 10), (2, 20), (9, 10))
    assert requests_per_turn(sent, began, 20) == (2, 2)
    assert requests_per_turn(sent, began, 31) == (1.5, 4)
    assert requests_per_turn(sent, began, 200) == (pytest.approx(1.1), 20)
    assert requests_per_turn(sent, began, 999) == (pytest.approx(1.1), 20)
    assert requests_per_turn(counts((5, 3)), counts((5, 0)), 2) == (None, 5)


def test_where_hardly_a_turn_begins_it_takes_longer_until_there_are_enough():
    """Callers hang on the line, and what was begun before is asked again and again."""
    began = counts((10, 50), (5, 0), (5, 1), (10, 50))
    sent = counts((10, 50), (10, 60), (10, 50))
    # From the first second without a turn to the third of those with 50 again: 5 + 150 turns.
    assert requests_per_turn(sent, began, 155) == (pytest.approx((600 + 150) / 155), 13)


def test_a_stretch_holds_enough_turns():
    """150 of them: 3 s of fifty a second, 1 s of a thousand."""
    assert enough_secs(counts((60, 50))) == 3
    assert enough_secs(counts((60, 40))) == 4
    assert enough_secs(counts((60, 1000))) == 1
    assert enough_secs(counts((60, 0))) == 60


def test_callers_notice_it_no_more():
    """Slow from 20 to 32, by half after that: the p95 of ten seconds is back from 32 on."""
    turns = [turn(at, 5.0 if 20 <= at < 32 else 0.7) for at in steadily(60, 10)]
    assert waits_recovered_secs(turns, 20, math.inf, 1.5 * 0.5, 60) == 12
    assert waits_recovered_secs(turns, 20, math.inf, 0.6, 60) is None
    assert waits_recovered_secs(turns, 20, 40, 1.5 * 0.5, 60) is None


def test_lost_turns_are_slow_and_degraded_ones_are_not_looked_at():
    """A wait that had no end is beyond any bound; who was told at once did not wait."""
    lost = [turn(at, kind="lost" if at >= 20 else "answered") for at in steadily(60, 10)]
    assert waits_recovered_secs(lost, 20, math.inf, 1.0, 60) is None
    told = [
        turn(at, 9.0, "degraded" if int(at * 10) % 2 else "answered") for at in steadily(60, 10)
    ]
    assert waits_recovered_secs(told, 20, math.inf, 1.0, 60) is None
    told = [
        turn(at, 0.5, "degraded" if int(at * 10) % 2 else "answered") for at in steadily(60, 10)
    ]
    assert waits_recovered_secs(told, 20, math.inf, 1.0, 60) == 0


CALM = Drill("calm", "")


@pytest.mark.parametrize(("hedged_from", "worst"), [(99, 1.0), (13, 1.5)])
def test_turns_that_waited_for_room_count_when_they_ask(hedged_from: int, worst: float):
    """The requests of 3 s leave in the fourth: one a turn, and whatever else goes with them."""
    turns = list[Turn]()
    for at in steadily(40, 50):
        second = int(at)
        queued = 13 - second if 10 <= second < 13 else 0
        is_hedged = second + queued == hedged_from and int(at * 50) % 2
        reasons = ("primary", "hedge") if is_hedged else ("primary",)
        turns.append(turn(at, reasons=reasons, queued_secs=queued))
    hedges = 100 if hedged_from == 13 else 0
    asked = {"first": counts((10, 50), (3, 0), (1, 200 + hedges), (26, 50))}
    told = figures(CALM, record(CALM, turns, asked))
    assert told.worst_requests_per_turn == pytest.approx(worst)


DOWN = Drill("down", "", event_secs=20, return_secs=60, broken=("first",))


def test_a_whole_run():
    """Every figure of an outage, from turns and counts that are known."""
    turns = []
    for at in steadily(100, 10):
        is_away = 20 <= at < 60
        kind = "degraded" if 20 <= at < 21 else "answered"
        reasons = ("primary", "failure") if 21 <= at < 23 else ("primary",)
        waited = 2.0 if is_away else 0.5
        premium = int(at * 10) % 10 == 0
        turns.append(turn(at, waited, kind, premium=premium, reasons=reasons))
    asked = {
        "first": counts((20, 10), (3, 10), (37, 0), (12, 0), (3, 12), (25, 10)),
        "second": counts((20, 0), (1, 0), (2, 10), (37, 10), (12, 10), (28, 0)),
    }
    told = figures(DOWN, record(DOWN, turns, asked, Load((0.5, 0.9, 0.7), (0.1,), (0.01,) * 99)))
    assert (told.turns, told.unended) == (1000, 0)
    assert (told.answered, told.degraded, told.lost) == (990, 10, 0)
    assert (told.calm_p95_secs, told.p50_secs, told.p99_secs) == (0.5, 2.0, 2.0)
    assert told.degraded_p95_secs == 2.0
    # 40 premium turns while it lasted, of which one in the first second was degraded
    assert told.premium_p95_secs == 2.0
    assert told.premium_at_once_p95_secs == 2.0
    assert told.stretch_secs == 15
    assert told.requests_per_turn == pytest.approx((516 + 510) / 1000)
    assert told.replacements_per_turn == pytest.approx(20 / 1000)
    assert told.notice_secs == 3
    assert told.broken_share == 0
    # from 70 on: nothing for 2 s, 36 in 3 s, 50 in 5 s, which is 86; from 71 on 96
    assert told.recover_secs == 11
    assert told.load_after == pytest.approx((3 * 12 + 12 * 10) / 15 / 10)
    assert told.cpu_share == (0.7, 0.9)
    assert told.own_share == (0.1, 0.1)
    assert told.lag_secs == (0.01, 0.01)


def test_the_load_of_each_that_is_relied_on_is_looked_at():
    """The first one gets all at once when both are back: twice its usual, if not of both."""
    both = Drill("", "", event_secs=20, return_secs=60, broken=("first", "second"))
    asked = {
        "first": counts((20, 5), (40, 0), (40, 10)),
        "second": counts((20, 5), (40, 0), (40, 0)),
    }
    turns = [turn(at) for at in steadily(100, 10)]
    assert figures(both, record(both, turns, asked)).load_after == 2
    seldom = {"first": asked["first"] * 2, "second": counts((20, 1), (40, 0), (40, 4))}
    assert figures(both, record(both, turns, seldom)).load_after == pytest.approx(24 / 11)


def test_premium_callers_without_an_answer():
    """Ten in a hundred that heard none are a p95 that is never reached."""
    turns = [
        turn(at, kind="degraded" if at % 1 == 0 else "answered", premium=True)
        for at in steadily(60, 10)
    ]
    told = figures(DOWN, record(DOWN, turns, {"first": counts((60, 10))}))
    assert told.premium_p95_secs == math.inf


def test_premium_callers_are_counted_once_a_crowd_can_be_known():
    """Ten seconds without an answer after the event are told apart."""
    turns = [
        turn(at, kind="degraded" if 20 <= at < 30 else "answered", premium=True)
        for at in steadily(60, 10)
    ]
    told = figures(DOWN, record(DOWN, turns, {"first": counts((60, 10))}))
    assert told.premium_p95_secs == 0.5
    assert told.premium_at_once_p95_secs == math.inf


def test_calm_is_all_of_it():
    """Without an event nothing is noticed, and every turn counts."""
    drill = Drill("calm", "")
    turns = [turn(at, 0.1 + at / 100) for at in steadily(60, 10)]
    told = figures(drill, record(drill, turns, {"first": counts((60, 10))}))
    assert told.notice_secs is None
    assert told.recover_secs is None
    assert told.broken_share is None
    assert told.p50_secs == pytest.approx(0.1 + 0.2999, abs=0.001)
    assert told.calm_p95_secs == told.p95_secs


def test_turns_that_never_ended():
    """Those of a process that was killed began, and sent their requests."""
    drill = Drill("process", "", event_secs=20)
    whole = record(drill, [turn(at) for at in steadily(60, 10)], {"first": counts((60, 10))})
    killed = record(drill, [t for t in whole.turns if not 20 <= t.at < 21], whole.asked)
    killed.began[20] += 10
    told = figures(drill, killed)
    assert (told.turns, told.unended, told.lost) == (590, 10, 0)
    assert told.requests_per_turn == 1
