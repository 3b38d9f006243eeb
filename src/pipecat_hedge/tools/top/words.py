"""Figures and turns in a few letters, for a line of a terminal. Pure."""

from __future__ import annotations

import time
from typing import Any

from pipecat_hedge.telemetry.slo_tracker import SloStatus

__all__ = ["attempts", "burn", "line", "objective", "percent", "secs", "window"]

NAMES = {"ttft": "first token", "ttfs": "first sentence", "voice_to_voice": "voice to voice"}
_REASONS = {"hedge": "hedge", "failure": "replaces", "stall": "after silence"}


def secs(value: float | None) -> str:
    """A time: milliseconds below ten seconds.

    Args:
        value: In seconds; None if it never came.
    """
    if value is None:
        return "–"
    return f"{1000 * value:.0f} ms" if value < 9.9995 else f"{value:.1f} s"


def percent(share: float | None) -> str:
    """A share, with a digit if it is not whole.

    Args:
        share: From 0 to 1, or None.
    """
    if share is None:
        return "–"
    told = f"{100 * share:.1f}".removesuffix(".0")
    return "> 99.9 %" if told == "100" and share < 1.0 else f"{told} %"


def burn(value: float | None) -> str:
    """How many times as fast as allowed.

    Args:
        value: The factor; None where nothing is known.
    """
    if value is None:
        return "–"
    return f"{value:.1f}×" if value < 10 else f"{value:.0f}×"


def window(value: float) -> str:
    """A window's name.

    Args:
        value: Its length, in seconds.
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if value >= length and value % length == 0:
            return f"{value / length:.0f} {unit}"
    return f"{value:g} s"


def objective(status: SloStatus) -> str:
    """What is promised.

    Args:
        status: How it is kept.
    """
    return f"{NAMES[status.objective]} ≤ {status.within_secs:g} s"


def attempts(turn: dict[str, Any]) -> str:
    """Who was asked in a turn, and what came of it.

    Args:
        turn: The turn, as the feed tells it.
    """
    told: list[str] = []
    for attempt in turn["attempts"]:
        words = f"{attempt['provider']} {attempt['outcome']}"
        if attempt["error_category"] is not None:
            words += f" ({attempt['error_category'].replace('_', ' ')})"
        if attempt["launch_reason"] != "primary":
            reason = _REASONS.get(attempt["launch_reason"], attempt["launch_reason"])
            words += f", {reason} at {secs(attempt['launched_secs'])}"
        told.append(words)
    return "; ".join(told) or "nobody was asked"


def line(label: str, turn: dict[str, Any]) -> str:
    """A turn in a line of its own, for a pipe or a file.

    Args:
        label: The bot's name.
        turn: The turn, as the feed tells it.
    """
    at = time.strftime("%H:%M:%S", time.localtime(turn["at"]))
    outcome = turn["outcome"] + (" degraded" if turn["is_degraded"] else "")
    heard = turn["voice_to_voice_secs"]
    told = [
        f"{at} {label} call {turn['session']} turn {turn['turn']} {turn['tier']}: {outcome}",
        f"winner {turn['winner'] or 'none'}",
        f"first token {secs(turn['ttft_secs'])}",
        f"sentence {secs(turn['ttfs_secs'])}",
        *([] if heard is None else [f"heard {secs(heard)}"]),
        attempts(turn),
    ]
    return ", ".join(told)
