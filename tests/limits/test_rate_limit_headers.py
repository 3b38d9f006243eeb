"""Parsing rate-limit headers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.limits.rate_limit_headers import (
    UNKNOWN_RESET_SECS,
    VALID_SECS,
    RateLimits,
    parse_rate_limits,
)

DATE = "Mon, 17 Aug 2026 10:00:00 GMT"
NOW = 1_786_960_800.0  # the same
A, X = "Anthropic-Ratelimit-", "X-RateLimit-"


@pytest.mark.parametrize(
    ("headers", "limits"),
    [
        pytest.param(
            {
                f"{A}requests-limit": "50",
                f"{A}requests-remaining": "47",
                f"{A}requests-reset": "2026-08-17T10:00:04Z",
                f"{A}input-tokens-limit": "30000",
                f"{A}input-tokens-remaining": "12000",
                f"{A}input-tokens-reset": "2026-08-17T12:00:36+02:00",
                f"{A}tokens-limit": "38000",
                f"{A}tokens-remaining": "20000",
                f"{A}tokens-reset": "2026-08-17T10:00:30Z",
            },
            RateLimits(47, 4.0, 12000, 36.0, 50, 30000),
            id="Anthropic",
        ),
        pytest.param(
            {
                f"{A}input-tokens-remaining": "500",
                f"{A}tokens-remaining": "400",
                f"{A}tokens-limit": "900",
            },
            RateLimits(tokens_left=400, tokens_limit=900),
            id="the tighter token limit",
        ),
        pytest.param(
            {f"{A}input-tokens-remaining": "400", f"{A}tokens-reset": "2026-08-17T09:00:00Z"},
            RateLimits(tokens_left=400),
            id="one token limit",
        ),
        pytest.param(
            {f"{A}tokens-remaining": "1", f"{A}tokens-reset": "2026-08-17T09:00:00"},
            RateLimits(tokens_left=1, tokens_reset_secs=0.0),
            id="a past time without a zone",
        ),
        pytest.param(
            {
                f"{X}Limit-Requests": "60",
                f"{X}Limit-Tokens": "150000",
                f"{X}Remaining-Requests": "59",
                f"{X}Remaining-Tokens": "149984",
                f"{X}Reset-Requests": "1s",
                f"{X}Reset-Tokens": "6m0s",
            },
            RateLimits(59, 1.0, 149984, 360.0, 60, 150000),
            id="OpenAI",
        ),
        pytest.param({"content-type": "text/event-stream"}, None, id="none"),
    ],
)
def test_headers_are_parsed(headers: dict[str, str], limits: RateLimits | None) -> None:
    assert parse_rate_limits(headers, NOW) == limits


@pytest.mark.parametrize(
    ("date", "secs"),
    [
        (DATE, 4.0),
        ("Mon, 17 Aug 2026 10:00:00 +0000", 4.0),
        ("Mon, 17 Aug 2026 10:00:00 -0000", 4.0),
        ("Monday, 17-Aug-26 10:00:00 GMT", 4.0),
        ("Sun, 31 Jan 2027 23:59:59 GMT", 0.0),
        ("Mon, 17 Xyz 2026 10:00:00 GMT", 9.0),  # no date: the local clock counts
        ("Mon, 37 Aug 2026 10:00:00 GMT", 9.0),
        ("", 9.0),
    ],
)
def test_response_date_corrects_a_wrong_local_clock(date: str, secs: float) -> None:
    headers = {f"{A}requests-reset": "2026-08-17T10:00:04Z", "date": date}
    assert parse_rate_limits(headers, NOW - 5) == RateLimits(requests_reset_secs=secs)


@pytest.mark.parametrize(
    ("text", "secs"),
    [
        ("6m0s", 360),
        ("120ms", 0.12),
        ("1d1h2m3.5s", 90123.5),
        ("17.5µs", 17.5e-6),
        ("7.25", 7.25),
        (" 3s ", 3),
        ("", None),
        ("-1s", None),
        ("1s ago", None),
        ("nan", None),
        ("1e3", None),
        ("1786960800", None),  # a date in seconds
        ("9" * 400, None),
        ("٣s", None),
    ],
)
def test_durations_are_parsed(text: str, secs: float | None) -> None:
    headers = {f"{X}Reset-Requests": text, f"{X}Remaining-Requests": "1"}
    limits = parse_rate_limits(headers, NOW)
    assert limits is not None
    assert limits.requests_reset_secs == (None if secs is None else pytest.approx(secs))


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "٣", "9" * 5000])
def test_invalid_values_are_none(text: str) -> None:
    assert parse_rate_limits({f"{X}Remaining-Requests": text}, NOW) is None
    assert parse_rate_limits({f"{A}requests-remaining": text}, NOW) is None


@pytest.mark.parametrize(
    ("limits", "prompt_tokens", "more"),
    [
        (RateLimits(), 100, None),
        (RateLimits(5, None), 100, (5, UNKNOWN_RESET_SECS)),
        (RateLimits(5, 3600.0), 100, (5, VALID_SECS)),
        (RateLimits(5, 30.0, 250, 20.0), 100, (2, 20.0)),  # the tokens are tighter
        (RateLimits(5, 30.0, 250, 20.0), 10, (5, 30.0)),  # the requests are
        (RateLimits(None, None, 250, 20.0), 0, None),  # of an unknown size
        (RateLimits(0, 30.0, 50, 40.0), 100, (0, 40.0)),  # both are used up
        (RateLimits(0, 60.0, requests_limit=60), 0, (0, 1.0)),  # one a second
        (RateLimits(None, None, 2000, 30.0, tokens_limit=20000), 5000, (0, 5.0)),
        (RateLimits(None, None, 2000, 30.0, tokens_limit=4000), 5000, (0, 30.0)),  # never fits
    ],
)
def test_tighter_limit_gives_the_remaining_requests(
    limits: RateLimits, prompt_tokens: int, more: Any
) -> None:
    found = limits.more(prompt_tokens)
    assert found == (None if more is None else (more[0], pytest.approx(more[1])))


NAMES = [
    f"{A}{what}-{end}" if is_anthropic else f"{X}{end}-{what}"
    for is_anthropic in (True, False)
    for what in ("requests", "tokens", "input-tokens")
    for end in ("remaining", "reset", "limit")
]
VALUES = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda at: f"{at.isoformat()}-02:30"),
    st.from_regex(r"(\d+(\.\d*)?(ms|us|d|h|m|s)){1,3}", fullmatch=True),
    st.text("0123456789 GMTaJun:,-+", max_size=30),
)


@given(st.dictionaries(st.sampled_from(["Date", *NAMES]), VALUES), st.integers(0, 10**6))
def test_any_header_value_is_safe(headers: dict[str, str], prompt_tokens: int) -> None:
    limits = parse_rate_limits(headers, NOW)
    if limits is None:
        return
    for secs in (limits.requests_reset_secs, limits.tokens_reset_secs):
        assert secs is None or (math.isfinite(secs) and secs >= 0)
    if (more := limits.more(prompt_tokens)) is not None:
        assert more[0] >= 0
        assert 0 <= more[1] <= VALID_SECS
