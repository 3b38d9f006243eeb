"""The protobuf format says what the text says, and native histograms besides."""

from __future__ import annotations

import math
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Enum,
    Gauge,
    Histogram,
    Info,
    Metric,
    Summary,
)
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Timestamp

from pipecat_hedge.telemetry.exposition import expose, start_http_server
from pipecat_hedge.telemetry.prometheus_protobuf import CONTENT_TYPE
from pipecat_hedge.telemetry.prometheus_turns import BUCKETS
from pipecat_hedge.telemetry.time_histogram import ZERO_SECS, HistogramSpec, TimeHistogram
from tests.support.native_histograms import ACCEPT, buckets, families, labels

Series = tuple[str, frozenset[tuple[str, str]]]
OPENMETRICS = "application/openmetrics-text;version=1.0.0"
PROTOBUF = ACCEPT.partition(",")[0]


class Odd(Collector):
    """What only collectors of one's own tell."""

    def collect(self) -> Iterator[Metric]:
        metric = Metric("odd", "Of no type.", "untyped")
        metric.add_sample("odd", {"a": 'b"\\\nü'}, math.inf)
        metric.add_sample("odd_beside", {}, 2.0, Timestamp(12, 500_000_000))
        yield metric
        yield (summary := Metric("wait", "With quantiles.", "summary"))
        summary.add_sample("wait", {"quantile": "0.5", "who": "a"}, 0.25)
        summary.add_sample("wait_count", {"who": "a"}, 4)
        summary.add_sample("wait_sum", {"who": "a"}, 1.5)


@pytest.fixture
def registry() -> CollectorRegistry:
    """One metric of each type, with something in it."""
    registry = CollectorRegistry()
    Counter("calls", "Of one's own.", ("who",), registry=registry).labels("ä").inc(2.5)
    Gauge("level", "May be nothing.", registry=registry).set(-0.125)
    Info("build", "Labels only.", registry=registry).info({"version": "1.2"})
    Enum("state", "One of them.", states=["on", "off"], registry=registry).state("off")
    Summary("size", "Count and sum.", registry=registry).observe(3)
    classic = Histogram("plain", "Classic only.", ("who",), registry=registry, buckets=(0.1, 1))
    for secs in (0.05, 0.5, 5):
        classic.labels("a").observe(secs)
    classic.labels("b").observe(0.5)
    native = TimeHistogram(HistogramSpec("x_seconds", "Both.", ("who",), BUCKETS), registry)
    for secs in (0.0, 0.3, 0.31, 2.0, 2.1):
        native.labels("a").observe(secs)
    native.labels("b")
    registry.register(Odd())
    return registry


