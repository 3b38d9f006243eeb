"""For how long a rate limit is used up, by a response's headers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.providers.rate_limit_headers import MAX_SECS, used_up_secs

DATE = "Mon, 17 Aug 2026 10:00:00 GMT"
NOW = 1_786_960_800.0  # the same
A, X = "Anthropic-Ratelimit-", "X-RateLimit-"
AT = "2026-08-17T10:00:04Z"


def claude(what: str, left: str, reset: str) -> dict[str, str]:
    return {f"{A}{what}-remaining": left, f"{A}{what}-reset": reset}


def gpt(what: str, left: str, reset: str) -> dict[str, str]:
    return {f"{X}Remaining-{what}": left, f"{X}Reset-{what}": reset}


@pytest.mark.parametrize(
    ("headers", "secs"),
    [
        ({}, 0.0),
        (claude("requests", "1", AT), 0.0),
        (claude("requests", "0", AT), 4.0),
        (claude("input-tokens", "0", AT), 4.0),
        (claude("requests", "0", AT) | claude("tokens", "0", "2026-08-17T12:00:36+02:00"), 36.0),
        (claude("requests", "0", "soon"), 0.0),
        (gpt("Tokens", "10", "9s"), 0.0),
        (gpt("Requests", "0", "1.5s"), 1.5),
        (gpt("Tokens", " 0", "120ms"), 0.12),
        (gpt("Tokens", "0", "7.25"), 7.25),
        (gpt("Requests", "0", "6m0s"), MAX_SECS),
        ({f"{X}Remaining-Requests": "0"}, 0.0),
    ],
)
def test_limit_is_used_up_until_its_latest_reset(headers: dict[str, str], secs: float) -> None:
    assert used_up_secs(headers, NOW) == pytest.approx(secs)


@pytest.mark.parametrize(
    ("date", "secs"),
    [
        (DATE, 4.0),
        ("Mon, 17 Aug 2026 10:00:00 -0000", 4.0),
        ("Sun, 31 Jan 2027 23:59:59 GMT", 0.0),
        ("Mon, 37 Aug 2026 10:00:00 GMT", 9.0),  # no date: the local clock counts
        ("", 9.0),
    ],
)
def test_response_date_corrects_a_wrong_local_clock(date: str, secs: float) -> None:
    headers = claude("requests", "0", AT) | {"date": date}
    assert used_up_secs(headers, NOW - 5) == secs


NAMES = [
    f"{A}{what}-{end}" if is_anthropic else f"{X}{end}-{what}"
    for is_anthropic in (True, False)
    for what in ("requests", "tokens", "input-tokens")
    for end in ("remaining", "reset")
]
VALUES = st.one_of(
    st.just("0"),
    st.text(max_size=30),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda at: f"{at.isoformat()}-02:30"),
    st.from_regex(r"(\d+(\.\d*)?(ms|us|d|h|m|s)){1,3}", fullmatch=True),
    st.text("0123456789 GMTaJun:,-+", max_size=30),
)


@given(st.dictionaries(st.sampled_from(["Date", *NAMES]), VALUES))
def test_any_header_value_is_safe(headers: dict[str, str]) -> None:
    secs = used_up_secs(headers, NOW)
    assert math.isfinite(secs)
    assert 0 <= secs <= MAX_SECS
