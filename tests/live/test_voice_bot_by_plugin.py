"""The example bot, tested as a user of the pytest plugin tests a bot: a model to copy from.

The bot is started for each test with simulated providers, called over WebRTC, and ended. Limits
are generous: they say what may not happen, not how fast this machine is.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from examples.voice_bot.choices import SETTINGS

from pipecat_hedge.tools.replay import Call, CommandBot

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
ASKS = "fixtures/audio/open-sunday_en-us-female_normal.flac"


@pytest.fixture
def voice_bot(monkeypatch: pytest.MonkeyPatch) -> CommandBot:
    """The bot, with settings of its own: those of this machine do not reach it."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    answer = "We%20are%20open%20till%20nine.%20Do%20come%20by%20whenever%20it%20suits%20you."
    return CommandBot(
        "python -m examples.voice_bot --port {port} --loopback-only",
        cwd=ROOT,
        env={
            "PYTHON_DOTENV_DISABLED": "1",
            "SIMULATED_MODELS": f"fixed?ttft=0.15&answer={answer} fixed?ttft=0.6&answer={answer}",
            "HEDGE_POLICY": "race",
            "TURN_DETECTION": "0",
        },
    )


async def test_opening_hours(caller: Call) -> None:
    """A question is understood, and answered soon."""
    turn = await caller.say(ASKS)
    assert "sunday" in turn.understood_text.lower()
    assert "nine" in turn.answer_text
    assert turn.voice_to_voice_secs is not None
    assert turn.voice_to_voice_secs < 8
