"""The event hub: publishes a service's events to telemetry, SLO tracking, logs and live views.

An event is a frozen value, published by its type: a ``TurnReport`` per turn, a ``DrainedAnswer``
per loser that finished, a ``BreakerReport`` per change of a breaker, a ``TurnLatency`` per turn
that a ``TurnLatencyObserver`` has measured.

A service's hub forwards every event to the hub of its ``ProviderStats``: subscribe to
``llm.events`` for one call, to ``llm.stats.events`` for all calls of the process. A subscriber runs
on the service's event loop and must not block. Its first exception is logged as a warning; it never
ends a turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from loguru import logger

E = TypeVar("E")


class EventHub:
    """Calls subscribers with the events of their type, in the order of subscription.

    Example::

        llm.stats.events.subscribe(TurnReport, lambda report: print(report.outcome))
    """

    def __init__(self, parent: EventHub | None = None):
        """Create a hub without subscribers.

        Args:
            parent: A hub to which every event is forwarded.
        """
        self._parent = parent
        self._subscribers: tuple[tuple[type[Any], Callable[[Any], None]], ...] = ()
        self._failed: set[object] = set()

    def subscribe(self, event: type[E], subscriber: Callable[[E], None]) -> None:
        """Call a subscriber with every event of a type from now on."""
        self._subscribers = (*self._subscribers, (event, subscriber))

    def unsubscribe(self, subscriber: Callable[[E], None]) -> None:
        """Stop calling a subscriber; does nothing for one that is not subscribed."""
        self._subscribers = tuple(each for each in self._subscribers if each[1] != subscriber)

    def publish(self, event: object) -> None:
        """Call the subscribers to the event's type, here and at the parent."""
        for wanted, subscriber in self._subscribers:
            if not isinstance(event, wanted):
                continue
            try:
                subscriber(event)
            except Exception as e:
                if subscriber not in self._failed:
                    self._failed.add(subscriber)
                    kind = type(e).__name__
                    logger.warning(f"a subscriber failed, logged once: {subscriber!r}: {kind}")
                    logger.debug(f"{subscriber!r}: {e!r}")  # which may quote an answer
        if self._parent is not None:
            self._parent.publish(event)
