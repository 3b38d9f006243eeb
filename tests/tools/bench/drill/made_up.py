"""Records with known answers, made up turn by turn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from pipecat_hedge.tools.bench.drill.plans import Drill
from pipecat_hedge.tools.bench.drill.records import Answered, Asked, Counts, Load, Record, Turn

CALM_LOAD = Load((0.4, 0.5), (0.2, 0.3), (0.001, 0.02))


def counts(*parts: tuple[int, int]) -> Counts:
    """So many seconds of so many requests each."""
    return np.concatenate([np.full(secs, each, np.int64) for secs, each in parts])


def turn(
    at: float,
    ttft_secs: float = 0.5,
    kind: Answered = "answered",
    *,
    premium: bool = False,
    reasons: Sequence[str] = ("primary",),
    provider: str = "first",
    queued_secs: float = 0.0,
) -> Turn:
    """A turn whose requests were all sent when it began, or had waited for room."""
    asked = tuple(Asked(provider, at + queued_secs, reason, "superseded") for reason in reasons)
    waited = math.inf if kind == "lost" else ttft_secs
    why = "silence" if kind == "lost" else None
    return Turn(at, kind, waited, ttft_secs + 0.1, premium, asked, why)


def steadily(secs: int, each: int, since: int = 0) -> list[float]:
    """The times of so many turns in each second."""
    return [second + part / each for second in range(since, since + secs) for part in range(each)]


def record(
    drill: Drill, turns: Iterable[Turn], asked: dict[str, Counts], load: Load = CALM_LOAD
) -> Record:
    """A run of which every turn has ended."""
    kept = tuple(turns)
    began = np.zeros(len(next(iter(asked.values()))), np.int64)
    for each in kept:
        began[int(each.at)] += 1
    return Record(drill.name, "hedged", kept, began, asked, asked, load)
