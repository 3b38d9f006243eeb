"""Native histograms as a reader of the protobuf format finds them."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from google.protobuf.proto import parse_length_prefixed

from pipecat_hedge.telemetry.prometheus_protobuf import family_class

ACCEPT = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,"
    "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""What a Prometheus sends that takes native histograms."""


def families(body: bytes) -> dict[str, Any]:
    """The messages of an answer, by their names."""
    stream, told = BytesIO(body), dict[str, Any]()
    while (family := parse_length_prefixed(family_class(), stream)) is not None:
        assert family.name not in told
        told[family.name] = family
    assert not stream.read()
    return told


def labels(metric: Any) -> dict[str, str]:
    """A series' labels."""
    return {pair.name: pair.value for pair in metric.label}


def buckets(histogram: Any) -> dict[int, int]:
    """How many a native histogram's buckets hold, by index, from spans and deltas."""
    told, index, count = dict[int, int](), 0, 0
    deltas = iter(histogram.positive_delta)
    for span in histogram.positive_span:
        index += span.offset
        for _ in range(span.length):
            count += next(deltas)
            told[index] = count
            index += 1
    assert next(deltas, None) is None
    return told
