"""A filler, heard by a caller: at its time, out of the conversation, and gone when one speaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipecat_hedge.tools.replay import Caller, utterances
from tests.live.bot_process import BotProcess
from tests.live.test_voice_bot import HEARD_SECS, greeted, heard_out, is_heard_turn, is_turn

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(200)]

RECORDINGS = utterances([Path(__file__).parents[2] / "fixtures/audio"])
ANSWER = "We are open till nine."


async def test_a_slow_answer_is_bridged() -> None:
    """The first sound comes long before the answer, which follows whole; no filler is remembered.

    Then the caller speaks into the filler: it ends at once, and the turn after it works.
    """
    asking, again, *_ = RECORDINGS
    models = f"fixed?ttft=2.5&answer={ANSWER.replace(' ', '%20')}"
    async with (
        BotProcess(SIMULATED_MODELS=models, HEDGE_POLICY="fallback", TURN_DETECTION="0") as bot,
        Caller(bot.url) as caller,
    ):
        await greeted(caller)
        before = len(caller.messages)
        said = await caller.say(asking)
        heard_at = await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        message = await caller.message(
            "the turn's report", is_heard_turn, since=before, timeout_secs=HEARD_SECS
        )
        turn = message["data"]
        assert 0.75 < turn["filler"]["spoken_secs"] < 2.0, "before much has been learned"
        assert turn["ttft_secs"] >= 2.5
        assert turn["first_sound_secs"] < turn["voice_to_voice_secs"] - 1.0
        assert heard_at - said.ended_at < turn["voice_to_voice_secs"]
        await heard_out(caller, heard_at, since=before)
        texts = [m["data"]["text"] for m in caller.messages[before:] if m["type"] == "bot-llm-text"]
        assert "".join(texts) == ANSWER

        said = await caller.say(asking)
        await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        before = len(caller.messages)
        said = await caller.say(again)
        silent_at = await caller.wait_until_silent(said.began_at, timeout_secs=HEARD_SECS)
        assert silent_at < said.ended_at
        await caller.message("the report", is_turn, since=before, timeout_secs=HEARD_SECS)
        turn = (
            await caller.message(
                "the next report", is_heard_turn, since=before, timeout_secs=HEARD_SECS
            )
        )["data"]
        assert turn["outcome"] == "answered"
    assert not [line for line in bot.lines if "Traceback" in line]
