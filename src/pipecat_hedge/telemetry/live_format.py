"""Where a live feed is asked, and how it answers: known to who tells and to who looks."""

from __future__ import annotations

__all__ = ["LIVE_PATH", "LIVE_VERSION"]

LIVE_PATH = "/hedge/live"
"""Where ``pipecat-hedge top`` asks if it is given no other path."""

LIVE_VERSION = 1
"""Of the answer; ``docs/slo.md`` describes it."""
