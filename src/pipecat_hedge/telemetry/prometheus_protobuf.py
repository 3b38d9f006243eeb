"""Metrics as protobuf: the one format in which Prometheus reads native histograms.

Law: what the text says is said here too, and nothing is lost of a metric whoever made it; the
figures are the same to the last bit.

``prometheus_client`` does not speak it. The messages' fields are those of ``io.prometheus.client``
(Prometheus' data exposition format), made here from a table; the encoding is Google's ``protobuf``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.proto import serialize_length_prefixed
from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar, Sample

from pipecat_hedge.telemetry.time_histogram import (
    SCHEMA,
    ZERO_SECS,
    NativeHistogram,
    TimeHistogramFamily,
)

__all__ = ["CONTENT_TYPE", "MESSAGE", "encode", "family_class"]

MESSAGE = "io.prometheus.client.MetricFamily"
CONTENT_TYPE = f"application/vnd.google.protobuf; proto={MESSAGE}; encoding=delimited"
COUNTER, GAUGE, SUMMARY, UNTYPED, HISTOGRAM = range(5)
"""Of ``MetricType``."""
_Key: TypeAlias = frozenset[tuple[str, str]]
_PACKAGE, _, _FAMILY = MESSAGE.rpartition(".")
_TIME = ".google.protobuf.Timestamp"
_FIELDS: dict[str, str] = {
    "LabelPair": "string name 1, string value 2",
    "Exemplar": "LabelPair* label 1, double value 2, time timestamp 3",
    "Gauge": "double value 1",
    "Counter": "double value 1, Exemplar exemplar 2, time created_timestamp 3",
    "Quantile": "double quantile 1, double value 2",
    "Summary": "uint64 sample_count 1, double sample_sum 2, Quantile* quantile 3, "
    "time created_timestamp 4",
    "Untyped": "double value 1",
    "Bucket": "uint64 cumulative_count 1, double upper_bound 2, Exemplar exemplar 3",
    "BucketSpan": "sint32 offset 1, uint32 length 2",
    "Histogram": "uint64 sample_count 1, double sample_sum 2, Bucket* bucket 3, sint32 schema 5, "
    "double zero_threshold 6, uint64 zero_count 7, BucketSpan* positive_span 12, "
    "sint64* positive_delta 13, time created_timestamp 15",
    "Metric": "LabelPair* label 1, Gauge gauge 2, Counter counter 3, Summary summary 4, "
    "Untyped untyped 5, int64 timestamp_ms 6, Histogram histogram 7",
    _FAMILY: "string name 1, string help 2, int32 type 3, Metric* metric 4, string unit 5",
}
"""Each message's fields: type, name and number; ``*`` where there may be many. ``type`` is an
enumeration there, which is written as a number as well."""


def encode(registry: Collector) -> bytes:
    """The metrics as messages, each after its length.

    Args:
        registry: What to tell of.
    """
    body = BytesIO()
    for metric in registry.collect():
        for family in _families(metric):
            serialize_length_prefixed(family, body)
    return body.getvalue()


def family_class() -> type[Any]:
    """The message that a family of metrics is, to read it."""
    return _MetricFamily


def _made() -> type[Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="pipecat_hedge/metrics.proto",
        package=_PACKAGE,
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for told in fields.split(", "):
            kind, field, number = told.split()
            made = message.field.add(name=field, number=int(number), label=kinds.LABEL_OPTIONAL)
            if kind.endswith("*"):
                made.label, kind = kinds.LABEL_REPEATED, kind[:-1]
            if kind == "time" or kind in _FIELDS:
                made.type = kinds.TYPE_MESSAGE
                made.type_name = _TIME if kind == "time" else f".{_PACKAGE}.{kind}"
            else:
                made.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = DescriptorPool()  # another package may have made these messages in the common one
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(MESSAGE))


_MetricFamily = _made()


def _families(metric: Metric) -> Iterator[Any]:
    """A family as messages: several if its samples have names of their own."""
    match metric.type:
        case "counter":
            began = metric.name + "_created"
            counted = [sample for sample in metric.samples if sample.name != began]
            yield from _simple(metric, "counter", COUNTER, counted)
        case "gauge" | "info" | "stateset":
            yield from _simple(metric, "gauge", GAUGE, metric.samples)
        case "histogram":
            yield _histograms(metric)
        case "summary":
            yield _summaries(metric)
        case _:
            yield from _simple(metric, "untyped", UNTYPED, metric.samples)


def _simple(metric: Metric, kind: str, number: int, samples: Iterable[Sample]) -> Iterator[Any]:
    """Samples of one value each."""
    families: dict[str, Any] = {}
    created = _created(metric)
    for sample in samples:
        family = families.get(sample.name)
        if family is None:
            family = families[sample.name] = _family(metric, number, sample.name)
        value = getattr(_add(family, sample.labels, sample), kind)
        value.value = sample.value
        if number == COUNTER:
            _tell_exemplar(value, sample.exemplar)
            _tell_time(value.created_timestamp, created.get(_key(sample.labels)))
    yield from families.values()


def _histograms(metric: Metric) -> Any:
    def tell(histogram: Any, sample: Sample) -> None:
        bound = float(sample.labels["le"])
        if math.isinf(bound) and sample.exemplar is None:
            return  # that is the count
        bucket = histogram.bucket.add(cumulative_count=int(sample.value), upper_bound=bound)
        _tell_exemplar(bucket, sample.exemplar)

    family, known = _summed(metric, HISTOGRAM, "le", tell)
    if isinstance(metric, TimeHistogramFamily):
        for native in metric.natives:
            _tell_native(known[_key(native.labels)].histogram, native)
    return family


def _summaries(metric: Metric) -> Any:
    def tell(summary: Any, sample: Sample) -> None:
        summary.quantile.add(quantile=float(sample.labels["quantile"]), value=sample.value)

    return _summed(metric, SUMMARY, "quantile", tell)[0]


def _summed(
    metric: Metric, number: int, but: str, tell: Callable[[Any, Sample], None]
) -> tuple[Any, dict[_Key, Any]]:
    """Series of several samples each, with a count and a sum among them.

    Args:
        metric: The family.
        number: Its type.
        but: The label that tells a series' samples apart.
        tell: Says any other sample.

    Returns:
        The message, and those of its series by their labels.
    """
    family, known = _family(metric, number, metric.name), dict[_Key, Any]()
    for sample in metric.samples:
        labels = {name: value for name, value in sample.labels.items() if name != but}
        series = known.get(_key(labels))
        if series is None:
            series = known[_key(labels)] = _add(family, labels, sample)
        message = series.histogram if number == HISTOGRAM else series.summary
        match sample.name.removeprefix(metric.name):
            case "_count":
                message.sample_count = int(sample.value)
            case "_sum":
                message.sample_sum = sample.value
            case "_created":
                _tell_time(message.created_timestamp, sample.value)
            case _ if but in sample.labels:
                tell(message, sample)
            case _:  # no sample of this type, in the text formats either
                pass
    return family, known


def _tell_native(histogram: Any, native: NativeHistogram) -> None:
    """Say the native histogram beside the classic one, which has the same observations."""
    histogram.sample_count = native.zero_count + sum(native.buckets.values())
    histogram.schema = SCHEMA
    histogram.zero_threshold = ZERO_SECS
    histogram.zero_count = native.zero_count
    _tell_time(histogram.created_timestamp, native.created_at)
    last, count = None, 0
    for index in sorted(native.buckets):
        if last is None or index > last + 1:
            histogram.positive_span.add(offset=index if last is None else index - last - 1)
        histogram.positive_span[-1].length += 1
        histogram.positive_delta.append(native.buckets[index] - count)
        last, count = index, native.buckets[index]


def _family(metric: Metric, number: int, name: str) -> Any:
    family = _MetricFamily(name=name, help=metric.documentation, type=number)
    if metric.unit:
        family.unit = metric.unit
    return family


def _add(family: Any, labels: Mapping[str, str], sample: Sample) -> Any:
    message = family.metric.add()
    for name, value in labels.items():
        message.label.add(name=name, value=value)
    if sample.timestamp is not None:
        message.timestamp_ms = round(float(sample.timestamp) * 1000)
    return message


def _tell_exemplar(message: Any, exemplar: Exemplar | None) -> None:
    if exemplar is None:
        return
    message.exemplar.value = exemplar.value
    for name, value in exemplar.labels.items():
        message.exemplar.label.add(name=name, value=value)
    at = exemplar.timestamp
    _tell_time(message.exemplar.timestamp, None if at is None else float(at))


def _tell_time(message: Any, at: float | None) -> None:
    if at is not None:
        message.FromNanoseconds(round(at * 1e9))


def _created(metric: Metric) -> dict[_Key, float]:
    """When each series began, where that is told."""
    return {
        _key(sample.labels): sample.value
        for sample in metric.samples
        if sample.name == metric.name + "_created"
    }


def _key(labels: Mapping[str, str]) -> _Key:
    return frozenset(labels.items())
