"""How the promises to callers are kept by this process: one board, told of every turn.

Law: a promise is a row, whoever made it: sessions of one tier that promise the same count together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from pipecat_hedge.limits.priority import TIERS, Tier
from pipecat_hedge.policy.slo import Objective
from pipecat_hedge.policy.slo_outcome import Slo, classify
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.service.turn_hooks import Hooks
from pipecat_hedge.telemetry.slo_attainment import Attainment, SloStatus

__all__ = ["MOST_PROMISES", "SloBoard", "steady_wall_clock"]

MOST_PROMISES = 32
"""More are not remembered: then somebody makes a promise of his own to every caller. The one that
has been spoken of longest ago is forgotten."""


def steady_wall_clock() -> Callable[[], float]:
    """A clock that agrees with those of other processes and never jumps.

    Returns:
        Tells the seconds since the epoch: by one look at the wall clock, and steadily from there.
    """
    began = time.time() - time.monotonic()
    return lambda: began + time.monotonic()


class SloBoard:
    """Counts, by tier and promise. From any thread; behind one lock, held for microseconds.

    Attributes:
        hooks: Who is told what the board is told: the tier, what it is promised, and what was kept,
            of nothing when the promise is made.

    Example::

        board.record("premium", Slo(), report)
        for status in board.status("premium"):
            print(status.objective, status.attainment, status.budget_left, status.burns)
    """

    def __init__(self, clock: Callable[[], float] | None = None):
        """Begin with no promise.

        Args:
            clock: Tells the time in seconds; None is the wall clock, read so that it never jumps.
        """
        self._clock = clock or steady_wall_clock()
        self._lock = threading.Lock()
        self.hooks = Hooks[[Tier, Slo, Mapping[Objective, bool]]]()
        self._rows: dict[tuple[Tier, Slo], dict[Objective, Attainment]] = {}

    def promise(self, tier: Tier, slo: Slo) -> None:
        """Show a promise from now on, before the first turn says anything of it.

        Args:
            tier: To whose callers it is made.
            slo: What is promised.
        """
        with self._lock:
            self._row(tier, slo)
        self.hooks.tell(tier, slo, {})

    def promises(self) -> tuple[tuple[Tier, Slo], ...]:
        """Whom what is promised."""
        with self._lock:
            return tuple(self._rows)

    def record(self, tier: Tier, slo: Slo, report: TurnReport) -> None:
        """Count what a turn of the LLM says of a promise.

        Args:
            tier: Whose turn it was.
            slo: What they were promised.
            report: The turn.
        """
        self.count(tier, slo, classify(slo, report))

    def count(self, tier: Tier, slo: Slo, kept: Mapping[Objective, bool]) -> None:
        """Count what is known already.

        Args:
            tier: Whose turn it was.
            slo: What they were promised.
            kept: By objective, whether that was kept; nothing of those of which nothing is known.
        """
        if not kept:
            return
        with self._lock:
            now, row = self._clock(), self._row(tier, slo)
            for objective, was_kept in kept.items():
                row[objective].record(was_kept, now)
        self.hooks.tell(tier, slo, kept)

    def status(self, tier: Tier | None = None, slo: Slo | None = None) -> tuple[SloStatus, ...]:
        """How the promises are kept, the best tier first.

        Args:
            tier: Only those to its callers; None is all.
            slo: Only this one; None is all.
        """
        with self._lock:
            now = self._clock()
            found = [
                SloStatus(to, objective, within, promised.share, row[objective].counts(now))
                for (to, promised), row in self._rows.items()
                if tier in (None, to) and slo in (None, promised)
                for objective, within in promised.promises()
            ]
        return tuple(sorted(found, key=lambda status: TIERS.index(status.tier)))

    def _row(self, tier: Tier, slo: Slo) -> dict[Objective, Attainment]:
        row = self._rows.pop((tier, slo), None)
        if row is None:
            if len(self._rows) >= MOST_PROMISES:
                del self._rows[next(iter(self._rows))]
            row = dict[Objective, Attainment]()
            for objective, _ in slo.promises():
                row[objective] = Attainment()
        self._rows[tier, slo] = row  # the latest one is the last
        return row
