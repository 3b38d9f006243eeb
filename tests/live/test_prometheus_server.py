"""A real Prometheus: a provider turns slow, its alerts fire, and the dashboard shows it.

In the rules a minute counts as two seconds here (``prometheus_server.shortened``), or as many as
`PROMETHEUS_MINUTE_SECS` says: with 60 it is what an operator sees, at Prometheus's usual pace.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from prometheus_client import CollectorRegistry, start_http_server

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.policy import Slo
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.tools.bench import TimedPipeline
from pipecat_hedge.tools.simulator import SimulatorProcess
from tests.support.prometheus_server import (
    MINUTE_SECS,
    ROOT,
    SCRAPE_SECS,
    PrometheusServer,
    needs_prometheus,
)
from tests.support.simulated import close, simulated

pytestmark = [
    pytest.mark.live,
    pytest.mark.realtime,
    pytest.mark.timeout(150 * MINUTE_SECS),
    needs_prometheus,
]

CALLS = 12
"""So many have twenty turns in four seconds, which alerts want to have seen in two minutes."""
THINKS_SECS = min(0.65 * MINUTE_SECS, 18.0)
"""With less, callers may not feel it: a slow provider is soon asked for one answer at a time, which
takes over a second, and of sixteen turns a second that is less than one in twenty."""
OBJECTIVE_SECS = 0.8
SEEN_SECS = 45.0 * MINUTE_SECS
SHORT = "answer=Certainly.%20One%20moment."
FAST, SLOWER = "fixed@ttft=0.05,tps=400", 40
DASHBOARD = json.loads((ROOT / "deploy/grafana/pipecat-hedge.json").read_text())
NEEDS_TROUBLE = {
    *("Failures", "Fillers and continuations", "Cold connections"),
    *("Cost", "Cost of an answered turn"),
}
"""Panels that show nothing of a call in which all is well, with providers that cost nothing.

Each of them has to show more than a zero where there is trouble.
"""


@pytest.fixture
def served() -> Iterator[tuple[CollectorRegistry, str]]:
    """A registry, and the address at which it is served."""
    registry = CollectorRegistry()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    yield registry, f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def call(
    first: SimulatorProcess, second: SimulatorProcess, stats: ProviderStats, over: asyncio.Event
) -> None:
    """Talk until it is over: two providers, one behind each simulator."""
    a = simulated("openai", first, f"{FAST},fault=cut,rate=0.1")
    b = simulated("anthropic", second, FAST)
    line = TimedPipeline(
        HedgedLLMService(
            [Provider("a", a, usd_per_mtok=(2, 8)), Provider("b", b, usd_per_mtok=(1, 5))],
            policy=HedgePolicy.after(1.5 * OBJECTIVE_SECS),
            stats=stats,
            slo=Slo(OBJECTIVE_SECS, OBJECTIVE_SECS + 0.1, None),
            warm=False,
        )
    )
    await line.start()
    try:
        while not over.is_set():
            await line.turn(give_up_secs=30)
            await asyncio.sleep(THINKS_SECS)
    finally:
        await line.stop()
        await close(a, b)


async def seen(condition: Callable[[], Any], what: str) -> Any:
    """Wait until Prometheus has seen it; it is asked as often as it looks."""
    until = time.monotonic() + SEEN_SECS
    while not (found := await asyncio.to_thread(condition)):
        assert time.monotonic() < until, f"Prometheus has not seen {what}"
        await asyncio.sleep(SCRAPE_SECS)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every panel's title with each of its expressions, as Grafana would send them."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            interval = f"{4 * MINUTE_SECS}s"
            expression = target["expr"].replace("$__rate_interval", interval)
            expression = expression.replace("$job", ".*")
            yield panel["title"], re.sub(r"\[(1h|30d)\]", f"[{60 * MINUTE_SECS}s]", expression)


def answers(prometheus: PrometheusServer) -> dict[str, int]:
    """How many lines each panel shows; a query that Prometheus rejects is an error.

    Of what needs trouble to happen, a line at zero shows nothing.
    """
    shown: dict[str, int] = {}
    for title, expression in expressions():
        values = [float(line["value"][1]) for line in prometheus.query(expression)]
        known = [value for value in values if not math.isnan(value)]
        shows = [value for value in known if value or title not in NEEDS_TROUBLE]
        shown[title] = shown.get(title, 0) + len(shows)
    return shown


def missing(prometheus: PrometheusServer) -> set[str]:
    """The panels that show nothing."""
    return {title for title, lines in answers(prometheus).items() if not lines}


def waits(prometheus: PrometheusServer) -> dict[str, float]:
    """The panel of slow providers: the median by provider."""
    expression, _ = (e for title, e in expressions() if title == "Waits by provider")
    return {
        line["metric"]["provider"]: secs
        for line in prometheus.query(expression)
        if not math.isnan(secs := float(line["value"][1]))
    }


def slow_providers(prometheus: PrometheusServer) -> dict[str, float]:
    """Those of the panel whose median is over the promise; its window is longer than an alert's."""
    return {name: secs for name, secs in waits(prometheus).items() if secs > OBJECTIVE_SECS}


async def test_slow_provider_fires_its_alerts(
    served: tuple[CollectorRegistry, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Callers feel it, since hedges come late: both alerts fire, the panels show it, it ends.

    Before, the first provider is well but for answers that break off, which the second continues,
    and every panel shows something, except those that need a voice or an adaptive policy.
    """
    registry, address = served
    stats = ProviderStats()
    recorder = PrometheusRecorder(stats=stats, registry=registry)
    logger.disable("pipecat")
    over = asyncio.Event()
    try:
        with (
            SimulatorProcess() as first,
            SimulatorProcess() as second,
            PrometheusServer(tmp_path, address) as prometheus,
        ):
            calls = [asyncio.create_task(call(first, second, stats, over)) for _ in range(CALLS)]
            try:
                well = "sum(pipecat_hedge_turns_total) > 60"
                await seen(lambda: prometheus.query(well) and waits(prometheus), "calls, all well")
                assert await asyncio.to_thread(prometheus.firing) == {}
                empty = {"Voice to voice", "Hedging budget"}
                await seen(lambda: missing(prometheus) <= empty, "all panels")
                assert (await asyncio.to_thread(waits, prometheus))["a"] < OBJECTIVE_SECS
                began = time.monotonic()
                await asyncio.to_thread(first.set_conditions, slow=SLOWER)
                await seen(lambda: "HedgeProviderSlow" in prometheus.firing(), "the provider")
                named_after = time.monotonic() - began
                slow = await seen(lambda: slow_providers(prometheus), "the slow one in the panel")
                await seen(lambda: "HedgeTtftOverSlo" in prometheus.firing(), "that callers wait")
                fired_after = time.monotonic() - began
                alerts = await asyncio.to_thread(prometheus.firing)
                assert alerts["HedgeProviderSlow"]["provider"] == "a"
                assert alerts["HedgeTtftOverSlo"]["tier"] == "standard"
                assert list(slow) == ["a"]
                await asyncio.to_thread(first.set_conditions)
                await seen(lambda: "HedgeTtftOverSlo" not in prometheus.firing(), "recovery")
            finally:
                over.set()
                await asyncio.gather(*calls)
            assert not prometheus.complaints()
    finally:
        logger.enable("pipecat")
        recorder.close()
    with capsys.disabled():
        print(
            f"\nslow provider named after {named_after:.1f} s, p95 alert after {fired_after:.1f} s "
            f"(a minute counts as {MINUTE_SECS} s); its median wait was {slow['a']:.2f} s"
        )
