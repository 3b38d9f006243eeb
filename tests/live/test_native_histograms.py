"""A real Prometheus stores the times as native histograms, and tells percentiles from them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from pipecat_hedge.race.reports import AttemptReport, TurnReport
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.exposition import start_http_server
from pipecat_hedge.telemetry.prometheus import PrometheusRecorder
from tests.support.prometheus_server import SCRAPE_SECS, PrometheusServer, needs_prometheus

pytestmark = [pytest.mark.live, pytest.mark.timeout(60), needs_prometheus]

TURNS = 2_000
GROWTH = 2 ** (1 / 8)
"""From one bound of schema 3 to the next."""
SEEN_SECS = 30.0
TTFT = "sum(pipecat_hedge_turn_ttft_seconds)"


def turn(number: int, ttft_secs: float) -> TurnReport:
    """A turn that was answered after so long."""
    ended_secs = ttft_secs + 1.0
    won = AttemptReport("a", "m", 0.0, "primary", ttft_secs, ended_secs, "won", sent_secs=0.0)
    return TurnReport(number, "a", "answered", ttft_secs, ttft_secs + 0.2, ended_secs, (won,))


def seen(condition: Callable[[], Any]) -> None:
    """Wait until Prometheus has seen it; it is asked as often as it looks."""
    until = time.monotonic() + SEEN_SECS
    while not condition():
        assert time.monotonic() < until, "Prometheus has not seen it"
        time.sleep(SCRAPE_SECS)


def test_percentiles_within_a_tenth(tmp_path: Path) -> None:
    """Wherever they lie, while the classic buckets are a quarter to a half apart."""
    rng = random.Random(8)
    times = [rng.lognormvariate(-0.6, 0.9) for _ in range(TURNS)]
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(stats=ProviderStats(), registry=registry)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        for number, secs in enumerate(times):
            recorder.record(turn(number, secs))
        target = f"127.0.0.1:{server.server_port}"
        with PrometheusServer(tmp_path, target, features="native-histograms") as prometheus:

            def figure(expression: str) -> float:
                (line,) = prometheus.query(expression)
                return float(line["value"][1])

            seen(lambda: prometheus.query(TTFT))
            assert figure(f"histogram_count({TTFT})") == TURNS
            assert figure(f"histogram_sum({TTFT})") == pytest.approx(sum(times))
            for share in (0.01, 0.5, 0.95, 0.99):
                exact = float(np.quantile(times, share))
                told = figure(f"histogram_quantile({share}, {TTFT})")
                assert exact / GROWTH < told < exact * GROWTH
            slow = figure(f"histogram_fraction(0.8, +Inf, {TTFT})")
            assert slow == pytest.approx(sum(secs > 0.8 for secs in times) / TURNS, abs=0.02)
            answered = "pipecat_hedge_turns_total{outcome='answered'}"
            assert figure(f"sum({answered})") == TURNS  # the other types come along
            waited = "sum by (provider) (pipecat_hedge_attempt_ttft_seconds)"
            assert figure(f"histogram_count({waited})") == TURNS
            queued = "histogram_quantile(0.99, sum(pipecat_hedge_turn_queued_seconds))"
            assert figure(queued) <= 2.0**-9  # in the zero bucket
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        recorder.close()
