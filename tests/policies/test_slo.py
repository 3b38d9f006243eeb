"""What callers are promised."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.policies.slo import Slo


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
