"""Imports point one way, and from outside only to a package's face; one line for each package."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import pipecat_hedge

ROOT = Path(pipecat_hedge.__file__).parent
REPOSITORY = Path(__file__).parents[1]

MAY_IMPORT = {
    "race": set[str](),
    "providers": {"race"},
    "policy": {"race", "providers"},
    "service": {"race", "policy", "providers"},
    "voice": {"race", "policy", "providers", "service"},
    "vllm": {"race", "policy", "providers", "service"},
    "telemetry": {"race", "policy", "providers", "service", "voice"},
    "fleet": {"race", "policy", "providers", "service"},
    "retrieval": {"race", "policy", "service"},
    "answers": {"race", "policy", "providers", "service"},
}
PURE = ("race", "policy", "providers")
"""These know no Pipecat."""
COMPOSITION = "service/composition.py"
"""Wires what observes a service; the only module that may import from above."""

FACES = {
    "tools.simulator": {"policy", "providers"},
    "tools.replay": {"race", "voice"},
    "tools.analysis": {"race", "policy", "providers"},
    "tools.bench": {
        "race",
        "policy",
        "providers",
        "service",
        "telemetry",
        "fleet",
        "tools.analysis",
        "tools.simulator",
    },
    "tools.stats": {"race", "providers", "service", "fleet"},
    "tools.top": {"race", "policy", "telemetry"},
    "tools.proxy": {"race", "policy", "providers", "service", "telemetry", "answers"},
}
"""The packages whose faces a tool imports; it imports nothing from inside of them."""
PACKAGES = (*MAY_IMPORT, *FACES, "tools.bench.drill")
PUBLIC = {"pipecat_hedge", "pipecat_hedge.testing", "pipecat_hedge.cli"}
SHARED = {"pipecat_hedge.tools.formatting"}
"""What all tools use."""


def imports(*paths: Path) -> set[str]:
    """The modules that modules import, by their full names."""
    found = set[str]()
    for path in paths:
        if path == ROOT / COMPOSITION:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {_module(node.module, alias.name) for alias in node.names}
    return found


def _module(module: str, name: str) -> str:
    """What ``from module import name`` imports: ``name`` may be a module itself."""
    inner = ROOT.parent / module.replace(".", "/") / f"{name}.py"
    return f"{module}.{name}" if inner.exists() else module


def modules(package: str) -> list[Path]:
    return list((ROOT / package.replace(".", "/")).rglob("*.py"))


def full(packages: set[str]) -> set[str]:
    return {f"pipecat_hedge.{package}" for package in packages}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    found = imports(*modules(package))
    names = {name.split(".")[1] for name in found if name.startswith("pipecat_hedge.")}
    assert not names - {package} - MAY_IMPORT[package]


@pytest.mark.parametrize("package", PURE)
def test_decisions_know_no_pipecat(package: str) -> None:
    found = imports(*modules(package))
    assert not {name for name in found if name.split(".")[0] == "pipecat"}


@pytest.mark.parametrize("tool", FACES)
def test_a_tool_imports_faces_only(tool: str) -> None:
    found = {name for name in imports(*modules(tool)) if name.startswith("pipecat_hedge")}
    outside = {name for name in found if not name.startswith(f"pipecat_hedge.{tool}")}
    assert not outside - full(FACES[tool]) - PUBLIC - SHARED


@pytest.mark.parametrize(
    "module", ["whatif", "report", "incidents", "slow_turns", "statistics", "latency_files"]
)
def test_what_computes_figures_formats_none(module: str) -> None:
    found = imports(ROOT / "tools" / "analysis" / f"{module}.py")
    assert not {name for name in found if name.startswith((*SHARED, "rich", "argparse"))}


@pytest.mark.parametrize("folder", ["examples", "scripts"])
def test_programs_import_faces_only(folder: str) -> None:
    found = imports(*(REPOSITORY / folder).rglob("*.py"))
    ours = {name for name in found if name.startswith("pipecat_hedge")}
    assert not ours - full(set(PACKAGES)) - PUBLIC


@pytest.mark.parametrize("package", PACKAGES)
def test_a_face_has_what_it_names(package: str) -> None:
    face = import_module(f"pipecat_hedge.{package}")
    names: list[str] = getattr(face, "__all__", [])
    assert [name for name in names if not hasattr(face, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        _ = face.Missing


def test_every_package_has_its_line() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {*MAY_IMPORT, "tools"}
    tools = {f"tools.{path.parent.name}" for path in ROOT.glob("tools/*/__init__.py")}
    assert tools == {*FACES}
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "cli.py", "testing.py"}
