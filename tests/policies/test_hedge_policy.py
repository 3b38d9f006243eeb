"""What a user may write as a policy, and what is refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from pipecat_hedge import HedgeError, HedgePolicy
from pipecat_hedge.policies.hedge_policy import AfterSilence, OnlyOnFailure
from pipecat_hedge.policies.usable import is_usable_text


def test_names_say_what_the_policy_does() -> None:
    """The name in logs tells policy and parameter."""
    assert HedgePolicy.race(3).name == "race(3)"
    assert HedgePolicy.after(0.25).name == "after(0.25 s)"
    assert HedgePolicy.after(None).name == "after(never)"
    assert HedgePolicy.fallback().name == "fallback"


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
        (lambda: HedgePolicy.race(0), "attempts must be at least 1, got 0"),
        (lambda: HedgePolicy.after(1, attempts=-2), "attempts must be at least 1, got -2"),
        (lambda: HedgePolicy.fallback(1.5), "attempts must be a whole number"),  # pyright: ignore[reportArgumentType]
        (lambda: HedgePolicy.race(True), "attempts must be a whole number"),
    ],
)
def test_bad_input_names_the_field_and_the_remedy(make: Any, told: str) -> None:
    """A policy that cannot work is refused where it is written."""
    with pytest.raises(ValueError, match=told) as caught:
        make()
    assert isinstance(caught.value, HedgeError)
    assert ":" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "usable"),
    [
        ("Hello", True),
        (" a", True),
        ("● Yes.", True),
        ("0", True),
        ("", False),
        ("   \n", False),
        ("●", False),
        ("○ ", False),
        (" ◐", False),
        ("\u00a0", False),
    ],
)
def test_usable_is_what_a_caller_could_hear(text: str, usable: bool) -> None:
    """White space and turn-completion markers are no answer."""
    assert is_usable_text(text) is usable
