"""The script that runs Pipecat's tests on a hedged service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[1] / "scripts" / "peer_suite.py"
SERVICE_TESTS = """
from pipecat.services.openai.llm import OpenAILLMService

def made(**kwargs):
    settings = OpenAILLMService.Settings(model="tiny")
    return OpenAILLMService(api_key="any", settings=settings, **kwargs)

def test_the_same():
    assert made(name="llm").name == "llm"
    assert made()._settings is not None
    assert isinstance(made(), OpenAILLMService)

def test_differs():
    assert type(made()).__mro__[1].__name__ == "BaseOpenAILLMService"
"""


def peer_suite(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "tests").mkdir()
    (folder / "tests" / "test_service.py").write_text(SERVICE_TESTS)
    command = [sys.executable, str(SCRIPT), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


def test_a_difference_that_is_not_accounted_for_is_an_error(tmp_path: Path) -> None:
    ran = peer_suite(tmp_path)
    assert "DIFFERS  tests/test_service.py::test_differs" in ran.stdout
    assert "test_the_same" not in ran.stdout
    assert "2 tests pass with the bare services, 1 of them with the substitution" in ran.stdout
    assert ran.returncode == 1
