"""Runs a race in virtual time with given latencies.

The race, the policies and the latency models are those of the service; only the providers are
simulated. A turn takes some tens of microseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.events import (
    AttemptFailed,
    AttemptFinished,
    Commit,
    Launch,
    TimerFired,
    TurnStarted,
    UsableToken,
)
from pipecat_hedge.race.race import Phase, Race

_FAILED = AttemptError("server", "failed, as recorded")


@dataclass(frozen=True, slots=True)
class Latency:
    """The outcome of one request.

    Parameters:
        secs: The time from launch to the first usable token or to the failure; infinite for
            neither.
        fails: Whether it fails.
    """

    secs: float
    fails: bool = False


def run_virtual(
    race: Race,
    draw: Callable[[Launch], Latency],
    launched: Callable[[Launch], None] = lambda launch: None,
) -> float | None:
    """Run a race from time 0 to the first token of its answer.

    Args:
        race: A race that has not started.
        draw: Returns the latency of a launched request.
        launched: Called with each launch.

    Returns:
        When the turn was answered, in seconds; None if it was not.
    """
    due: list[tuple[float, int, bool]] = []
    commands = race.handle(TurnStarted(), 0.0)
    now = 0.0
    while True:
        for command in commands:
            if isinstance(command, Launch):
                launched(command)
                latency = draw(command)
                if latency.secs < math.inf:
                    due.append((now + latency.secs, command.attempt, latency.fails))
            elif isinstance(command, Commit):
                race.handle(AttemptFinished(command.attempt), now)
                return now
        if race.phase is Phase.OVER:
            return None
        first = min(due, default=None)
        wake_at = race.wake_at
        if wake_at is not None and (first is None or wake_at < first[0]):
            now = wake_at
            commands = race.handle(TimerFired(), now)
        elif first is not None:
            due.remove(first)
            now, attempt, fails = first
            event = AttemptFailed(attempt, _FAILED) if fails else UsableToken(attempt)
            commands = race.handle(event, now)
        else:
            return None
