"""The reference names everything that there is, and nothing else."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import tomllib
from importlib import import_module
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import pipecat_hedge as hedge
from pipecat_hedge.race import reports
from pipecat_hedge.telemetry import PrometheusRecorder, SloStatus
from pipecat_hedge.tools.proxy.cache import cache_counter
from pipecat_hedge.voice import TurnLatency
from tests.docs.pages import ROOT, doc

ARGUMENTS, REPORTS = doc("reference/arguments.md"), doc("reference/reports.md")
METRICS, CONSTANTS = doc("reference/metrics.md"), doc("design/constants.md")
POLICIES = ("adaptive", "race", "after", "fallback")
CLASSES = (
    *("HedgedLLMService", "Provider", "CircuitBreakerSettings", "Slo"),
    *("FillerProcessor", "VLLMService"),
)
RECORDS = (
    *(reports.TurnReport, reports.AttemptReport, reports.StageReport, reports.ProviderState),
    *(reports.BreakerReport, reports.DrainedAnswer, TurnLatency, SloStatus),
)


def parameters(function: Any) -> dict[str, Any]:
    """The arguments of a function and their defaults."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in found if each.kind in named}


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def stated_defaults(text: str) -> dict[str, Any]:
    """The defaults in parentheses that are plain values."""
    stated: dict[str, Any] = {}
    for name, value in re.findall(r"`(\w+)` \(`?([^)`;]+)`?\)", text):
        try:
            stated[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            continue
    return stated


def test_policies_arguments() -> None:
    section = ARGUMENTS.section("HedgePolicy")
    methods = [parameters(getattr(hedge.HedgePolicy, name)) for name in POLICIES]
    fields = {f.name: f.default for f in dataclasses.fields(hedge.HedgePolicy)}
    wanted = {name: value for found in methods for name, value in found.items()} | fields
    wanted = {name: value for name, value in wanted.items() if name not in ("rule", "name")}
    assert wanted.keys() <= names(section)
    for name, value in stated_defaults(section).items():
        assert wanted[name] == value, name


@pytest.mark.parametrize("name", CLASSES)
def test_arguments(name: str) -> None:
    section, wanted = ARGUMENTS.section(name), parameters(getattr(hedge, name))
    assert wanted.keys() <= names(section)
    for argument, value in stated_defaults(section).items():
        assert wanted[argument] in (value, None), argument


def test_members_of_the_service() -> None:
    (line,) = re.findall(r"^Members: .*\n.*$", ARGUMENTS.text, re.M)
    for name in re.findall(r"`(\w+)(?:\([^)]*\))?`", line):
        assert hasattr(hedge.HedgedLLMService, name) or name == "events"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_report_fields(record: Any) -> None:
    headings = {"BreakerReport", "DrainedAnswer", "SloStatus"}
    section = REPORTS.section("Others" if record.__name__ in headings else record.__name__)
    assert {field.name for field in dataclasses.fields(record)} <= names(section)


def test_metrics() -> None:
    registry = CollectorRegistry()
    cache_counter(registry)
    found = list(registry.collect())
    recorder = PrometheusRecorder(registry=registry)
    found += recorder.describe()
    there = {m.name + ("_total" if m.type == "counter" else "") for m in found}
    recorder.close()
    listed = METRICS.text.partition("## Alerts")[0]
    first = {name for line in re.findall(r"^- (.*)$", listed, re.M) for name in _metric_names(line)}
    assert {f"pipecat_hedge_{name}" for name in first} == there


def _metric_names(line: str) -> set[str]:
    """The metrics of a line: what stands before its labels, its colon or a comma."""
    return set(re.findall(r"`(\w+)`(?= \{|:|, `|$)", line.partition(": ")[0] + ":"))


def test_alerts() -> None:
    rules = (ROOT / "deploy/prometheus/rules.yml").read_text()
    pages, tickets = re.findall(r"^- (?:Pages|Tickets): .*\n(?:  .*\n)*", METRICS.text, re.M)
    for kind, listed in (("page", pages), ("ticket", tickets)):
        found = re.findall(rf"alert: (\w+)(?:(?!alert:).)*?severity: {kind}\b", rules, re.S)
        assert set(found) == set(re.findall(r"`(Hedge\w+)`", listed))


def test_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = doc("reference/environment.md").text.partition("Extras, as in")[2]
    extras = set(re.findall(r"`(\w+)`: ", listed))
    assert extras == set(project["optional-dependencies"])


def test_environment_variables() -> None:
    from pipecat_hedge.service.composition import ENVIRONMENT

    assert ENVIRONMENT in names(doc("reference/environment.md").text)


def test_events() -> None:
    source = "".join(p.read_text() for p in (ROOT / "src/pipecat_hedge").rglob("*.py"))
    there = set(re.findall(r'_register_event_handler\("(\w+)"\)', source))
    assert there == set(re.findall(r"`(on_\w+)`", doc("events.md").text))


CONSTANT = re.compile(r"`([\w.]+)\.([A-Z_]+)` = ([\d.]+)")


@pytest.mark.parametrize(("module", "name", "value"), CONSTANT.findall(CONSTANTS.text))
def test_constants(module: str, name: str, value: str) -> None:
    assert getattr(import_module(f"pipecat_hedge.{module}"), name) == float(value)
