"""What counters and histograms are made of: this process's memory, or files of several processes.

Law: whoever counts does not know which.
"""

from __future__ import annotations

from typing import Protocol

from prometheus_client import CollectorRegistry, Counter

from pipecat_hedge.telemetry.event_counter import Count, EventCounter
from pipecat_hedge.telemetry.time_histogram import (
    FiledHistogram,
    HistogramSpec,
    TimeHistogram,
    Times,
)

__all__ = ["CountSeries", "Instruments", "TimesSeries"]

PREFIX = "pipecat_hedge_"


class CountSeries(Protocol):
    """A counter."""

    def labels(self, *values: str) -> Count:
        """The series of these labels."""
        ...


class TimesSeries(Protocol):
    """A histogram of times."""

    def labels(self, *values: str) -> Times:
        """The series of these labels."""
        ...


class Instruments:
    """Makes metrics in a registry.

    Attributes:
        registry: The registry.
    """

    def __init__(self, registry: CollectorRegistry, *, in_files: bool):
        """Make none yet.

        Args:
            registry: Where they are registered.
            in_files: Whether processes write to ``PROMETHEUS_MULTIPROC_DIR``.
        """
        self.registry, self._in_files = registry, in_files

    def counter(self, name: str, told: str, *labels: str) -> CountSeries:
        """Make a counter.

        Args:
            name: Its name, without ``pipecat_hedge_`` and ``_total``.
            told: What it tells.
            labels: Its labels' names.
        """
        if self._in_files:
            return Counter(PREFIX + name, told, labels, registry=self.registry)
        return EventCounter(PREFIX + name, told, labels, self.registry)

    def histogram(
        self, name: str, told: str, bounds: tuple[float, ...], *labels: str
    ) -> TimesSeries:
        """Make a histogram of times.

        Args:
            name: Its name, without ``pipecat_hedge_`` and ``_seconds``.
            told: What it tells.
            bounds: The classic histogram's, in seconds, ascending.
            labels: Its labels' names.
        """
        kind = FiledHistogram if self._in_files else TimeHistogram
        return kind(HistogramSpec(f"{PREFIX}{name}_seconds", told, labels, bounds), self.registry)
