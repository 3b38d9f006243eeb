"""The alerting rules: understood by Prometheus, tested with its tool, about metrics there are."""

from __future__ import annotations

import re
import subprocess

import pytest
from prometheus_client import CollectorRegistry

from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.race.reports import AttemptReport, TurnReport
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.exposition import expose
from pipecat_hedge.telemetry.prometheus import PrometheusRecorder
from tests.support.prometheus_server import ROOT, RULES, needs_promtool, shortened

NAME = re.compile(r"(?<![\w:])pipecat_hedge_\w+(?![\w:])")


def names_served() -> set[str]:
    """Every series' name that a recorder may serve."""
    recorder = PrometheusRecorder(stats=ProviderStats(), registry=CollectorRegistry())
    names: set[str] = set()
    for family in recorder.describe():
        suffixes = {"counter": ("_total",), "histogram": ("", "_bucket", "_sum", "_count")}
        names |= {family.name + suffix for suffix in suffixes.get(family.type, ("",))}
    return names


def names_asked(text: str) -> set[str]:
    """The metrics that expressions name."""
    return set(NAME.findall(text))


def promtool(*arguments: str, given: str | None = None) -> str:
    told = subprocess.run(
        ["promtool", *arguments], cwd=ROOT, input=given, capture_output=True, text=True, timeout=50
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@needs_promtool
def test_the_rules_are_understood() -> None:
    """And the configuration that names them."""
    assert "SUCCESS" in promtool("check", "rules", str(RULES))
    assert "SUCCESS" in promtool("check", "config", "deploy/prometheus/prometheus.yml")


@needs_promtool
def test_the_metrics_are_named_as_prometheus_wants_them() -> None:
    """Its linter has nothing to say, of any metric there is."""
    registry = CollectorRegistry()
    recorder = PrometheusRecorder(
        stats=ProviderStats(), registry=registry, slos={"standard": Slo()}
    )
    attempt = AttemptReport(
        *("a", "m", 0.0, "primary", 0.3, 1.0, "won"),
        input_tokens=10,
        output_tokens=3,
        usd=0.001,
        sent_secs=0.0,
    )
    recorder.record(TurnReport(1, "a", "answered", 0.3, 0.5, 1.0, (attempt,)))
    assert promtool("check", "metrics", given=expose("", registry)[0].decode()) == ""


@needs_promtool
def test_every_alert_fires_in_its_drill_and_not_before() -> None:
    """``promtool test rules``: one provider slow for five minutes, and the others."""
    assert "SUCCESS" in promtool("test", "rules", "deploy/prometheus/rules_test.yml")


def test_every_alert_has_a_drill() -> None:
    """A rule that nobody has seen fire is a hope."""
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text()))
    drills = (ROOT / "deploy/prometheus/rules_test.yml").read_text()
    for alert in alerts:
        named = rf"alertname: {alert}\n\s+exp_alerts:\n\s+- exp_labels"
        assert re.search(named, drills), f"{alert} fires in no test"


def test_the_rules_ask_for_metrics_that_there_are() -> None:
    """A rule about a metric that was renamed is silent for ever."""
    asked = names_asked(RULES.read_text()) - {"pipecat_hedge_slo_burn"}
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    missing = {n for n in asked - names_served() if not any(n in r for r in recorded)}
    assert missing == set()


def test_the_drills_are_made_of_metrics_that_there_are() -> None:
    """Or an alert would be tested on what is never served."""
    drills = (ROOT / "deploy/prometheus/rules_test.yml").read_text()
    series = re.findall(r"series: '(\w+)", drills)
    assert set(series) <= names_served()


@pytest.mark.parametrize(
    ("rule", "short"),
    [
        ("rate(x[5m])", "rate(x[10s])"),
        ("for: 5m\n", "for: 10s\n"),
        ("rate(x[1h]) y:rate30m", "rate(x[120s]) y:rate30m"),
    ],
)
def test_a_minute_counts_as_two_seconds(rule: str, short: str) -> None:
    """Where the tests are in a hurry; names are not times."""
    assert shortened(rule) == short
