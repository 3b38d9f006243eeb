"""The alerting rules and the dashboard: valid, tested, and about metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pipecat_hedge import ProviderStats
from pipecat_hedge.race import AttemptReport, TurnReport
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.tools.proxy.cache import cache_counter
from tests.support.prometheus_server import ROOT, RULES, needs_promtool

pytestmark = pytest.mark.slow

TESTS = ROOT / "deploy/prometheus/rules_test.yml"
DASHBOARD = json.loads((ROOT / "deploy/grafana/pipecat-hedge.json").read_text())
CHARTS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RECORDED = set(re.findall(r"record: (\S+)", RULES.read_text()))
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def exported() -> set[str]:
    """The names of all series that a recorder exports."""
    registry = CollectorRegistry()
    cache_counter(registry)  # the proxy's
    families = list(registry.collect())
    recorder = PrometheusRecorder(stats=ProviderStats(), registry=registry)
    families += recorder.describe()
    recorder.close()
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w:])pipecat_hedge_\w+(?![\w:])", text))


def promtool(*arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["promtool", *arguments], cwd=ROOT, input=stdin, capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_promtool
def test_rules_are_valid() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("check", "config", "deploy/prometheus/prometheus.yml")


@needs_promtool
def test_alerts_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))


@pytest.mark.parametrize("alert", re.findall(r"alert: (\w+)", RULES.read_text()))
def test_every_alert_fires_in_a_test(alert: str) -> None:
    fires = rf"alertname: {alert}\n\s+exp_alerts:\n\s+- exp_labels"
    assert re.search(fires, TESTS.read_text())


@needs_promtool
def test_metric_names_pass_prometheus_linter() -> None:
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(stats=ProviderStats(), registry=registry)
    attempt = AttemptReport("a", "m", 0.0, "primary", 0.3, 1.0, "won", usd=0.001, sent_secs=0.0)
    recorder.record(TurnReport(1, "a", "answered", 0.3, 0.5, 1.0, (attempt,)))
    assert promtool("check", "metrics", stdin=generate_latest(registry).decode()) == ""


def test_rules_use_exported_metrics() -> None:
    expressions = re.sub(r"^\s*(- name|#).*$", "", RULES.read_text(), flags=re.M)
    assert metrics_in(expressions) <= exported()
    assert set(re.findall(r"series: '(\w+)", TESTS.read_text())) <= exported()


@pytest.mark.parametrize("panel", CHARTS, ids=lambda panel: panel["title"])
def test_dashboard_uses_exported_metrics(panel: dict[str, Any]) -> None:
    assert panel["description"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        assert target["legendFormat"]
        assert metrics_in(target["expr"]) <= exported()
        assert set(re.findall(r"\w+:\w+:\w+", target["expr"])) <= RECORDED
        selectors = re.findall(r"pipecat_hedge_[\w:]+(\S*)", target["expr"])
        assert all(selector.startswith('{job=~"$job"') for selector in selectors)
