"""The script that runs Pipecat's tests on hedged services."""

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
RECOGNISER_TESTS = """
import pytest
from pipecat.frames.frames import InputAudioRawFrame, STTMetadataFrame
from pipecat.services.stt_service import STTService
from pipecat.tests.utils import run_test

class Recogniser(STTService):
    got = b""

    async def run_stt(self, audio):
        self.got += audio
        yield None

async def run(**options):
    recogniser = Recogniser(**options)
    down, _ = await run_test(recogniser, frames_to_send=[InputAudioRawFrame(b"\\1\\0", 16000, 1)])
    return recogniser, [type(frame) for frame in down]

@pytest.mark.asyncio
async def test_the_same():
    recogniser, down = await run()
    assert recogniser.got == b"\\1\\0"
    assert down == [STTMetadataFrame, InputAudioRawFrame]

@pytest.mark.asyncio
async def test_differs():
    recogniser, down = await run(audio_passthrough=False)
    assert down == [STTMetadataFrame]
"""


def peer_suite(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "tests").mkdir()
    (folder / "tests" / "test_service.py").write_text(tests)
    command = [sys.executable, str(SCRIPT), *options, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)


@pytest.mark.parametrize(
    ("of", "tests"), [("llm", SERVICE_TESTS), ("stt", RECOGNISER_TESTS)], ids=["llm", "stt"]
)
def test_a_difference_that_is_not_accounted_for_is_an_error(
    of: str, tests: str, tmp_path: Path
) -> None:
    ran = peer_suite(tmp_path, tests, "--of", of)
    assert "DIFFERS  tests/test_service.py::test_differs" in ran.stdout
    assert "test_the_same" not in ran.stdout
    assert "2 tests pass with the bare services, 1 of them with the substitution" in ran.stdout
    assert ran.returncode == 1
