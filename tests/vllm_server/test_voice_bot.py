"""The example bot on a real vLLM, as `make vllm` runs it, called over WebRTC."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.voice_bot.choices import SETTINGS
from scripts.vllm.server import BRIEF, VLLMProcess

from pipecat_hedge.tools.replay import Call, CommandBot
from tests.vllm_server.conftest import BLOCKS

pytestmark = [pytest.mark.vllm, pytest.mark.live]

ROOT = Path(__file__).parents[2]
ASKS = "fixtures/audio/open-sunday_en-us-female_normal.flac"


@pytest.fixture(scope="module")
def brief_vllm() -> Iterator[VLLMProcess]:
    """A server whose answers are soon over, since they are spoken."""
    with VLLMProcess("tiny", *BRIEF, *BLOCKS, name="tiny") as server:
        yield server


@pytest.fixture(params=["alone", "second of a race"])
def voice_bot(
    request: pytest.FixtureRequest, brief_vllm: VLLMProcess, monkeypatch: pytest.MonkeyPatch
) -> CommandBot:
    """The bot with the vLLM alone, or behind a simulated provider that never answers."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    env = {
        "PYTHON_DOTENV_DISABLED": "1",
        "VLLM_BASE_URL": brief_vllm.base_url,
        "TURN_DETECTION": "0",
    }
    if request.param == "alone":
        env["HEDGE_POLICY"] = "off"
    else:
        env |= {"SIMULATED_MODELS": "fixed?ttft=60", "HEDGE_POLICY": "after:0.3"}
    command = "python -m examples.voice_bot --port {port} --loopback-only"
    return CommandBot(command, cwd=ROOT, env=env)


async def test_a_caller_is_answered_by_the_vllm(voice_bot: CommandBot, caller: Call) -> None:
    """What it says is word salad, and heard."""
    turn = await caller.say(ASKS)
    assert "sunday" in turn.understood_text.lower()
    assert turn.answer_text.strip()
    assert turn.voice_to_voice_secs is not None
    assert turn.voice_to_voice_secs < 8
