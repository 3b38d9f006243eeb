"""A vLLM server's ``/metrics``, read: the figures that say how busy it is, and its histograms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["FIRST_TOKEN", "Counts", "Histogram", "read_counts", "read_histogram"]

RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
PREFIX_QUERIES = "vllm:prefix_cache_queries"
PREFIX_HITS = "vllm:prefix_cache_hits"
FIRST_TOKEN = "vllm:time_to_first_token_seconds"
_OLDER_NAMES = {  # until 0.9
    "vllm:gpu_cache_usage_perc": KV_CACHE_USAGE,
    "vllm:gpu_prefix_cache_queries": PREFIX_QUERIES,
    "vllm:gpu_prefix_cache_hits": PREFIX_HITS,
}


@dataclass(frozen=True, slots=True)
class Counts:
    """What a server counts, over all its engines.

    Parameters:
        running: Requests being worked on.
        waiting: Requests in its queue.
        kv_cache_usage: The share of the fullest engine's key-value cache that is in use; None if
            the server does not say.
        prefix_queries: Prompt tokens looked up in the prefix cache, since the server started.
        prefix_hits: How many of them were there.
    """

    running: int
    waiting: int
    kv_cache_usage: float | None
    prefix_queries: float
    prefix_hits: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram, summed over its labels.

    Parameters:
        buckets: ``(upper bound, count of what was at most that)``, by bound; the last is infinite.
        sum: The sum of all values.
    """

    buckets: tuple[tuple[float, float], ...]
    sum: float

    @property
    def count(self) -> float:
        """How many values there were."""
        return self.buckets[-1][1] if self.buckets else 0.0

    @property
    def mean(self) -> float | None:
        """The mean of all values; None if there is none."""
        return self.sum / self.count if self.count else None

    def __sub__(self, before: Histogram) -> Histogram:
        """What came since an earlier reading of the same histogram."""
        earlier = dict(before.buckets)
        buckets = tuple((le, count - earlier.get(le, 0.0)) for le, count in self.buckets)
        return Histogram(buckets, self.sum - before.sum)

    def quantile(self, q: float) -> float | None:
        """The value that a share ``q`` stays within, on a straight line inside its bucket.

        As Prometheus' ``histogram_quantile`` does. None if there is nothing; the largest finite
        bound where the value lies beyond it.
        """
        if not self.count:
            return None
        rank, low, below = q * self.count, 0.0, 0.0
        for le, count in self.buckets:
            if count >= rank:
                if le == float("inf"):
                    return low
                return low + (le - low) * ((rank - below) / (count - below) if count > below else 1)
            low, below = le, count
        return low


def read_counts(text: str) -> Counts | None:
    """Read what says how busy a server is.

    Args:
        text: Its metrics, in Prometheus' text format.

    Returns:
        The counts; None if these are not the metrics of a vLLM.
    """
    names = (RUNNING, WAITING, KV_CACHE_USAGE, PREFIX_QUERIES, PREFIX_HITS, *_OLDER_NAMES)
    values: dict[str, list[float]] = {}
    for family in _families(text, names):
        name = _OLDER_NAMES.get(family.name, family.name)
        values.setdefault(name, []).extend(
            s.value for s in family.samples if not s.name.endswith("_created")
        )
    if RUNNING not in values:
        return None
    usage = values.get(KV_CACHE_USAGE)
    return Counts(
        running=int(sum(values[RUNNING])),
        waiting=int(sum(values.get(WAITING, ()))),
        kv_cache_usage=max(usage) if usage else None,
        prefix_queries=sum(values.get(PREFIX_QUERIES, ())),
        prefix_hits=sum(values.get(PREFIX_HITS, ())),
    )


def read_histogram(text: str, name: str) -> Histogram:
    """Read one histogram.

    Args:
        text: A server's metrics, in Prometheus' text format.
        name: The histogram's name; one that is missing is empty.
    """
    buckets: dict[float, float] = {}
    total = 0.0
    for family in _families(text, (name,)):
        for sample in family.samples:
            if sample.name == f"{name}_bucket":
                le = float(sample.labels["le"])
                buckets[le] = buckets.get(le, 0.0) + sample.value
            elif sample.name == f"{name}_sum":
                total += sample.value
    return Histogram(tuple(sorted(buckets.items())), total)


def _families(text: str, names: Iterable[str]) -> Iterator[Metric]:
    """The families of these names. The other lines, some hundreds, are not parsed at all."""
    wanted = set(names)
    kept = (line for line in text.splitlines() if _name(line) in wanted)
    return (f for f in text_string_to_metric_families("\n".join(kept) + "\n") if f.name in wanted)


_SUFFIXES = ("_total", "_created", "_bucket", "_sum", "_count")


def _name(line: str) -> str:
    """Whose family a line belongs to."""
    if line.startswith("#"):
        words = line.split(maxsplit=3)
        name = words[2] if len(words) > 2 else ""
    else:
        name = line.partition("{")[0].partition(" ")[0]
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
