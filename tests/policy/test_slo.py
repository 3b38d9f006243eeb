"""What callers are promised, and what a turn says of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.policy.slo_outcome import classify, classify_wait
from pipecat_hedge.race import AttemptReport, ConfigurationError, TurnReport


def test_what_is_promised_by_default() -> None:
    """Nineteen turns in twenty."""
    assert Slo() == Slo(ttft_secs=0.8, ttfs_secs=1.2, voice_to_voice_secs=1.5, share=0.95)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ttft_secs": 0}, "ttft_secs must be a positive number of seconds"),
        ({"ttfs_secs": -1.0}, "ttfs_secs must be a positive number"),
        ({"voice_to_voice_secs": "1"}, "voice_to_voice_secs must be a positive number"),
        ({"ttft_secs": True}, "ttft_secs must be a positive number"),
        ({"ttft_secs": math.nan}, "ttft_secs must be a positive number"),
        ({"ttft_secs": math.inf}, "ttft_secs is infinite: write None"),
        ({"share": 1}, "share must be above 0 and below 1"),
        ({"share": 95}, "share must be above 0 and below 1"),
        ({"share": True}, "share must be above 0 and below 1"),
    ],
)
def test_a_figure_that_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    """It is named, with the remedy."""
    with pytest.raises(ConfigurationError, match=message):
        Slo(**given)


def test_nothing_need_be_promised() -> None:
    """None promises nothing of that kind."""
    assert Slo(ttft_secs=None, ttfs_secs=None, voice_to_voice_secs=None).ttft_secs is None


# ---- what a turn says of it

ASKED = AttemptReport("a", None, 0.0, "primary", 0.3, 2.0, "won", None, 10, 10, False, None)


def turn(**fields: Any) -> TurnReport:
    usual: dict[str, Any] = {
        "turn": 1,
        "winner": "a",
        "outcome": "answered",
        "ttft_secs": 0.3,
        "ttfs_secs": 0.6,
        "duration_secs": 2.0,
        "attempts": (ASKED,),
    }
    return TurnReport(**{**usual, **fields})


NEVER: dict[str, Any] = {"ttft_secs": None, "ttfs_secs": None, "winner": None}


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        pytest.param({}, {"ttft": True, "ttfs": True}, id="in time"),
        pytest.param(
            {"ttft_secs": 0.8, "ttfs_secs": 1.2}, {"ttft": True, "ttfs": True}, id="just in time"
        ),
        pytest.param({"ttfs_secs": 1.3}, {"ttft": True, "ttfs": False}, id="dribbled"),
        pytest.param(
            {"ttft_secs": 0.9, "ttfs_secs": 1.1}, {"ttft": False, "ttfs": True}, id="late token"
        ),
        pytest.param(
            {"outcome": "failed", **NEVER}, {"ttft": False, "ttfs": False}, id="nobody answered"
        ),
        pytest.param(
            {"outcome": "failed", "degraded_reason": "no room", "attempts": (), **NEVER},
            {"ttft": False, "ttfs": False},
            id="nobody was asked, and the caller heard so at once",
        ),
        pytest.param(
            {"outcome": "failed", "degraded_reason": "a broke off"},
            {"ttft": False, "ttfs": False},
            id="a part of an answer, in time",
        ),
        pytest.param(
            {"outcome": "failed", "attempts": (), "duration_secs": 0.2, **NEVER},
            {},
            id="the caller went while waiting for room",
        ),
        pytest.param(
            {"outcome": "interrupted", "duration_secs": 0.7, **NEVER},
            {},
            id="cut off before its time had run out",
        ),
        pytest.param(
            {"outcome": "interrupted", "duration_secs": 1.0, **NEVER},
            {"ttft": False},
            id="cut off when only the first had run out",
        ),
        pytest.param(
            {"outcome": "interrupted", "duration_secs": 3.0, **NEVER},
            {"ttft": False, "ttfs": False},
            id="cut off too late",
        ),
        pytest.param(
            {"outcome": "interrupted", "duration_secs": 0.9, "ttfs_secs": None},
            {"ttft": True},
            id="cut off after the token",
        ),
        pytest.param(
            {"outcome": "answered_with_tools", "ttfs_secs": None},
            {"ttft": True},
            id="only tools were called",
        ),
        pytest.param(
            {"outcome": "answered_with_tools", "ttfs_secs": 0.6},
            {"ttft": True, "ttfs": True},
            id="let me look, and a tool",
        ),
    ],
)
def test_what_a_turn_says(fields: dict[str, Any], kept: dict[str, bool]) -> None:
    """Kept, broken, or nothing; each promise for itself."""
    assert classify(Slo(), turn(**fields)) == kept


def test_what_is_not_promised_is_not_judged() -> None:
    """And the voice-to-voice time is not the LLM's to tell."""
    assert classify(Slo(ttft_secs=None, ttfs_secs=None), turn()) == {}
    assert classify(Slo(ttft_secs=None), turn()) == {"ttfs": True}


@given(
    within=st.floats(0.01, 10),
    took=st.none() | st.floats(0, 20),
    waited=st.none() | st.floats(0, 20),
    is_cut=st.booleans(),
    is_degraded=st.booleans(),
)
def test_silence_never_keeps_a_promise(
    within: float, took: float | None, waited: float | None, is_cut: bool, is_degraded: bool
) -> None:
    """Only an answer does, and only the caller's own leave is an excuse."""
    kept = classify_wait(within, took, waited, is_cut=is_cut, is_degraded=is_degraded)
    if kept is True:
        assert took is not None
        assert took <= within
        assert not is_degraded
    if kept is None:
        assert is_cut
        assert took is None


def test_the_promises_in_their_order() -> None:
    """Those that were made."""
    assert list(Slo().objectives()) == [("ttft", 0.8), ("ttfs", 1.2), ("voice_to_voice", 1.5)]
    assert list(Slo(ttfs_secs=None).objectives()) == [("ttft", 0.8), ("voice_to_voice", 1.5)]
