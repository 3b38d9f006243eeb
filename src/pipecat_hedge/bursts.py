"""What may be sent at once by everybody in a process who hedges alike; see ``HedgeBurst``."""

from __future__ import annotations

import threading
from collections.abc import Callable

from pipecat_hedge.policies.hedge_burst import HedgeBurst

__all__ = ["Bursts"]


class Bursts:
    """The buckets of a process, by purse. Several loops and threads may use them."""

    def __init__(self, processes: Callable[[], int]):
        """Begin with none.

        Args:
            processes: Tells how many share each of them, this process included.
        """
        self._processes = processes
        self._lock = threading.Lock()
        self._bursts: dict[object, HedgeBurst] = {}

    def begin_turn(self, purse: object, budget: float, now: float) -> None:
        """Put a turn's budget in.

        Args:
            purse: Whose: the same for all who hedge between the same providers alike.
            budget: Extra requests per turn.
            now: The time, in seconds.
        """
        with self._lock:
            self._of(purse, budget).begin_turn(now)

    def claim(self, purse: object, budget: float, cost: float, now: float) -> bool:
        """Take an extra request out, if there is room for it.

        Args:
            purse: Whose.
            budget: Extra requests per turn.
            cost: What it costs, in usual requests.
            now: The time, in seconds.
        """
        processes = self._processes()
        with self._lock:
            burst = self._of(purse, budget)
            is_room = burst.permits(cost, now, processes)
            if is_room:
                burst.spend(cost, now)
            return is_room

    def spend(self, purse: object, budget: float, cost: float, now: float) -> None:
        """Take one out that is sent in any case; as ``claim``."""
        with self._lock:
            self._of(purse, budget).spend(cost, now)

    def pay_back(self, purse: object, budget: float, cost: float) -> None:
        """Put one back in that was claimed and never sent; as ``claim``."""
        with self._lock:
            self._of(purse, budget).pay_back(cost)

    def _of(self, purse: object, budget: float) -> HedgeBurst:
        found = self._bursts.get(purse)
        if found is None:
            found = self._bursts[purse] = HedgeBurst(budget)
        return found
