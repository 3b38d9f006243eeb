"""The wheel alone: what works without an extra, and the line that names a missing one.

An import hook takes away what the extras bring, in processes of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
HOOK = """
import importlib.machinery
import os

EXTRAS = {"aioice", "aiortc", "anthropic", "av", "fastapi", "jinja2", "opentelemetry",
          "prometheus_client", "pytest_asyncio", "redis", "rich", "text_to_num", "uvicorn",
          "uvloop"}
EXTRAS -= {os.environ.get("INSTALLED")}
find_spec = importlib.machinery.PathFinder.find_spec

@classmethod
def found(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in EXTRAS else find_spec(name, path, target)

importlib.machinery.PathFinder.find_spec = found
"""
LIBRARY = """
from pipecat_hedge import FillerProcessor, HedgedLLMService, VLLMService, telemetry
from pipecat_hedge.fleet import RedisStore
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.telemetry import LiveServer
from pipecat_hedge.voice import TurnLatencyObserver

def vllm():
    return VLLMService(base_url="http://localhost:8000/v1")

HedgedLLMService([vllm()])
TurnLatencyObserver()
for use in (
    lambda: telemetry.PrometheusRecorder,
    lambda: telemetry.export_traces,
    lambda: RedisStore("redis://localhost"),
    lambda: HedgedLLMService([vllm()], own_spans=True),
):
    try:
        use()
    except ConfigurationError as error:
        print(error)
"""
TESTS = """
import sys
import pipecat_hedge.tools.replay

def test_nothing_heavy_is_imported():
    heavy = {"pipecat", "aiortc", "aiohttp", "numpy", "rich", "loguru", "jinja2"}
    assert not heavy & sys.modules.keys()

def test_call(caller):
    pass
"""


@pytest.fixture(autouse=True)
def base_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    paths = [str(tmp_path), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PIPECAT_HEDGE_STATS", "off")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize("command", ["", "simulate"])
def test_help_needs_no_extra(command: str) -> None:
    done = run("-m", "pipecat_hedge.cli", *command.split(), "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "simulate" in done.stdout


@pytest.mark.parametrize(
    "command", ["replay", "whatif", "report", "compare", "top", "bench", "drill"]
)
def test_a_command_names_its_extra(command: str) -> None:
    done = run("-m", "pipecat_hedge.cli", command, "--help")
    extra = "replay" if command == "replay" else "tools"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f'pipecat-hedge {command}: rich is not installed: pip install "pipecat-hedge[{extra}]"\n'
    )


def test_the_library_names_its_extras() -> None:
    done = run("-c", LIBRARY)
    assert done.returncode == 0, done.stderr
    assert re.findall(r'(\w+) needs .*: pip install "pipecat-hedge\[(\w+)\]"\n', done.stdout) == [
        ("PrometheusRecorder", "prometheus"),
        ("traces", "tracing"),
        ("RedisStore", "redis"),
        ("own_spans", "tracing"),
    ]


@pytest.mark.parametrize("installed", ["", "pytest_asyncio"])
def test_the_pytest_plugin_costs_nothing_without_a_call(
    installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSTALLED", installed)
    (tmp_path / "test_users.py").write_text(TESTS)
    names = filter(None, (installed, "pipecat_hedge.tools.replay.pytest_plugin"))
    plugins = [argument for name in names for argument in ("-p", name)]
    done = run("-m", "pytest", "-q", *plugins, "--rootdir", str(tmp_path), str(tmp_path))
    assert "1 passed, 1 error" in done.stdout, done.stdout
    assert "\nthe fixture caller needs " in done.stdout
    assert 'pip install "pipecat-hedge[replay]"' in done.stdout
    assert "Error:" not in done.stdout
    assert "During handling" not in done.stdout


def test_the_form_in_messages_adds_an_extra_to_an_installed_checkout() -> None:
    """No index is asked for this package, so it need not be released."""
    done = run("-m", "pip", "install", "--no-index", "--dry-run", "pipecat-hedge[tools]")
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied: pipecat-hedge[tools]" in done.stdout


def test_messages_name_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [path for folder in ("src", "examples") for path in (ROOT / folder).rglob("*.py")]
    named = {
        extra
        for path in files
        for extra in re.findall(r'"(?:pipecat-hedge|\.)\[(\w+)\]"', path.read_text())
    }
    assert named - {*project["optional-dependencies"]} == set()
