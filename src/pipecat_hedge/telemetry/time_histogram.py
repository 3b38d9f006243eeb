"""Times that Prometheus can read as a classic histogram and as a native one, counted once.

Law: an observation is one count in one cell, and both histograms are sums of cells: so they cannot
disagree, and the second costs a turn nothing.

A classic histogram has the bounds that somebody chose, and a percentile is right within one of
them. A native histogram's bounds follow from its schema: so many to a doubling, wherever the
observations are, so that it is as exact at 90 ms as at 9 s, and takes less room to store.
``prometheus_client`` counts the first kind only. The cells lie between the bounds of either kind;
an observation finds its cell by bisection and adds one to it. What a bucket of either kind holds is
added up when somebody looks.

Where processes write to one folder (``PROMETHEUS_MULTIPROC_DIR``) the files are
``prometheus_client``'s, and hold what it can add up: its own histogram, and beside it a counter of
the native buckets, which ``with_natives`` puts back together.

Sources of constants: Prometheus' specification of native histograms has the schemas. In schema 3 a
bound is 1.09 times the one before (2 to an eighth); its clients take 1.1 by default. The zero
bucket ends at 2 ms: nothing here takes less but a wait that was none. The last bucket holds what
took longer than an hour.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from pipecat_hedge.telemetry.labelled_series import LabelledSeries

__all__ = [
    "SCHEMA",
    "ZERO_SECS",
    "FiledHistogram",
    "HistogramSpec",
    "NativeHistogram",
    "TimeHistogram",
    "TimeHistogramFamily",
    "Times",
    "with_natives",
]

SCHEMA = 3
TO_A_DOUBLING = 2**SCHEMA
FIRST, LAST = -9 * TO_A_DOUBLING, 12 * TO_A_DOUBLING
"""The zero bucket's index, if it had one, and the last bucket's."""
ZERO_SECS = 2.0 ** (FIRST / TO_A_DOUBLING)
NATIVE_BOUNDS = tuple(2.0 ** (index / TO_A_DOUBLING) for index in range(FIRST, LAST + 1))
"""Seconds, inclusive; the first is the zero bucket's."""
EXPONENTIAL, BUCKET = "_exponential", "bucket"
"""What the counter of a histogram's native buckets is called, and its label."""


@dataclass(frozen=True, slots=True)
class HistogramSpec:
    """What a histogram is.

    Parameters:
        name: Its name, which ends in ``_seconds``.
        told: What it tells.
        labels: Its labels' names.
        bounds: The classic histogram's, in seconds, ascending.
    """

    name: str
    told: str
    labels: tuple[str, ...]
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class NativeHistogram:
    """What was observed, in buckets of ``SCHEMA``.

    Parameters:
        labels: Of which series.
        sum_secs: The sum of all observations, in seconds.
        zero_count: How many were ``ZERO_SECS`` at most.
        buckets: How many were over ``2 ** ((index - 1) / 8)`` seconds and ``2 ** (index / 8)`` at
            most, by index; the last one's have no end. Only those that hold some.
        created_at: When counting began, in seconds since the epoch; None if that is not known.
    """

    labels: Mapping[str, str]
    sum_secs: float
    zero_count: int
    buckets: Mapping[int, int] = field(default_factory=dict[int, int])
    created_at: float | None = None


class TimeHistogramFamily(HistogramMetricFamily):
    """A classic histogram as ``prometheus_client`` tells it, that carries the native one along.

    Parameters:
        natives: One for each series.
    """

    def __init__(self, name: str, told: str, labels: Sequence[str] = ()):
        """Begin without a series.

        Args:
            name: The histogram's name.
            told: What it is.
            labels: Its labels' names.
        """
        super().__init__(name, told, labels=labels)
        self.natives: list[NativeHistogram] = []


class Times(Protocol):
    """One series."""

    def observe(self, secs: float) -> None:
        """Count how long something took."""
        ...


