"""What a drill leaves behind: turns, requests and the machine's load, as lines and as values.

A worker writes lines of JSON, each whole and at once, so that what it wrote before it was killed
counts. Times are seconds on the machine's monotonic clock, which all processes share; in a `Record`
they count from the beginning of the measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = [
    "Answered",
    "Asked",
    "Counts",
    "Load",
    "Record",
    "Turn",
    "Written",
    "read_lines",
    "turn_line",
]

Answered: TypeAlias = Literal["answered", "degraded", "lost"]
"""The caller heard the answer to its end, the fallback text (maybe after a part), or neither."""
Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request of a turn, as the turn's report tells it.

    Parameters:
        provider: The provider's name.
        at: When.
        reason: ``primary``, ``hedge``, ``failure`` or ``stall``.
        outcome: ``won``, ``superseded``, ``failed`` or ``interrupted``.
        has_spoken: Whether it had a first token.
    """

    provider: str
    at: float
    reason: str
    outcome: str
    has_spoken: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one caller.

    Parameters:
        at: When the caller had finished speaking.
        kind: What became of it.
        ttft_secs: To the first text; infinite if none came.
        took_secs: To the end.
        is_premium: Whether the caller is one of the premium ones.
        asked: Its requests, where the service tells them.
        why: Of a lost one: ``silence``, ``broken off`` or ``no end within 30 s``.
    """

    at: float
    kind: Answered
    ttft_secs: float
    took_secs: float
    is_premium: bool
    asked: tuple[Asked, ...] = ()
    why: str | None = None

    @property
    def replacements(self) -> list[Asked]:
        """The requests that were sent in place of one that had failed or fallen silent.

        Who was taken to be silent and did answer was slow: what was sent beside it is no
        replacement. An answer that broke off had been heard, and has failed.
        """
        was_slow = False
        found: list[Asked] = []
        for each in self.asked:
            if each.reason == "failure" or (each.reason == "stall" and not was_slow):
                found.append(each)
            was_slow |= each.has_spoken and each.outcome != "failed"
        return found


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the machine was, so that a bottleneck here is not taken for a provider's.

    Parameters:
        cpu_share: The share of all processors that was in use; one figure a second.
        own_share: What of it the drill itself used, its providers included.
        lag_secs: By how much a worker's event loop was late at worst; one a worker and second.
    """

    cpu_share: tuple[float, ...]
    own_share: tuple[float, ...]
    lag_secs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """One drill with one variant.

    Parameters:
        drill: The drill's name.
        variant: The variant's name.
        turns: The turns that began while it was measured and have ended, by their beginning.
        began: How many turns began in each second, those included that never ended: their process
            was killed, or they still waited at the end.
        asked: By provider, the requests that the callers' side sent in each second, those to a
            provider that refuses connections included; shape (seconds,) each.
        arrived: By provider, the requests that its server counted in each second.
        load: How busy the machine was.
    """

    drill: str
    variant: str
    turns: tuple[Turn, ...]
    began: Counts
    asked: dict[str, Counts]
    arrived: dict[str, Counts]
    load: Load


@dataclass(frozen=True, slots=True)
class Written:
    """What the workers of a run have written down; as in a `Record`.

    Parameters:
        turns: The turns that have ended, by their beginning.
        began: How many began in each second.
        asked: By provider, the requests that were sent in each second.
        lag_secs: By how much a worker's event loop was late at worst, one a worker and second.
    """

    turns: tuple[Turn, ...]
    began: Counts
    asked: dict[str, Counts]
    lag_secs: tuple[float, ...]


def turn_line(turn: Turn) -> str:
    """A turn as a line of JSON."""
    told: dict[str, Any] = {
        "at": round(turn.at, 4),
        "kind": turn.kind,
        "ttft": None if turn.ttft_secs == float("inf") else round(turn.ttft_secs, 4),
        "took": round(turn.took_secs, 4),
        "premium": turn.is_premium,
        "asked": [
            [a.provider, round(a.at, 4), a.reason, a.outcome, a.has_spoken] for a in turn.asked
        ],
        "why": turn.why,
    }
    return json.dumps(told, separators=(",", ":"))


def read_lines(
    lines: Iterable[str], began_at: float, secs: int, providers: Iterable[str]
) -> Written:
    """Read what workers have written.

    Args:
        lines: The lines of all workers; the last one of a worker that was killed may be broken.
        began_at: When the measurement began, on the machine's clock.
        secs: How long it lasted; what was before and is after is left out.
        providers: The providers' names.
    """
    turns: list[Turn] = []
    began = np.zeros(secs, np.int64)
    asked = {name: np.zeros(secs, np.int64) for name in providers}
    lags: list[float] = []
    for text in lines:
        try:
            told = json.loads(text)
        except ValueError:
            continue  # cut off by the worker's end
        at = told["at"] - began_at
        if not 0 <= at < secs:
            continue
        if "kind" in told:
            turns.append(_turn(told, at, began_at))
        elif "to" in told:
            asked[told["to"]][int(at)] += 1
        elif "lag" in told:
            lags.append(told["lag"])
        else:
            began[int(at)] += 1
    turns.sort(key=lambda turn: turn.at)
    return Written(tuple(turns), began, asked, tuple(lags))


def _turn(told: dict[str, Any], at: float, began_at: float) -> Turn:
    return Turn(
        at,
        told["kind"],
        float("inf") if told["ttft"] is None else told["ttft"],
        told["took"],
        told["premium"],
        tuple(Asked(to, when - began_at, *rest) for to, when, *rest in told["asked"]),
        told["why"],
    )
