"""Both histograms against what they are by definition, and against prometheus_client's own."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric

from pipecat_hedge.telemetry.prometheus_turns import BUCKETS
from pipecat_hedge.telemetry.time_histogram import (
    ZERO_SECS,
    FiledHistogram,
    HistogramSpec,
    TimeHistogram,
    TimeHistogramFamily,
    with_natives,
)

WIDEST_SECS = 4096.0
BY_WHO = HistogramSpec("x_seconds", "Told.", ("who",), BUCKETS)
ALL = HistogramSpec("x_seconds", "Told.", (), BUCKETS)
times = st.one_of(
    st.floats(0, 10_000),
    st.sampled_from(BUCKETS),
    st.integers(-90, 100).map(lambda n: 2 ** (n / 8)),
)


def read(registry: CollectorRegistry) -> TimeHistogramFamily:
    """The one histogram of a registry."""
    (family,) = with_natives(registry.collect())
    assert isinstance(family, TimeHistogramFamily)
    return family


def told(family: Metric) -> dict[tuple[str, ...], float]:
    """Its classic samples."""
    return {
        (s.name, *sorted(s.labels.values())): s.value
        for s in family.samples
        if not s.name.endswith("_created")
    }


@given(st.lists(times))
@pytest.mark.parametrize("kind", [TimeHistogram, FiledHistogram])
def test_both_are_right(kind: type[TimeHistogram | FiledHistogram], observed: list[float]) -> None:
    """The classic one is prometheus_client's; the native one has each time in its bucket."""
    registry, other = CollectorRegistry(), CollectorRegistry()
    series = kind(BY_WHO, registry).labels("a")
    plain = Histogram("x_seconds", "Told.", ("who",), registry=other, buckets=BUCKETS).labels("a")
    for secs in observed:
        series.observe(secs)
        plain.observe(secs)
    family = read(registry)
    (classic,) = other.collect()
    assert told(family) == told(classic)
    assert (family.name, family.documentation, family.type) == ("x_seconds", "Told.", "histogram")
    (native,) = family.natives
    assert native.labels == {"who": "a"}
    assert native.sum_secs == pytest.approx(sum(observed))
    assert native.zero_count == sum(secs <= ZERO_SECS for secs in observed)
    assert native.zero_count + sum(native.buckets.values()) == len(observed)
    for index, count in native.buckets.items():
        low, high = 2 ** ((index - 1) / 8), 2 ** (index / 8)
        high = float("inf") if high == WIDEST_SECS else high
        assert count == sum(low < secs <= high for secs in observed) > 0


def test_each_series_counts_for_itself() -> None:
    """The same labels are the same series."""
    registry = CollectorRegistry()
    histogram = TimeHistogram(BY_WHO, registry)
    for who, secs in (("a", 0.1), ("b", 0.2), ("a", 0.3)):
        histogram.labels(who).observe(secs)
    counts = {n.labels["who"]: sum(n.buckets.values()) for n in read(registry).natives}
    assert counts == {"a": 2, "b": 1}


def test_a_series_that_nothing_has_happened_to() -> None:
    """It is there, with zeros: to a rate, one that begins at 1 has not increased."""
    registry = CollectorRegistry()
    TimeHistogram(ALL, registry).labels()
    (native,) = read(registry).natives
    assert (native.zero_count, dict(native.buckets)) == (0, {})
    assert set(told(read(registry)).values()) == {0.0}


def test_from_many_threads_none_is_lost_and_both_agree() -> None:
    """While somebody looks, too: a native histogram whose count is not its sum is refused."""
    registry = CollectorRegistry()
    series = TimeHistogram(ALL, registry).labels()

    def observe() -> None:
        for number in range(5_000):
            series.observe(number / 1000)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        family = read(registry)
        (native,) = family.natives
        counted = native.zero_count + sum(native.buckets.values())
        assert told(family)[("x_seconds_count",)] == counted
    (native,) = read(registry).natives
    assert native.zero_count + sum(native.buckets.values()) == 20_000


def test_a_counter_of_somebody_elses() -> None:
    """It ends like ours, and there is no histogram of its name: it stays what it is."""
    registry = CollectorRegistry()
    Counter("decay_exponential", "Told.", registry=registry)
    (family,) = with_natives(registry.collect())
    assert family.name == "decay_exponential"
