"""Two logs side by side: what differs, and what chance makes."""

from __future__ import annotations

import random

import pytest

from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.tools.analysis.report.comparing import Comparison, Difference, compare
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn
from tests.tools.analysis.report.made_up import attempt, turn

PROFILE = PROFILES["claude-haiku-4-5"]


def log(
    count: int, seed: int, times: float = 1.0, calls: int | None = None, usd: float | None = 0.01
) -> list[LoggedTurn]:
    waits = PROFILE.samples(count, seed) * times
    return [
        turn(
            attempt(ttft=float(w), usd=usd),
            ttft=float(w),
            **({} if calls is None else {"session": f"call {n % calls}"}),
        )
        for n, w in enumerate(waits)
    ]


def of(comparison: Comparison, name: str) -> Difference:
    return next(d for d in comparison.differences if d.name == name)


def compared(one: list[LoggedTurn], other: list[LoggedTurn]) -> Comparison:
    return compare(one, other, ["other.jsonl"], Slo(), resamples=200)


def test_what_is_slower_is_shown_to_be() -> None:
    """By how much, within an interval that holds it."""
    found = compared(log(800, 1, times=1.5), log(800, 2))
    p50 = of(found, "first token, p50")
    assert p50.verdict == "differs"
    assert p50.low is not None
    assert p50.high is not None
    assert p50.low < 0.5 * PROFILE.quantile(0.5) < p50.high
    kept = of(found, "first token within 0.8 s")
    assert (kept.verdict, kept.less_is_better) == ("differs", False)
    assert kept.delta is not None
    assert kept.delta < 0


def test_two_logs_of_one_bot_show_no_difference() -> None:
    """Or hardly ever one, of a hundred and more figures."""
    shown = [
        d.verdict
        for seed in range(12)
        for d in compared(log(400, 2 * seed), log(400, 2 * seed + 1)).differences
        if d.verdict in ("differs", "no difference shown")
    ]
    assert len(shown) > 100
    assert shown.count("differs") <= 0.1 * len(shown)


def test_a_log_differs_in_nothing_from_itself() -> None:
    """Each figure is the same, and so the interval holds nought."""
    mine = log(300, 1)
    for each in compared(mine, mine).differences:
        assert each.delta == 0
        assert each.verdict in ("no difference shown", "too few turns")


def test_a_tail_takes_many_turns() -> None:
    """A p99 of three hundred turns is three turns' word."""
    found = compared(log(300, 1, times=3), log(300, 2))
    assert of(found, "first token, p99").verdict == "too few turns"
    assert of(found, "first token, p50").verdict == "differs"


def test_where_the_log_tells_calls_they_are_drawn_whole() -> None:
    """One slow call in thirty is one observation, and not a hundred."""
    calm = log(600, 1, calls=30)
    rng = random.Random(5)
    slow = [
        turn(
            attempt(ttft=w),
            ttft=w,
            session=f"call {n // 20}",
        )
        for n in range(600)
        for w in ((4.0 if n < 40 else 0.6) + rng.uniform(0, 0.1),)
    ]
    found = compared(slow, calm)
    assert found.drawn == ("calls", "calls")
    p95 = of(found, "first token, p95")
    assert p95.low is not None
    assert p95.high is not None
    assert p95.high - p95.low > 2


def test_without_calls_turns_are_drawn() -> None:
    """And a handful of calls is too few to draw from."""
    assert compared(log(100, 1, calls=5), log(100, 2)).drawn == ("turns", "turns")


def test_what_one_log_does_not_tell_is_unknown() -> None:
    """A price that no provider has, for one."""
    found = compared(log(100, 1, usd=None), log(100, 2))
    assert of(found, "cost of a successful turn").verdict == "unknown"
    assert of(found, "cost of a successful turn").of_this is None


def test_the_same_logs_give_the_same_intervals() -> None:
    """The dice are fixed."""
    one, other = log(200, 1), log(200, 2)
    assert compared(one, other) == compared(one, other)


def test_nobody_need_be_asked() -> None:
    """A log in which every turn failed at once has no percentiles, and says so."""
    gone = attempt(ttft=None, ended=0.0, outcome="failed", error_category="shed", sent_secs=None)
    dead = [turn(gone, ttft=None, outcome="failed") for _ in range(50)]
    found = compared(dead, log(50, 1))
    assert of(found, "first token, p50").verdict == "unknown"
    assert of(found, "answered to the end").of_this == pytest.approx(0)
