"""Counters in memory against prometheus_client's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import (
    CollectorRegistry,
    Counter,
    disable_created_metrics,
    enable_created_metrics,
    generate_latest,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from pipecat_hedge.telemetry.event_counter import EventCounter

counted = st.lists(
    st.tuples(st.sampled_from("abc"), st.one_of(st.just(1), st.integers(0, 9), st.floats(0, 1e6)))
)


@pytest.fixture(params=[True, False])
def has_created(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the process wants to know since when each series counts."""
    if not request.param:
        disable_created_metrics()
    yield request.param
    enable_created_metrics()


def told(registry: CollectorRegistry) -> list[tuple[str, dict[str, str], float | None]]:
    """What a registry tells, but for the times at which series began."""
    samples = [sample for family in registry.collect() for sample in family.samples]
    return [
        (s.name, dict(s.labels), None if s.name.endswith("_created") else s.value) for s in samples
    ]


@given(counted)
def test_it_tells_what_prometheus_clients_tells(events: list[tuple[str, float]]) -> None:
    """Names, labels and values, series by series in the order in which they came."""
    mine, theirs = CollectorRegistry(), CollectorRegistry()
    counter = EventCounter("x", "Told.", ("who",), mine)
    plain = Counter("x", "Told.", ("who",), registry=theirs)
    for who, amount in events:
        counter.labels(who).inc(amount)
        plain.labels(who).inc(amount)
    assert told(mine) == told(theirs)


def test_it_is_written_as_prometheus_clients_is(has_created: bool) -> None:
    """Help, type and samples, in both text formats; since when only where that is wanted."""
    texts: list[list[str]] = []
    for kind in ("mine", "theirs"):
        registry = CollectorRegistry()
        if kind == "mine":
            counter = EventCounter("x", "Told.", ("who", "what"), registry)
        else:
            counter = Counter("x", "Told.", ("who", "what"), registry=registry)
        counter.labels("a", 'b"\n').inc()
        counter.labels("a", "c")
        text = generate_latest(registry).decode() + generate_openmetrics(registry).decode()
        assert ("x_created" in text) is has_created
        texts.append([line.split(" 1")[0] for line in text.splitlines()])
    assert texts[0] == texts[1]


def test_since_when_it_counts() -> None:
    """Each series since it was first asked for."""
    registry = CollectorRegistry()
    counter = EventCounter("x", "Told.", ("who",), registry)
    began = time.time()
    counter.labels("a").inc()
    counter.labels("a").inc()
    created = registry.get_sample_value("x_created", {"who": "a"})
    assert created is not None
    assert began <= created <= time.time()


def test_from_many_threads_none_is_lost() -> None:
    """Sessions may run in threads of their own, and look for their series at the same time."""
    registry = CollectorRegistry()
    counter = EventCounter("x", "Told.", ("who",), registry)

    def count() -> None:
        for number in range(10_000):
            counter.labels(str(number % 7)).inc()

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    totals = [value for name, _, value in told(registry) if name == "x_total"]
    assert len(totals) == 7
    assert sum(value for value in totals if value is not None) == 40_000
