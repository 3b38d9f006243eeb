"""Tracks how well service level objectives are met: attainment, error budget and burn rate.

After Google's *Site Reliability Workbook*, chapter 5. The error budget of a window is the share
``1 - share`` of its turns that may miss the objective; a burn rate of 1 spends exactly that.
``policy/slo_outcome.py`` decides which turns count as good or bad.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from pydantic import Field

from pipecat_hedge.policy.slo import Objective, Slo
from pipecat_hedge.policy.slo_outcome import classify, classify_wait, has_left, is_degraded
from pipecat_hedge.race.reports import TIERS, Tier, TurnReport
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.voice.turn_timeline import TurnLatency

WINDOWS_SECS = (300.0, 259_200.0)
"""5 minutes show whether an incident is still going on; 3 days are the error budget's window."""
SLICES = 60
"""Slices per window: the window covers up to 1/60 less than its length, never more."""
MAX_SLOS = 32
"""The least recently used SLO is dropped beyond this number."""


_Count: TypeAlias = Annotated[int, Field(ge=0, le=10**11)]
"""Annotations like this one bound what ``pipecat-hedge top`` accepts of a process."""


@dataclass(frozen=True, slots=True)
class WindowCount:
    """The turns of a sliding window to which an objective applied.

    Parameters:
        window_secs: The window's length.
        turns: The number of turns.
        bad: The turns that missed the objective.
    """

    window_secs: float
    turns: _Count
    bad: _Count


@dataclass(frozen=True, slots=True)
class SloStatus:
    """How well one objective is met.

    Parameters:
        tier: The callers' tier.
        objective: ``ttft``, ``ttfs`` or ``voice_to_voice``.
        within_secs: The objective's limit, in seconds.
        share: The target share of turns.
        windows: The counts, shortest window first; the last one is the error budget's.
    """

    tier: Tier
    objective: Objective
    within_secs: float
    share: Annotated[float, Field(ge=0, lt=1)]
    windows: Annotated[tuple[WindowCount, ...], Field(min_length=1)]

    @property
    def attainment(self) -> float | None:
        """The share of good turns in the longest window; None without turns."""
        longest = self.windows[-1]
        return 1.0 - longest.bad / longest.turns if longest.turns else None

    @property
    def burns(self) -> tuple[float | None, ...]:
        """The burn rate of each window, ``bad / turns / (1 - share)``; None without turns."""
        allowed = 1.0 - self.share
        return tuple(w.bad / w.turns / allowed if w.turns else None for w in self.windows)

    @property
    def budget_left(self) -> float:
        """The remaining part of the longest window's error budget; negative if overspent."""
        return 1.0 - (self.burns[-1] or 0.0)


@dataclass(frozen=True, slots=True)
class SloCounted:
    """A turn was counted for an SLO, or an SLO was added.

    Parameters:
        tier: The callers' tier.
        slo: The SLO.
        met: By objective, whether the turn met it; empty when the SLO is added.
    """

    tier: Tier
    slo: Slo
    met: Mapping[Objective, bool]


