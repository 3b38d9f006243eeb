"""Parses rate-limit headers. A missing or unknown value is None and never an error.

Anthropic sends the time at which a limit is full again, OpenAI and compatible servers the delay.
Times are compared with the response's ``date``, so that a wrong local clock does no harm. A limit
is refilled continuously: there is room for one request after its share of the time until it is
full. Others may use the same account, so a value is valid for at most ``VALID_SECS``.

Sources: the pages "Rate limits" of the documentation of Anthropic (``anthropic-ratelimit-*``, in
RFC 3339; the token headers show the tightest limit) and OpenAI (``x-ratelimit-*``: ``1s``,
``6m0s``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["UNKNOWN_RESET_SECS", "VALID_SECS", "RateLimits", "http_date", "parse_rate_limits"]

VALID_SECS = 60.0
"""Most limits are per minute: what was left a minute ago says nothing."""
UNKNOWN_RESET_SECS = 1.0
"""How long a value without a reset time is valid, so that a provider with none left is tried
soon."""
MAX_RESET_SECS = 31 * 86_400.0
"""A longer reset time is a date in seconds, or a mistake."""
MAX_DIGITS = 15
"""A longer number is a mistake, and slow to parse."""


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The rate limits in one response.

    Parameters:
        requests_left: The requests that may still be made; None if not stated, as for the others.
        requests_reset_secs: The seconds from the response until the request limit is full again.
        tokens_left: The tokens that may still be sent.
        tokens_reset_secs: The seconds until the token limit is full again.
        requests_limit: The full request limit.
        tokens_limit: The full token limit.
    """

    requests_left: int | None = None
    requests_reset_secs: float | None = None
    tokens_left: int | None = None
    tokens_reset_secs: float | None = None
    requests_limit: int | None = None
    tokens_limit: int | None = None

    def more(self, prompt_tokens: int = 0) -> tuple[int, float] | None:
        """How many more requests may be started, and for how long that is valid.

        Args:
            prompt_tokens: The tokens of one such request, as the provider counts them. Anthropic
                does not count cached ones.

        Returns:
            The number, and the seconds after the response for which it is valid; with 0, the
            seconds until there is room for one. None if the response states no limit.
        """
        found: list[tuple[int, float]] = []
        if self.requests_left is not None:
            secs = _holds_secs(1, self.requests_left, self.requests_limit, self.requests_reset_secs)
            found.append((self.requests_left, secs))
        if self.tokens_left is not None and prompt_tokens > 0:
            secs = _holds_secs(
                prompt_tokens, self.tokens_left, self.tokens_limit, self.tokens_reset_secs
            )
            found.append((self.tokens_left // prompt_tokens, secs))
        # The tighter limit counts; of two that are used up, the later one.
        return min(found, key=lambda one: (one[0], -one[1]), default=None)


_NOTHING = RateLimits()


def _holds_secs(need: int, left: int, limit: int | None, reset_secs: float | None) -> float:
    """How long the number of requests of size ``need`` is valid."""
    if reset_secs is None:
        return UNKNOWN_RESET_SECS
    if left < need and limit is not None and limit >= need:
        reset_secs *= (need - left) / (limit - left)
    return min(reset_secs, VALID_SECS)


def parse_rate_limits(headers: Mapping[str, str], now: float) -> RateLimits | None:
    """Parse the rate limits in a response's headers.

    Args:
        headers: The headers; names are case-insensitive.
        now: The Unix time, for a response without a date.

    Returns:
        The limits; None if the headers state none.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    limits = _anthropic(lower, now) or _openai(lower)
    return None if limits == _NOTHING else limits


def _anthropic(headers: Mapping[str, str], now: float) -> RateLimits | None:
    begin = "anthropic-ratelimit-"
    if not any(name.startswith(begin) for name in headers):
        return None
    sent_at = http_date(headers.get("date")) or now

    def read(what: str) -> tuple[int | None, float | None, int | None]:
        at = _time(headers.get(f"{begin}{what}-reset"))
        secs = None if at is None else _plausible(max(at - sent_at, 0.0))
        return (
            _count(headers.get(f"{begin}{what}-remaining")),
            secs,
            _count(headers.get(f"{begin}{what}-limit")),
        )

    of_input, of_all = read("input-tokens"), read("tokens")
    tighter = min((of_input, of_all), key=lambda one: math.inf if one[0] is None else one[0])
    requests_left, requests_reset_secs, requests_limit = read("requests")
    return RateLimits(
        requests_left, requests_reset_secs, tighter[0], tighter[1], requests_limit, tighter[2]
    )


def _openai(headers: Mapping[str, str]) -> RateLimits:
    return RateLimits(
        _count(headers.get("x-ratelimit-remaining-requests")),
        _duration(headers.get("x-ratelimit-reset-requests")),
        _count(headers.get("x-ratelimit-remaining-tokens")),
        _duration(headers.get("x-ratelimit-reset-tokens")),
        _count(headers.get("x-ratelimit-limit-requests")),
        _count(headers.get("x-ratelimit-limit-tokens")),
    )


# ---- values


def _count(text: str | None) -> int | None:
    text = (text or "").strip()
    if not text.isascii() or not text.isdigit() or len(text) > MAX_DIGITS:
        return None
    return int(text)


_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d{1,15}(?:\.\d{0,15})?)(ms|us|ns|d|h|m|s)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"\d{1,15}(?:\.\d{0,15})?", re.ASCII)


def _duration(text: str | None) -> float | None:
    """Parse ``1s``, ``6m0s``, ``120ms``, ``1h2m3.5s``, or a plain number of seconds."""
    text = (text or "").strip().replace("µ", "u").replace("μ", "u")
    if _NUMBER.fullmatch(text):
        return _plausible(float(text))
    if _DURATION.fullmatch(text):
        return _plausible(sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text)))
    return None


def _plausible(secs: float) -> float | None:
    return secs if secs <= MAX_RESET_SECS else None


def _time(text: str | None) -> float | None:
    """Parse an RFC 3339 time into seconds since 1970."""
    try:
        return _since_1970(datetime.fromisoformat((text or "").strip()))
    except (ValueError, OverflowError):
        return None


def http_date(text: str | None) -> float | None:
    """Parse an HTTP date into seconds since 1970; None if it is not one."""
    try:
        return _since_1970(parsedate_to_datetime(text or ""))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _since_1970(at: datetime) -> float:
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
