"""Writes log files: one JSON line per turn, and one per drained answer.

A turn's line has times, counts, the policy's settings and a random ``session`` per service that
groups the turns of a call; it has no conversation text. A drained answer's line has the question
and the answers.
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


class TurnLines:
    """Formats the lines of one service."""

    def __init__(self, policy: HedgePolicy, session: str | None = None):
        """Begin a session.

        Args:
            policy: The service's policy.
            session: The session's name; None draws a random one.
        """
        self._same: dict[str, Any] = {
            "session": session or uuid.uuid4().hex[:16],
            "policy": policy.name,
            "policy_settings": as_settings(policy),
        }

    def line(self, report: TurnReport, at: float) -> dict[str, Any]:
        """Return a turn's line.

        Args:
            report: The turn.
            at: Its end, in seconds since the epoch.
        """
        return {"at": at, **self._same, **dataclasses.asdict(report)}


def write_turn_log(events: EventHub, policy: HedgePolicy, path: str | Path) -> None:
    """Append a line to a file for each turn; see ``LineLog`` for write errors."""
    log, lines = LineLog("turn_log", path), TurnLines(policy)
    events.subscribe(
        TurnReport, lambda report: log.append(json.dumps(lines.line(report, time.time())))
    )


def write_drained_log(events: EventHub, path: str | Path) -> None:
    """Append a line to a file for each drained answer; see ``LineLog`` for write errors."""
    log = LineLog("drained_log", path)
    events.subscribe(
        DrainedAnswer,
        lambda answer: log.append(json.dumps(dataclasses.asdict(answer), ensure_ascii=False)),
    )
