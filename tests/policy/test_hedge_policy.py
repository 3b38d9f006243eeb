"""What a user may write as a policy, and what is refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from pipecat_hedge import HedgeError, HedgePolicy, Slo
from pipecat_hedge.policy.hedge_policy import Adaptive, AfterSilence, OnlyOnFailure
from pipecat_hedge.race import ConfigurationError


def test_names_say_what_the_policy_does() -> None:
    """The name in logs tells policy and parameter."""
    assert HedgePolicy.race(3).name == "race(3)"
    assert HedgePolicy.after(0.25).name == "after(0.25 s)"
    assert HedgePolicy.after(None).name == "after(never)"
    assert HedgePolicy.fallback().name == "fallback"
    assert HedgePolicy.adaptive(0.05).name == "adaptive(5 %)"


def test_an_adaptive_deadline_fails_no_turn() -> None:
    """It says when hedges should have been sent, not when to give up."""
    policy = HedgePolicy.adaptive(0.1, 3, target_ttft_secs=1.2, min_saving_secs=0, order="learned")
    assert policy.rule == Adaptive(0.1, 0.0, 1.2, "learned")
    assert policy.deadline_secs is None
    assert policy.max_attempts == 3


def test_a_promise_is_aimed_at() -> None:
    """It is part of the rule and of the name, and needs no deadline beside it."""
    policy = HedgePolicy.adaptive(0.1, slo=Slo())
    assert policy.rule == Adaptive(0.1, 0.15, None, "learned", Slo())
    assert policy.name == "adaptive(10 %, slo)"


def test_a_budget_may_be_as_large_as_there_are_attempts() -> None:
    """One is every turn, also where there is one attempt: then it is the share that is wanted."""
    for budget, attempts in ((1.0, 2), (1, 1), (2.0, 3)):
        assert HedgePolicy.adaptive(budget, attempts).max_attempts == attempts


@pytest.mark.parametrize(("budget", "meant"), [(10, "0.1"), (5, "0.05"), (1.5, "0.015")])
def test_a_budget_in_per_cent_is_refused(budget: float, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"budget is {budget} .*, write {meant}$"):
        HedgePolicy.adaptive(budget)


def test_none_is_never_and_zero_is_now() -> None:
    """``if delay`` would mix the two up."""
    assert HedgePolicy.after(None).rule == OnlyOnFailure()
    assert HedgePolicy.after(float("inf")).rule == OnlyOnFailure()
    assert HedgePolicy.after(0).rule == AfterSilence(0.0)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: HedgePolicy.after(-0.5), "seconds must not be negative, got -0.5"),
        (lambda: HedgePolicy.after(float("nan")), "seconds must be a number"),
        (lambda: HedgePolicy.after("1"), "seconds must be a number"),  # pyright: ignore[reportArgumentType]
        (lambda: HedgePolicy.after(True), "seconds must be a number"),
        (lambda: HedgePolicy.after(800), "seconds is in seconds, .* if milliseconds .*, write 0.8"),
        (
            lambda: HedgePolicy.adaptive(target_ttft_secs=800),
            "target_ttft_secs is in .*, write 0.8",
        ),
        (lambda: HedgePolicy.race(0), "max_attempts must be a whole number of at least 1, got 0"),
        (lambda: HedgePolicy.after(1, max_attempts=-2), "of at least 1, got -2"),
        (lambda: HedgePolicy.fallback(1.5), "max_attempts must be a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: HedgePolicy.race(True), "max_attempts must be a whole number"),
        (lambda: HedgePolicy.race(commit="late"), "commit is not known, got 'late': write 'auto',"),  # pyright: ignore[reportArgumentType]
        (lambda: HedgePolicy.race(losers="pay"), "losers is not known, got 'pay': write 'cancel'"),  # pyright: ignore[reportArgumentType]
        (lambda: HedgePolicy.race(stall_secs=-1), "stall_secs must not be negative, got -1"),
        (lambda: HedgePolicy.race(deadline_secs=-1), "deadline_secs must not be negative"),
        (lambda: HedgePolicy.adaptive(-0.1), "budget must be a share of turns, not negative"),
        (lambda: HedgePolicy.adaptive(True), "budget must be a share of turns"),
        (lambda: HedgePolicy.adaptive("5 %"), "budget must be a share of turns"),  # pyright: ignore[reportArgumentType]
        (lambda: HedgePolicy.adaptive(order="fast"), "order is not known, got 'fast': write"),  # pyright: ignore[reportArgumentType]
        (
            lambda: HedgePolicy.adaptive(min_saving_secs=-1),
            "min_saving_secs must not be negative, got -1",
        ),
        (
            lambda: HedgePolicy.adaptive(target_ttft_secs=-1),
            "target_ttft_secs must not be negative",
        ),
        (
            lambda: HedgePolicy.adaptive(slo=Slo(), target_ttft_secs=1.2),
            "target_ttft_secs=1.2 and slo both say when an answer should be there: give one",
        ),
        (lambda: HedgePolicy.adaptive(slo=0.8), "slo must be a Slo, got 0.8: write Slo"),  # pyright: ignore[reportArgumentType]
        (
            lambda: HedgePolicy.adaptive(slo=Slo(ttft_secs=None, ttfs_secs=None)),
            "slo promises no time of the LLM's, .*: give it a ttft_secs",
        ),
        (lambda: HedgePolicy.race(fallback_text=" "), "fallback_text is empty: give the sentence"),
    ],
)
def test_bad_input_names_the_field_and_the_remedy(make: Any, told: str) -> None:
    """A policy that cannot work is refused where it is written."""
    with pytest.raises(ValueError, match=told) as caught:
        make()
    assert isinstance(caught.value, HedgeError)
    assert ":" in str(caught.value)
