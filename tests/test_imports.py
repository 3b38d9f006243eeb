"""Imports point one way: the rule of the packages, one line for each."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pipecat_hedge

ROOT = Path(pipecat_hedge.__file__).parent

MAY_IMPORT = {
    "race": set[str](),
    "policy": {"race"},
    "limits": {"race", "policy"},
    "service": {"race", "policy", "limits"},
    "voice": {"race", "policy", "limits", "service"},
    "vllm": {"race", "policy", "limits", "service"},
    "telemetry": {"race", "policy", "limits", "service", "voice"},
    "fleet": {"race", "policy", "limits", "service"},
}
PURE = ("race", "policy", "limits")
"""These know no Pipecat."""
COMPOSITION = "service/composition.py"
"""Wires what observes a service; the only module that may import from above."""


def imports(package: str) -> set[str]:
    """The modules that a package's modules import, by their full names."""
    found = set[str]()
    for path in (ROOT / package).rglob("*.py"):
        if path == ROOT / COMPOSITION:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_those_below_it(package: str) -> None:
    names = {name.split(".")[1] for name in imports(package) if name.startswith("pipecat_hedge.")}
    assert not names - {package} - MAY_IMPORT[package]


@pytest.mark.parametrize("package", PURE)
def test_decisions_know_no_pipecat(package: str) -> None:
    assert not {name for name in imports(package) if name.split(".")[0] == "pipecat"}


def test_every_package_has_its_line() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == {*MAY_IMPORT, "tools"}
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "cli.py", "testing.py"}
