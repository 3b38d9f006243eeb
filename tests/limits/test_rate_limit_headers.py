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


def anthropic(**headers: str) -> RateLimits | None:
    """Parse headers without their common prefix; ``date`` is unchanged."""
    named = {
        name if name == "date" else f"Anthropic-Ratelimit-{name.replace('_', '-')}": value
        for name, value in headers.items()
    }
    return parse_rate_limits(named, NOW)


def test_anthropic_headers_are_parsed() -> None:
    limits = anthropic(
        date=DATE,
        requests_limit="50",
        requests_remaining="47",
        requests_reset="2026-08-17T10:00:04Z",
        input_tokens_limit="30000",
        input_tokens_remaining="12000",
        input_tokens_reset="2026-08-17T12:00:36+02:00",
        tokens_limit="38000",
        tokens_remaining="20000",
        tokens_reset="2026-08-17T10:00:30Z",
    )
    assert limits == RateLimits(47, 4.0, 12000, 36.0, 50, 30000)


def test_tighter_anthropic_token_limit_counts() -> None:
    both = anthropic(input_tokens_remaining="500", tokens_remaining="400", tokens_limit="900")
    assert both == RateLimits(tokens_left=400, tokens_limit=900)
    assert anthropic(tokens_remaining="400") == RateLimits(tokens_left=400)
    assert anthropic(input_tokens_remaining="400") == RateLimits(tokens_left=400)


def test_wrong_local_clock_does_no_harm() -> None:
    headers = {"anthropic-ratelimit-requests-reset": "2026-08-17T10:00:04Z", "date": DATE}
    for clock in (0.0, NOW, NOW + 1e6):
        limits = parse_rate_limits(headers, clock)
        assert limits is not None
        assert limits.requests_reset_secs == 4.0
    for date in ({}, {"date": "yesterday"}):
        limits = parse_rate_limits({**headers, "date": "", **date}, NOW + 1)
        assert limits is not None
        assert limits.requests_reset_secs == 3.0


def test_past_and_zoneless_times() -> None:
    limits = anthropic(
        date="Mon, 17 Aug 2026 10:00:00 -0000",
        requests_reset="2026-08-17T10:00:04",
        tokens_remaining="1",
        tokens_reset="2026-08-17T09:00:00Z",
    )
    assert limits == RateLimits(None, 4.0, 1, 0.0)


@pytest.mark.parametrize(
    ("date", "secs"),
    [
        (DATE, 4.0),
        ("Mon, 17 Aug 2026 10:00:00 +0000", 4.0),
        ("Monday, 17-Aug-26 10:00:00 GMT", 4.0),
        ("Sun, 31 Jan 2027 23:59:59 GMT", 0.0),
        ("Mon, 17 Xyz 2026 10:00:00 GMT", 9.0),  # no date: the clock here counts
        ("Mon, 37 Aug 2026 10:00:00 GMT", 9.0),
        ("Mon, 17 Aug 2026 10:00:61 GMT", 9.0),
    ],
)
def test_http_date_formats(date: str, secs: float) -> None:
    headers = {"anthropic-ratelimit-requests-reset": "2026-08-17T10:00:04Z", "date": date}
    limits = parse_rate_limits(headers, NOW - 5)
    assert limits is not None
    assert limits.requests_reset_secs == secs


def test_openai_headers_are_parsed() -> None:
    limits = parse_rate_limits(
        {
            "X-RateLimit-Limit-Requests": "60",
            "x-ratelimit-limit-tokens": "150000",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-remaining-tokens": "149984",
            "x-ratelimit-reset-requests": "1s",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        NOW,
    )
    assert limits == RateLimits(59, 1.0, 149984, 360.0, 60, 150000)


@pytest.mark.parametrize(
    ("text", "secs"),
    [
        ("1s", 1),
        ("6m0s", 360),
        ("120ms", 0.12),
        ("1h2m3.5s", 3723.5),
        ("2m59.56s", 179.56),
        ("1d2h", 93600),
        ("17.5µs", 17.5e-6),
        ("0s", 0),
        ("7", 7),
        ("7.25", 7.25),
        (" 3s ", 3),
        ("", None),
        ("soon", None),
        ("-1s", None),
        ("1s ago", None),
        ("1x", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
        ("1786960800", None),  # a date in seconds
        ("9" * 400, None),
        ("٣s", None),
    ],
)
def test_durations_are_parsed(text: str, secs: float | None) -> None:
    headers = {"x-ratelimit-reset-requests": text, "x-ratelimit-remaining-requests": "1"}
    limits = parse_rate_limits(headers, NOW)
    assert limits is not None
    assert limits.requests_reset_secs == (None if secs is None else pytest.approx(secs))


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "٣", "9" * 5000])
def test_invalid_values_are_none(text: str) -> None:
    assert parse_rate_limits({"x-ratelimit-remaining-requests": text}, NOW) is None
    assert anthropic(requests_remaining=text) is None
    assert parse_rate_limits({"content-type": "text/event-stream"}, NOW) is None