class TimeHistogram(LabelledSeries["_Counts"]):
    """Counts in this process's memory. From any thread."""

    def __init__(self, spec: HistogramSpec, registry: CollectorRegistry):
        """Begin without a series.

        Args:
            spec: What it is.
            registry: Where it is registered.
        """
        self._spec = spec
        self._cells = _cells(spec.bounds)
        self._bound_cells = [bisect_left(self._cells, bound) for bound in spec.bounds]
        self._native_cells = [bisect_left(self._cells, bound) for bound in NATIVE_BOUNDS]
        self._native_cells[-1] = len(self._cells)
        super().__init__(lambda: _Counts(self._cells), registry)

    def collect(self) -> Iterable[Metric]:
        """Tell what was counted."""
        spec = self._spec
        family = TimeHistogramFamily(spec.name, spec.told, spec.labels)
        for values, series in self._all():
            below, total = series.below()
            buckets = [
                (floatToGoString(bound), below[cell])
                for bound, cell in zip(spec.bounds, self._bound_cells, strict=True)
            ]
            family.add_metric(values, [*buckets, ("+Inf", below[-1])], total)
            zero, *counts = (below[cell] for cell in self._native_cells)
            native, before = dict[int, int](), zero
            for index, count in enumerate(counts, FIRST + 1):
                if count > before:
                    native[index], before = count - before, count
            labels = dict(zip(spec.labels, values, strict=True))
            family.natives.append(NativeHistogram(labels, total, zero, native, series.created_at))
        return [family]


class _Counts:
    """One series: how many observations fell into each cell."""

    __slots__ = ("_cells", "_counts", "_lock", "_total", "created_at")

    def __init__(self, cells: Sequence[float]):
        self._cells = cells
        self._counts = [0] * (len(cells) + 1)
        self._total = 0.0
        self._lock = threading.Lock()
        self.created_at = time.time()

    def observe(self, secs: float) -> None:
        cell = bisect_left(self._cells, secs)
        with self._lock:
            self._counts[cell] += 1
            self._total += secs

    def below(self) -> tuple[list[int], float]:
        """How many there were up to the end of each cell, and the sum of all in seconds."""
        with self._lock:
            return list(accumulate(self._counts)), self._total


class FiledHistogram:
    """Counts in files that ``prometheus_client`` adds up with other processes'."""

    def __init__(self, spec: HistogramSpec, registry: CollectorRegistry):
        """Begin without a series.

        Args:
            spec: What it is.
            registry: Where it is registered.
        """
        name, told, labels = spec.name, spec.told, spec.labels
        self._classic = Histogram(name, told, labels, registry=registry, buckets=spec.bounds)
        self._native = Counter(name + EXPONENTIAL, told, (*labels, BUCKET), registry=registry)

    def labels(self, *values: str) -> Times:
        """The series of these labels.

        Args:
            values: The labels' values, in their names' order.
        """
        return _Files(self._classic.labels(*values), self._native, values)


class _Files:
    """One series of a histogram in files."""

    __slots__ = ("_buckets", "_classic", "_native", "_values")

    def __init__(self, classic: Histogram, native: Counter, values: tuple[str, ...]):
        self._classic, self._native, self._values = classic, native, values
        self._buckets: dict[int, Counter] = {}

    def observe(self, secs: float) -> None:
        self._classic.observe(secs)
        index = min(FIRST + bisect_left(NATIVE_BOUNDS, secs), LAST)
        bucket = self._buckets.get(index)
        if bucket is None:
            bucket = self._buckets[index] = self._native.labels(*self._values, str(index))
        bucket.inc()


def with_natives(families: Iterable[Metric]) -> list[Metric]:
    """Put histograms that were counted in files together again.

    Args:
        families: What was read from the files.

    Returns:
        The same, in which the counters of native buckets have become native histograms.
    """
    known = {family.name: family for family in families}
    for name in [name for name in known if name.endswith(EXPONENTIAL)]:
        whose = name.removesuffix(EXPONENTIAL)
        if whose in known:
            known[whose] = _together(known[whose], known.pop(name))
    return list(known.values())


def _together(classic: Metric, counter: Metric) -> TimeHistogramFamily:
    counts: dict[frozenset[tuple[str, str]], dict[int, int]] = {}
    for sample in counter.samples:
        if not sample.name.endswith("_total"):
            continue
        labels = dict(sample.labels)
        index = int(labels.pop(BUCKET))
        counts.setdefault(frozenset(labels.items()), {})[index] = int(sample.value)
    family = TimeHistogramFamily(classic.name, classic.documentation)
    family.samples = list(classic.samples)
    for sample in classic.samples:
        if sample.name.endswith("_sum"):
            native = counts.get(frozenset(sample.labels.items()), {})
            zero = native.pop(FIRST, 0)
            native = {index: count for index, count in sorted(native.items()) if count}
            family.natives.append(NativeHistogram(sample.labels, sample.value, zero, native))
    return family


@lru_cache
def _cells(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The ends of the cells, in seconds, inclusive; what is longer has a cell of its own."""
    return tuple(sorted({*bounds, *NATIVE_BOUNDS}))
