"""Log files of a service: one line of JSON for each turn, and one for each drained answer.

A turn's line holds times and counts, the policy's settings and a random ``session`` for each
service, so that the turns of one call can be told; nothing that was said. A drained answer's line
holds what the model said.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from pathlib import Path
from typing import Any

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.settings import as_settings
from pipecat_hedge.race.reports import DrainedAnswer, TurnReport
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.line_log import LineLog

__all__ = ["TurnLines", "write_drained_log", "write_turn_log"]


class TurnLines:
    """The lines of one service."""

    def __init__(self, policy: HedgePolicy, session: str | None = None):
        """Begin a session.

        Args:
            policy: How its turns are raced.
            session: Its name; None draws a random one.
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
            at: When it ended, in seconds since the epoch.
        """
        return {"at": at, **self._same, **dataclasses.asdict(report)}


def write_turn_log(events: EventHub, policy: HedgePolicy, path: str | Path) -> None:
    """Append a line to a file for each turn; ``LineLog`` says how it may fail."""
    log, lines = LineLog("turn_log", path), TurnLines(policy)
    events.subscribe(
        TurnReport, lambda report: log.append(json.dumps(lines.line(report, time.time())))
    )


def write_drained_log(events: EventHub, path: str | Path) -> None:
    """Append a line to a file for each drained answer; ``LineLog`` says how it may fail."""
    log = LineLog("drained_log", path)
    events.subscribe(
        DrainedAnswer,
        lambda answer: log.append(json.dumps(dataclasses.asdict(answer), ensure_ascii=False)),
    )
