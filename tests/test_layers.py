"""Imports point down: words, then policies, then mechanism, then Pipecat, then tools."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pipecat_hedge

ROOT = Path(pipecat_hedge.__file__).parent

WORDS, POLICIES, MECHANISM, PIPECAT, TOOLS = range(5)
LAYERS = {
    "errors": WORDS,
    "backends": WORDS,
    "arguments": WORDS,
    "facts": WORDS,
    "attempt": WORDS,
    "open_seats": WORDS,
    "survival": WORDS,
    "work": WORDS,
    "percentiles": WORDS,
    "server_load": WORDS,
    "savings": WORDS,
    "reports": WORDS,
    "profiles": WORDS,
    "policies": POLICIES,
    "provider_latency": MECHANISM,
    "provider_health": MECHANISM,
    "health": MECHANISM,
    "ending": WORDS,
    "permits": MECHANISM,
    "admission": PIPECAT,
    "asking": PIPECAT,
    "loop_work": MECHANISM,
    "turn_hooks": MECHANISM,
    "prometheus": PIPECAT,
    "prometheus_names": MECHANISM,
    "prometheus_protobuf": MECHANISM,
    "prometheus_process": MECHANISM,
    "prometheus_slo": PIPECAT,
    "prometheus_state": MECHANISM,
    "prometheus_turns": PIPECAT,
    "exposition": MECHANISM,
    "time_histogram": MECHANISM,
    "event_counter": MECHANISM,
    "labelled_series": WORDS,
    "instruments": MECHANISM,
    "loop_watch": MECHANISM,
    "latency_sketch": WORDS,
    "shared_store": MECHANISM,
    "redis_script": MECHANISM,
    "redis_store": MECHANISM,
    "fleet_sync": MECHANISM,
    "budget_accounts": MECHANISM,
    "provider_stats": MECHANISM,
    "registries": MECHANISM,
    "stats_store": MECHANISM,
    "planning": MECHANISM,
    "virtual_race": MECHANISM,
    "task_scope": MECHANISM,
    "racing": MECHANISM,
    "deltas": WORDS,
    "stages": MECHANISM,
    "listening": MECHANISM,
    "connection_warmth": PIPECAT,
    "contender": PIPECAT,
    "tally": PIPECAT,
    "provider_client": PIPECAT,
    "sentences": PIPECAT,
    "release": PIPECAT,
    "spans": PIPECAT,
    "span_attributes": WORDS,
    "own_spans": PIPECAT,
    "race_span": PIPECAT,
    "tracing": PIPECAT,
    "output": PIPECAT,
    "take_back": PIPECAT,
    "learning": PIPECAT,
    "probe": PIPECAT,
    "tokens": PIPECAT,
    "inference": PIPECAT,
    "provider": PIPECAT,
    "metrics": PIPECAT,
    "turn": PIPECAT,
    "members": PIPECAT,
    "front": PIPECAT,
    "service": PIPECAT,
    "slo": WORDS,
    "slo_board": MECHANISM,
    "promise": PIPECAT,
    "origins": WORDS,
    "live": PIPECAT,
    "live_format": WORDS,
    "live_server": PIPECAT,
    "__init__": PIPECAT,
    "recordings": MECHANISM,
    "filler": PIPECAT,
    "filler_voice": PIPECAT,
    "line_log": MECHANISM,
    "vllm_metrics": MECHANISM,
    "vllm_server": MECHANISM,
    "vllm_stream": PIPECAT,
    "vllm_errors": PIPECAT,
    "vllm": PIPECAT,
    "vllm_prompt": PIPECAT,
    "conversation": PIPECAT,
    "turn_latency": PIPECAT,
    "turn_timeline": PIPECAT,
    "caller_turn": PIPECAT,
    "answer_audio": PIPECAT,
    "awaited_tools": PIPECAT,
    "testing": TOOLS,
    "simulator": TOOLS,
    "overhead": TOOLS,
    "turn_log": TOOLS,
    "turn_lines": PIPECAT,
    "policy_settings": MECHANISM,
    "metrics_command": TOOLS,
    "stage_overhead": TOOLS,
    "trace_overhead": TOOLS,
    "quickest": TOOLS,
    "bench": TOOLS,
    "drill": TOOLS,
    "llm_bench": TOOLS,
    "llm_load": TOOLS,
    "llm_race": TOOLS,
    "timed_pipeline": TOOLS,
    "top": TOOLS,
    "whatif": TOOLS,
    "report": TOOLS,
    "replay": TOOLS,
    "pytest_plugin": TOOLS,
    "pytest_caller": TOOLS,
    "cli": TOOLS,
}
BUILDS_ON = {("permit_queue", "concurrency_limit"), ("routing", "slow_spell")}
"""Policies that decide about what another one says: a request's bounds, a slow spell."""
STANDARD_LIBRARY_ONLY = (WORDS, POLICIES)
MODULES = sorted(ROOT.rglob("*.py"))


def _layer(module: str) -> int:
    name = module.split(".")[1] if "." in module else "__init__"
    assert name in LAYERS, f"{module} has no layer: add {name!r} to the table"
    return LAYERS[name]


def _imports(path: Path) -> list[str]:
    tree = ast.parse(path.read_text())
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: write absolute imports"
            found.append(node.module or "")
    return found


def _module(path: Path) -> str:
    return ".".join(("pipecat_hedge", *path.relative_to(ROOT).with_suffix("").parts))


@pytest.mark.parametrize("path", MODULES, ids=_module)
def test_imports_point_down(path: Path) -> None:
    """No module imports from a layer above its own."""
    mine = _layer(_module(path))
    for imported in _imports(path):
        if imported.split(".")[0] == "pipecat_hedge":
            assert _layer(imported) <= mine, f"{_module(path)} imports {imported}"
        if imported.split(".")[0] in ("asyncio", "pipecat", "loguru") and mine <= POLICIES:
            pytest.fail(f"{_module(path)} imports {imported}: policies do no I/O and do not log")
        if imported.split(".")[0] == "pipecat" and mine <= MECHANISM:
            pytest.fail(f"{_module(path)} imports {imported}: the mechanism knows no Pipecat")


@pytest.mark.parametrize("path", MODULES, ids=_module)
def test_policies_do_not_import_each_other(path: Path) -> None:
    """A policy is understood by itself, but for the words of another that it decides about."""
    if path.parent.name != "policies":
        return
    for imported in _imports(path):
        if imported.startswith("pipecat_hedge.policies"):
            pair = path.stem, imported.rpartition(".")[2]
            assert pair in BUILDS_ON, f"{_module(path)}: {imported}"


@pytest.mark.parametrize("path", MODULES, ids=_module)
def test_only_the_scope_makes_tasks(path: Path) -> None:
    """Everything else runs in a scope, so nothing can be forgotten."""
    mine = _layer(_module(path))
    if mine == TOOLS or path.name == "task_scope.py":
        return
    made = [
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future")
    ]
    assert made == []


def test_the_public_names_are_few() -> None:
    """At most 15, and each one exists."""
    assert len(pipecat_hedge.__all__) <= 15
    for name in pipecat_hedge.__all__:
        assert hasattr(pipecat_hedge, name)
