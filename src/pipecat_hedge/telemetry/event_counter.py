"""Counters whose increment is an addition, told as ``prometheus_client`` tells its own.

Law: what is told is what a ``prometheus_client.Counter`` that had counted the same would tell.

A turn is counted in ten to fifteen series. ``prometheus_client`` looks with each increment whether
the series may be counted in, whether the amount is negative and whether there is an exemplar; here
it is known that none of it is so. Where processes write to one folder
(``PROMETHEUS_MULTIPROC_DIR``) the files are ``prometheus_client``'s, and so are the counters.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import CounterMetricFamily

from pipecat_hedge.telemetry.labelled_series import LabelledSeries

__all__ = ["Count", "EventCounter"]


class Count(Protocol):
    """One series."""

    def inc(self, amount: float = 1) -> None:
        """Count something that has happened.

        Args:
            amount: How much of it, 0 or more.
        """
        ...


class EventCounter(LabelledSeries["_Count"]):
    """Counts in this process's memory. From any thread."""

    def __init__(self, name: str, told: str, labels: tuple[str, ...], registry: CollectorRegistry):
        """Begin without a series.

        Args:
            name: Its name, without ``_total``.
            told: What it tells.
            labels: Its labels' names.
            registry: Where it is registered.
        """
        self._name, self._told, self._labels = name, told, labels
        super().__init__(_Count, registry)

    def collect(self) -> Iterable[Metric]:
        """Tell what was counted."""
        family = CounterMetricFamily(self._name, self._told, labels=self._labels)
        is_told_since_when = _is_told_since_when()
        for values, series in self._all():
            created_at = series.created_at if is_told_since_when else None
            family.add_metric(values, series.value, created_at)
        return [family]


class _Count:
    """One series."""

    __slots__ = ("_lock", "created_at", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created_at = time.time()
        self._lock = threading.Lock()

    def inc(self, amount: float = 1) -> None:
        with self._lock:
            self.value += amount


_plain = Counter("plain", "Never counted.", registry=None)


def _is_told_since_when() -> bool:
    """Whether the process wants to know when a series began (``disable_created_metrics``)."""
    (family,) = _plain.collect()
    return any(sample.name == "plain_created" for sample in family.samples)