def in_text(registry: CollectorRegistry) -> dict[Series, float]:
    """Every sample of the text but when series began."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(expose("", registry)[0].decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def in_protobuf(registry: CollectorRegistry) -> dict[Series, float]:
    """The same of the messages, as Prometheus makes series of them."""
    told: dict[Series, float] = {}

    def tell(name: str, metric: object, value: float, **more: str) -> None:
        told[name, frozenset((labels(metric) | more).items())] = value

    for name, family in families(expose(ACCEPT, registry)[0]).items():
        for metric in family.metric:
            match family.type:
                case 0:
                    tell(name, metric, metric.counter.value)
                case 1:
                    tell(name, metric, metric.gauge.value)
                case 2:
                    for each in metric.summary.quantile:
                        tell(name, metric, each.value, quantile=str(each.quantile))
                    tell(f"{name}_count", metric, metric.summary.sample_count)
                    tell(f"{name}_sum", metric, metric.summary.sample_sum)
                case 4:
                    count = metric.histogram.sample_count
                    for each in metric.histogram.bucket:
                        bound = str(float(each.upper_bound))
                        tell(f"{name}_bucket", metric, each.cumulative_count, le=bound)
                    tell(f"{name}_bucket", metric, count, le="+Inf")
                    tell(f"{name}_count", metric, count)
                    tell(f"{name}_sum", metric, metric.histogram.sample_sum)
                case _:
                    tell(name, metric, metric.untyped.value)
    return told


def test_it_says_what_the_text_says(registry: CollectorRegistry) -> None:
    """Every sample, and of what type and meaning it is."""
    assert in_protobuf(registry) == in_text(registry)
    told = families(expose(ACCEPT, registry)[0])
    types = {
        0: {"calls_total"},
        1: {"level", "build_info", "state"},
        2: {"size", "wait"},
        3: {"odd", "odd_beside"},
        4: {"plain", "x_seconds"},
    }
    for number, names in types.items():
        assert {name for name, family in told.items() if family.type == number} == names
    assert told["plain"].help == "Classic only."
    assert told["odd_beside"].metric[0].timestamp_ms == 12_500
    (calls,) = told["calls_total"].metric
    (text,) = (
        sample.value
        for family in text_string_to_metric_families(expose("", registry)[0].decode())
        for sample in family.samples
        if sample.name == "calls_created"
    )
    assert calls.counter.created_timestamp.ToNanoseconds() == pytest.approx(text * 1e9, abs=1e3)


def test_native_histograms_stand_beside_the_classic_ones(registry: CollectorRegistry) -> None:
    """In schema 3, with a gap between the times; and one is known to be native that is empty."""
    first, second = families(expose(ACCEPT, registry)[0])["x_seconds"].metric
    assert (labels(first), labels(second)) == ({"who": "a"}, {"who": "b"})
    for metric in (first, second):
        assert (metric.histogram.schema, metric.histogram.zero_threshold) == (3, ZERO_SECS)
        assert metric.histogram.created_timestamp.seconds > 0
    assert first.histogram.zero_count == 1
    assert buckets(first.histogram) == {-13: 2, 8: 1, 9: 1}
    assert [(span.offset, span.length) for span in first.histogram.positive_span] == [
        (-13, 1),
        (20, 2),
    ]
    assert buckets(second.histogram) == {}
    plain = families(expose(ACCEPT, registry)[0])["plain"].metric[0].histogram
    assert not plain.zero_threshold
    assert not plain.positive_span


def test_exemplars_are_kept() -> None:
    """With their time; nobody here makes any, others in the same process may."""
    registry = CollectorRegistry()
    Counter("calls", "Told.", registry=registry).inc(exemplar={"trace_id": "1"})
    histogram = Histogram("plain", "Told.", registry=registry, buckets=(0.1, 1))
    histogram.observe(0.5, {"trace_id": "2"})
    histogram.observe(5, {"trace_id": "3"})
    told = families(expose(ACCEPT, registry)[0])
    bounded = told["plain"].metric[0].histogram.bucket
    counted = told["calls_total"].metric[0].counter
    exemplars = [counted.exemplar, *(bucket.exemplar for bucket in bounded)]
    traces = [pair.value for exemplar in exemplars for pair in exemplar.label]
    assert traces == ["1", "2", "3"]
    assert [exemplar.value for exemplar in exemplars] == [1, 0, 0.5, 5]
    assert counted.exemplar.timestamp.seconds > 0


@pytest.mark.parametrize(
    ("accept", "is_protobuf"),
    [
        (ACCEPT, True),
        (PROTOBUF, True),
        (f"{PROTOBUF};q=0.6,{OPENMETRICS};q=0.5,*/*;q=0.1", True),
        (f"{PROTOBUF};escaping=allow-utf-8;q=0.6,text/plain;q=0.6", True),
        (f"{OPENMETRICS};q=0.6,{PROTOBUF};q=0.5", False),
        (f"{PROTOBUF};q=0.5,{OPENMETRICS}", False),
        (f"{PROTOBUF};q=0", False),
        (f"{PROTOBUF};q=much", False),
        ("application/vnd.google.protobuf;proto=a.Other;encoding=delimited", False),
        (f"{PROTOBUF.replace('delimited', 'text')}", False),
        ("text/html,*/*;q=0.8", False),
        ("", False),
    ],
)
def test_who_prefers_it_gets_it(accept: str, is_protobuf: bool) -> None:
    """Everybody else gets the text that he prefers."""
    body, content_type = expose(accept, CollectorRegistry())
    assert (content_type == CONTENT_TYPE) is is_protobuf
    assert body == (b"# EOF\n" if "openmetrics" in content_type else b"")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_served(registry: CollectorRegistry, host: str) -> None:
    """By the name of the format that is asked for; a selection of metrics is text."""
    try:
        server, thread = start_http_server(0, host, registry)
    except OSError:
        if host == "127.0.0.1":
            raise
        pytest.skip("this machine has no IPv6 loopback")
    address = f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    try:
        for accept, path, type_begins in (
            (ACCEPT, "", "application/vnd.google.protobuf"),
            ("text/plain", "", "text/plain"),
            (ACCEPT, "?name[]=level", "application/openmetrics-text"),
        ):
            request = urllib.request.Request(address + path, headers={"Accept": accept})
            with urllib.request.urlopen(request, timeout=10) as answer:
                body = answer.read()
                assert answer.headers["Content-Type"].startswith(type_begins)
            if type_begins.endswith("protobuf"):
                assert "x_seconds" in families(body)
            else:
                assert b"level -0.125" in body
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