@pytest.mark.parametrize(
    ("limits", "prompt_tokens", "more"),
    [
        (RateLimits(), 100, None),
        (RateLimits(5, 30.0), 100, (5, 30.0)),
        (RateLimits(5, None), 100, (5, UNKNOWN_RESET_SECS)),
        (RateLimits(5, 3600.0), 100, (5, VALID_SECS)),
        (RateLimits(5, 30.0, 250, 20.0), 100, (2, 20.0)),  # the tokens are tighter
        (RateLimits(5, 30.0, 250, 20.0), 10, (5, 30.0)),  # the requests are
        (RateLimits(None, None, 250, 20.0), 100, (2, 20.0)),
        (RateLimits(None, None, 250, 20.0), 0, None),  # of an unknown size
        (RateLimits(0, 30.0), 0, (0, 30.0)),
        (RateLimits(0, 30.0, 50, 40.0), 100, (0, 40.0)),  # both are used up
        (RateLimits(0, 60.0, requests_limit=60), 0, (0, 1.0)),  # one a second
        (RateLimits(0, 86400.0, requests_limit=10000), 0, (0, 8.64)),
        (RateLimits(None, None, 2000, 30.0, tokens_limit=20000), 5000, (0, 5.0)),
        (RateLimits(None, None, 2000, 30.0, tokens_limit=4000), 5000, (0, 30.0)),  # never fits
    ],
)
def test_tighter_limit_gives_the_remaining_requests(
    limits: RateLimits, prompt_tokens: int, more: Any
) -> None:
    found = limits.more(prompt_tokens)
    assert found == (None if more is None else (more[0], pytest.approx(more[1])))


WHATS, ENDS = ("requests", "tokens", "input-tokens"), ("remaining", "reset", "limit")
NAMES = st.sampled_from(
    [
        "Date",
        *(f"anthropic-ratelimit-{what}-{end}" for what in WHATS for end in ENDS),
        *(f"X-RateLimit-{end}-{what}" for what in WHATS for end in ENDS),
    ]
)
OFFSETS = st.integers(-30, 30)
VALUES = st.one_of(
    st.text(max_size=30),
    st.integers().map(str),
    st.floats().map(str),
    st.datetimes().map(lambda at: at.isoformat()),
    st.builds(lambda at, hours: f"{at.isoformat()}{hours:+03}:30", st.datetimes(), OFFSETS),
    st.from_regex(r"(\d+(\.\d*)?(ms|us|d|h|m|s)){1,3}", fullmatch=True),
    st.just(DATE),
    st.text("0123456789 GMTaJun:,-+", max_size=30),
)


@given(
    headers=st.dictionaries(NAMES, VALUES, max_size=10),
    prompt_tokens=st.integers(0, 10**6),
)
def test_any_header_value_is_safe(headers: dict[str, str], prompt_tokens: int) -> None:
    limits = parse_rate_limits(headers, NOW)
    if limits is None:
        return
    for count in (
        limits.requests_left,
        limits.tokens_left,
        limits.requests_limit,
        limits.tokens_limit,
    ):
        assert count is None or count >= 0
    for secs in (limits.requests_reset_secs, limits.tokens_reset_secs):
        assert secs is None or (math.isfinite(secs) and secs >= 0)
    if (more := limits.more(prompt_tokens)) is not None:
        assert more[0] >= 0
        assert 0 <= more[1] <= VALID_SECS