class SloTracker:
    """Counts the turns of all services of a process by tier and SLO. Thread-safe.

    Example::

        for status in llm.stats.slo_tracker.status("premium"):
            print(status.objective, status.attainment, status.budget_left, status.burns)
    """

    def __init__(self, events: EventHub | None = None, clock: Callable[[], float] = time.monotonic):
        """Create an empty tracker.

        Args:
            events: The hub that receives an ``SloCounted`` per turn.
            clock: A monotonic clock in seconds.
        """
        self._events = events or EventHub()
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: dict[tuple[Tier, Slo], _Windows] = {}

    def add(self, tier: Tier, slo: Slo) -> None:
        """Show an SLO before its first turn."""
        with self._lock:
            self._windows(tier, slo)
        self._events.publish(SloCounted(tier, slo, {}))

    def slos(self) -> tuple[tuple[Tier, Slo], ...]:
        """Return the SLOs, each with its tier."""
        with self._lock:
            return tuple(self._counted)

    def record(self, tier: Tier, slo: Slo, met: Mapping[Objective, bool]) -> None:
        """Count a turn.

        Args:
            tier: The caller's tier.
            slo: The SLO.
            met: By objective, whether the turn met it; objectives that did not apply are absent.
        """
        if not met:
            return
        with self._lock:
            now, windows = self._clock(), self._windows(tier, slo)
            for objective, was_met in met.items():
                for window in windows[objective]:
                    window.record(was_met, now)
        self._events.publish(SloCounted(tier, slo, met))

    def status(self, tier: Tier | None = None, slo: Slo | None = None) -> tuple[SloStatus, ...]:
        """Return how well the SLOs are met, best tier first.

        Args:
            tier: Only this tier; None returns all.
            slo: Only this SLO; None returns all.
        """
        with self._lock:
            now = self._clock()
            found = [
                SloStatus(
                    *(of_tier, objective, within, of_slo.share),
                    tuple(window.count(now) for window in windows[objective]),
                )
                for (of_tier, of_slo), windows in self._counted.items()
                if tier in (None, of_tier) and slo in (None, of_slo)
                for objective, within in of_slo.objectives()
            ]
        return tuple(sorted(found, key=lambda status: TIERS.index(status.tier)))

    def _windows(self, tier: Tier, slo: Slo) -> _Windows:
        windows: _Windows | None = self._counted.pop((tier, slo), None)
        if windows is None:
            if len(self._counted) >= MAX_SLOS:
                del self._counted[next(iter(self._counted))]
            windows = {name: tuple(map(_Window, WINDOWS_SECS)) for name, _ in slo.objectives()}
        self._counted[tier, slo] = windows  # most recently used last
        return windows


class _Window:
    """A sliding window's counts, in slices of a sixtieth of its length."""

    def __init__(self, secs: float):
        self._secs = secs
        self._slices = deque[list[int]](maxlen=SLICES)
        """Slice number, turns, bad turns."""

    def record(self, met: bool, now: float) -> None:
        current = self._slice(now)
        if not self._slices or self._slices[-1][0] < current:
            self._slices.append([current, 0, 0])
        self._slices[-1][1] += 1
        self._slices[-1][2] += not met

    def count(self, now: float) -> WindowCount:
        first = self._slice(now) - SLICES + 1
        slices = [each for each in self._slices if each[0] >= first]
        return WindowCount(self._secs, sum(s[1] for s in slices), sum(s[2] for s in slices))

    def _slice(self, now: float) -> int:
        return int(now // (self._secs / SLICES))


_Windows: TypeAlias = dict[Objective, tuple[_Window, ...]]
"""The windows of one SLO's objectives."""


def track(events: EventHub, slo: Slo, tier: Tier, tracker: SloTracker) -> None:
    """Count a service's turns in a tracker, from turn reports and voice latencies."""

    def on_report(report: TurnReport) -> None:
        tracker.record(tier, slo, classify(slo, report))

    def on_latency(turn: TurnLatency) -> None:
        within_secs = slo.voice_to_voice_secs
        met = None if within_secs is None else classify_voice(within_secs, turn)
        if met is not None:
            tracker.record(tier, slo, {"voice_to_voice": met})

    tracker.add(tier, slo)
    events.subscribe(TurnReport, on_report)
    events.subscribe(TurnLatency, on_latency)


def classify_voice(within_secs: float, turn: TurnLatency) -> bool | None:
    """Whether the answer was audible in time; None if the objective does not apply.

    Args:
        within_secs: The limit, in seconds from the end of the caller's speech.
        turn: The turn's latency record.
    """
    if turn.anchor != "user_silence":
        return None
    is_silent = turn.first_answer_secs is None and not turn.interrupted
    if is_silent and (turn.may_wait or not turn.reports):
        return None
    return classify_wait(
        within_secs,
        turn.first_answer_secs,
        turn.ended_secs,
        is_cut=turn.interrupted or any(map(has_left, turn.reports)),
        is_degraded=any(map(is_degraded, turn.reports)),
    )
