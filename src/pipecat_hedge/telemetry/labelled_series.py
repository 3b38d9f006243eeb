"""The series of a metric, by their labels.

Law: the same labels are the same series, whichever threads ask for it at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

__all__ = ["LabelledSeries"]

SeriesT = TypeVar("SeriesT")


class LabelledSeries(Collector, Generic[SeriesT]):
    """Makes a series when it is asked for the first time, and keeps it. From any thread."""

    def __init__(self, make: Callable[[], SeriesT], registry: CollectorRegistry):
        """Begin without a series.

        Args:
            make: Makes one, at zero.
            registry: Where the metric is registered, which can be collected by then.
        """
        self._make = make
        self._lock = threading.Lock()
        self._series: dict[tuple[str, ...], SeriesT] = {}
        registry.register(self)

    def labels(self, *values: str) -> SeriesT:
        """The series of some labels.

        Args:
            values: The labels' values, in their names' order.
        """
        with self._lock:
            series = self._series.get(values)
            if series is None:
                series = self._series[values] = self._make()
            return series

    def _all(self) -> list[tuple[tuple[str, ...], SeriesT]]:
        """Every series with its labels' values, in the order in which they were asked for."""
        with self._lock:
            return list(self._series.items())
