"""Lines of a turn log: what a service writes of each turn. Times and counts, nothing that was said.

Beside the report a line tells when the turn was over, by which policy it was raced and how that was
set, and which turns are of one call: a service is one session's, and writes a name of its own that
is drawn by lot, so that nothing of the caller is in it.
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.settings import as_settings
from pipecat_hedge.race.reports import TurnReport

__all__ = ["TurnLines"]


class TurnLines:
    """The lines of one service."""

    def __init__(self, policy: HedgePolicy, session: str | None = None):
        """Begin a call.

        Args:
            policy: How its turns are raced.
            session: What the call is named; None draws a name by lot.
        """
        self._same: dict[str, Any] = {
            "session": session or uuid.uuid4().hex[:16],
            "policy": policy.name,
            "policy_settings": as_settings(policy),
        }

    def line(self, report: TurnReport, at: float) -> dict[str, Any]:
        """A turn's line.

        Args:
            report: The turn.
            at: When it was over, in seconds since the epoch.
        """
        return {"at": at, **self._same, **dataclasses.asdict(report)}
