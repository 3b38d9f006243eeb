"""What is read of a vLLM's metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.vllm.server_metrics import Histogram, read_counts, read_histogram

TEXT = """\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 88.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1000.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 640.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.2"} 30.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 40.0
vllm:time_to_first_token_seconds_count{engine="0"} 40.0
vllm:time_to_first_token_seconds_sum{engine="0"} 9.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.1"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.2"} 10.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf"} 10.0
vllm:time_to_first_token_seconds_count{engine="1"} 10.0
vllm:time_to_first_token_seconds_sum{engine="1"} 1.5
"""


def test_counts_are_summed_over_the_engines() -> None:
    """But for the cache's usage, where the fullest engine matters."""
    counts = read_counts(TEXT)
    assert counts is not None
    assert (counts.running, counts.waiting, counts.kv_cache_usage) == (7, 2, 0.75)
    assert (counts.prefix_queries, counts.prefix_hits) == (1000, 640)


def test_older_servers_have_other_names() -> None:
    """Those of version 0.8 are read, too."""
    text = TEXT.replace("kv_cache_usage", "gpu_cache_usage").replace("prefix_c", "gpu_prefix_c")
    assert read_counts(text) == read_counts(TEXT)


@pytest.mark.parametrize("text", ["", "<html>", "# TYPE up gauge\nup 1\n"])
def test_other_pages_are_not_taken_for_metrics(text: str) -> None:
    """A gateway may answer anything."""
    assert read_counts(text) is None


def test_a_histogram_is_summed_and_subtracted() -> None:
    """Over the engines; the difference is what came in between."""
    found = read_histogram(TEXT, "vllm:time_to_first_token_seconds")
    assert found.buckets == ((0.1, 10.0), (0.2, 40.0), (float("inf"), 50.0))
    assert (found.count, found.sum, found.mean) == (50, 10.5, 0.21)
    before = Histogram(((0.1, 10.0), (0.2, 20.0), (float("inf"), 20.0)), 2.0)
    assert (found - before).buckets == ((0.1, 0.0), (0.2, 20.0), (float("inf"), 30.0))
    assert read_histogram(TEXT, "vllm:nothing").count == 0


def test_quantiles_lie_on_a_line_within_their_bucket() -> None:
    """As in Prometheus; beyond the last finite bound it is that bound, and None without values."""
    found = read_histogram(TEXT, "vllm:time_to_first_token_seconds")
    assert found.quantile(0.1) == pytest.approx(0.05)
    assert found.quantile(0.5) == pytest.approx(0.15)
    assert found.quantile(0.99) == 0.2
    assert Histogram((), 0.0).quantile(0.5) is None
    assert Histogram((), 0.0).mean is None


@given(st.lists(st.floats(0, 3), min_size=1, max_size=50), st.floats(0.01, 1))
def test_a_quantile_is_within_the_bucket_of_the_exact_one(values: list[float], q: float) -> None:
    """The histogram knows no more than the bucket."""
    bounds = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, float("inf")]
    buckets = tuple((le, float(sum(v <= le for v in values))) for le in bounds)
    found = Histogram(buckets, sum(values)).quantile(q)
    assert found is not None
    rank = q * len(values)
    le = next(le for le, count in buckets if count >= rank)
    assert le - 0.5 <= found <= le
