"""Whether an answer is a feed of turns, before anything of it is shown. Pure.

Law: what is drawn, added up or printed of an answer is named here, with what it must be. So an odd
answer is one bot's and is said of it; it ends nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pipecat_hedge.telemetry.slo_tracker import WINDOWS_SECS

__all__ = ["odd_at"]

_Check: TypeAlias = Callable[[Any], str | None]
"""Says where a value is not as it must be, as a path that begins with a dot; None if it is."""

_FARTHEST = 1e11
"""Neither a moment nor a number of anything is larger; seconds since the epoch are 2e9."""


def _is(right: Callable[[Any], bool]) -> _Check:
    return lambda value: None if right(value) else ""


def _or_none(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _each(check: _Check, count: int | None = None) -> _Check:
    def checked(value: Any) -> str | None:
        if not isinstance(value, list) or count not in (None, len(value)):
            return ""
        found = ((number, check(each)) for number, each in enumerate(value))
        return next((f".{number}{odd}" for number, odd in found if odd is not None), None)

    return checked


def _with(checks: Mapping[str, _Check]) -> _Check:
    def checked(value: Any) -> str | None:
        if not isinstance(value, dict):
            return ""
        found = ((name, check(value.get(name))) for name, check in checks.items())
        return next((f".{name}{odd}" for name, odd in found if odd is not None), None)

    return checked


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) <= _FARTHEST
    )


_NUMBER = _is(_is_number)
_POSITIVE = _is(lambda value: _is_number(value) and value > 0)
_COUNT = _is(lambda value: _is_number(value) and isinstance(value, int) and value >= 0)
_SHARE = _is(lambda value: _is_number(value) and 0 <= value < 1)
_TEXT = _is(lambda value: isinstance(value, str))
_TRUTH = _is(lambda value: isinstance(value, bool))
_SECS = _or_none(_NUMBER)

_ATTEMPT = _with(
    {
        "provider": _TEXT,
        "launch_reason": _TEXT,
        "launched_secs": _NUMBER,
        "outcome": _TEXT,
        "error_category": _or_none(_TEXT),
    }
)
_TURN = _with(
    {
        "at": _is(lambda value: _is_number(value) and value >= 0),
        "session": _COUNT,
        "turn": _COUNT,
        "tier": _TEXT,
        "outcome": _TEXT,
        "is_degraded": _TRUTH,
        "winner": _or_none(_TEXT),
        **dict.fromkeys(("ttft_secs", "ttfs_secs", "voice_to_voice_secs"), _SECS),
        "attempts": _each(_ATTEMPT),
    }
)
_PROVIDER = _with(
    {
        "provider": _TEXT,
        "model": _or_none(_TEXT),
        **dict.fromkeys(("p50_secs", "p95_secs", "retry_after_secs"), _NUMBER),
        "is_excluded": _TRUTH,
        "server": _or_none(_with({"is_up": _TRUTH, "waiting": _COUNT})),
        "breaker": _is(lambda value: value in ("closed", "half_open", "open")),
        "breaker_reason": _TEXT,
        **dict.fromkeys(
            (
                "in_flight",
                "limit",
                "requests",
                "won",
                "superseded",
                "failed",
                "interrupted",
            ),
            _COUNT,
        ),
    }
)
_BUDGET = _with(dict.fromkeys(("budget", "balance", "most_credit"), _NUMBER))
_WINDOW = _with({"window_secs": _POSITIVE, "turns": _COUNT, "bad": _COUNT})
_SLO = _with(
    {
        "tier": _TEXT,
        "objective": _is(lambda value: value in ("ttft", "ttfs", "voice_to_voice")),
        "within_secs": _POSITIVE,
        "share": _SHARE,
        "windows": _each(_WINDOW, len(WINDOWS_SECS)),
    }
)
_ANSWER = _with(
    {
        "process": _TEXT,
        "name": _TEXT,
        "next": _COUNT,
        "sessions": _COUNT,
        "turns_since": _SECS,
        "turns": _each(_TURN),
        "providers": _each(_PROVIDER),
        "budgets": _each(_BUDGET),
        "slos": _each(_SLO),
    }
)


def odd_at(answer: Any) -> str | None:
    """Where an answer is not as a feed's is.

    Args:
        answer: What it said, read as JSON.

    Returns:
        The path of the first such place, empty for the answer itself; None if it is a feed's.
    """
    odd = _ANSWER(answer)
    return None if odd is None else odd.removeprefix(".")
