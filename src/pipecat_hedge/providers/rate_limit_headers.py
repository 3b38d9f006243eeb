"""Reads from a response's headers for how long a provider's rate limit is used up.

Anthropic sends the time of the reset, OpenAI and compatible servers the delay. Sources: the pages
"Rate limits" of the documentation of Anthropic (``anthropic-ratelimit-*``, in RFC 3339) and OpenAI
(``x-ratelimit-*``: ``1s``, ``6m0s``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MAX_SECS = 60.0
"""Limits are refilled continuously: there is room again long before the end of a longer time."""


def used_up_secs(headers: Mapping[str, str], now: float) -> float:
    """How long nothing is left of a limit of requests or tokens; 0 if none is used up.

    Args:
        headers: The headers; names are case-insensitive. A value that is not understood is skipped.
        now: The Unix time, for a response without a date: the local clock may be wrong.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    longest = 0.0
    for kind in ("requests", "tokens", "input-tokens", "output-tokens"):
        if lower.get(f"anthropic-ratelimit-{kind}-remaining") == "0":
            sent_at = http_date(lower.get("date")) or now
            resets_at = _time(lower.get(f"anthropic-ratelimit-{kind}-reset", ""))
            longest = max(longest, (resets_at or sent_at) - sent_at)
        if lower.get(f"x-ratelimit-remaining-{kind}") == "0":
            longest = max(longest, _duration_secs(lower.get(f"x-ratelimit-reset-{kind}", "")))
    return min(longest, MAX_SECS)


_UNITS = {"d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "": 1.0}
_PART = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)(ms|d|h|m|s|$)", re.ASCII)


def _duration_secs(text: str) -> float:
    """Parse ``1s``, ``6m0s``, ``120ms``, or a plain number of seconds."""
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def _time(text: str) -> float | None:
    """Parse an RFC 3339 time into seconds since 1970."""
    try:
        return _since_1970(datetime.fromisoformat(text))
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
