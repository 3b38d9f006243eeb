"""The SLO state for the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipecat_hedge.telemetry import SloStatus

__all__ = ["slos_message"]


def slos_message(statuses: Sequence[SloStatus]) -> dict[str, Any]:
    """Return the page's message with the SLOs of all calls."""
    return {"type": "slos", "slos": [_slo(status) for status in statuses]}


def _slo(status: SloStatus) -> dict[str, Any]:
    return {
        "tier": status.tier,
        "objective": status.objective,
        "within_secs": status.within_secs,
        "share": status.share,
        "attainment": status.attainment,
        "turns": status.windows[-1].turns,
        "budget_left": status.budget_left,
        "burns": [
            {"window_secs": window.window_secs, "burn": burn}
            for window, burn in zip(status.windows, status.burns, strict=True)
        ],
    }
