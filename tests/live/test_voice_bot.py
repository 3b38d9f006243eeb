"""The example bot, called over real WebRTC by callers who speak the recordings in real time.

Asserts what was heard and said, and in which order, never how many milliseconds it took.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipecat_hedge.tools.replay import Caller
from tests.live.bot_process import (
    HEARD_SECS,
    BotProcess,
    greeted,
    heard_out,
    is_turn,
    of_type,
    recording,
    turn_report,
)

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(300)]

SHORT = "answer=Certainly.%20One%20moment."
# One quick, one slow, one over noise, one over babble, each by another voice.
UNDERSTOOD = ("open-sunday", "vegetarian_rms", "two-pizzas", "parking_slt")


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


async def test_recordings_are_understood_and_answered(
    subtests: pytest.Subtests, tmp_path: Path
) -> None:
    """Each is transcribed, answered by the faster of two providers, and leaves no request open.

    What is learned of simulated providers is not kept.
    """
    models = f"fixed?ttft=0.15&{SHORT} fixed?ttft=0.6&{SHORT}"
    options = {"SIMULATED_MODELS": models, "HEDGE_POLICY": "race", "TURN_DETECTION": "0"}
    kept = tmp_path / "stats.json"
    async with (
        BotProcess(PIPECAT_HEDGE_STATS=str(kept), **options) as bot,
        Caller(bot.url) as caller,
    ):
        await greeted(caller)
        for spoken in map(recording, UNDERSTOOD):
            with subtests.test(spoken.name):
                before = len(caller.messages)
                said = await caller.say(spoken)
                heard_at = await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
                inputs = [
                    (number, message["data"]["text"])
                    for number, message in enumerate(caller.messages)
                    if number >= before and message["type"] == "user-input"
                ]
                assert [w for _, text in inputs for w in words(text)] == words(
                    spoken.transcript or ""
                )
                last, _ = inputs[-1]
                turn = await turn_report(caller, last)
                assert (turn["outcome"], turn["winner"]) == ("answered", "openai:fixed")
                assert turn["ttft_secs"] >= 0.15
                outcomes = {a["provider"]: a["outcome"] for a in turn["attempts"]}
                assert outcomes == {"openai:fixed": "won", "anthropic:fixed": "superseded"}
                assert (await bot.ledger())["open"] == 0
                await heard_out(caller, heard_at, since=last)
        requests = (await bot.ledger())["requests"]
        assert {request["outcome"] for request in requests} == {"completed", "aborted"}
    assert not kept.exists()


async def test_conversation_over_a_broken_provider() -> None:
    """A pause does not end the turn, the second provider answers, and an interruption is obeyed.

    The first provider rejects every request. The caller books a table with a pause in
    mid-sentence, asks something, interrupts the answer to cancel, and is still there when the
    bot is ended with Ctrl-C.
    """
    paused = recording("book-table_en-gb_pause")
    models = "fixed?fault=529 fixed?ttft=0.2"
    async with (
        BotProcess(SIMULATED_MODELS=models, HEDGE_POLICY="fallback", TURN_DETECTION="1.2") as bot,
        Caller(bot.url) as caller,
    ):
        await greeted(caller)

        # The whole sentence is one turn: the tool is called, and its result is spoken about.
        before = len(caller.messages)
        said = await caller.say(paused)
        heard_at = await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        await turn_report(caller, before)
        asked = [m["data"]["text"] for m in caller.messages[before:] if of_type("user-llm-text")(m)]
        assert words(asked[0]) == words(paused.transcript or "")
        turns = [message["data"] for message in caller.messages[before:] if is_turn(message)]
        assert [turn["outcome"] for turn in turns] == ["answered_with_tools", "answered"]
        for turn in turns:
            outcomes = [(a["provider"], a["outcome"]) for a in turn["attempts"]]
            assert outcomes == [("openai:fixed", "failed"), ("anthropic:fixed", "won")]
        await heard_out(caller, heard_at, since=before)

        # The caller speaks over the answer: the bot falls silent, then answers what was said.
        said = await caller.say(recording("open-sunday"))
        await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        before = len(caller.messages)
        said = await caller.say(recording("cancel-that"))
        interrupted = of_type("bot-interrupted")
        await caller.message("this", interrupted, since=before, timeout_secs=HEARD_SECS)
        spoken = [m["type"] for m in caller.messages[before:] if m["type"].startswith("bot-")]
        assert "bot-stopped-speaking" not in spoken[: spoken.index("bot-interrupted")]
        silent_at = await caller.wait_until_silent(said.began_at, timeout_secs=HEARD_SECS)
        heard_at = await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        assert silent_at < heard_at
        await turn_report(caller, before)
        calls = [m["data"] for m in caller.messages if of_type("llm-function-call-started")(m)]
        assert [call["function_name"] for call in calls] == ["book_table", "cancel_booking"]
        assert (await bot.ledger())["open"] == 0

        # Ctrl-C ends the bot although the caller is still connected, and the caller learns of it.
        assert await bot.stop() == 0
        ended = of_type("signalling")
        await caller.message("the end", ended, since=before, timeout_secs=HEARD_SECS)
    logged = "\n".join(line for line in bot.lines if "| DEBUG" not in line)
    assert "Sunday" not in logged
    assert "seven" not in logged


async def test_filler_is_spoken_before_a_slow_answer() -> None:
    """The answer follows whole, and the filler is not remembered.

    Then the caller speaks into a filler: it ends at once, and the turn after it works.
    """
    answer, asking = "We are open till nine.", recording("open-sunday")
    models = f"fixed?ttft=2.5&answer={answer.replace(' ', '%20')}"
    async with (
        BotProcess(SIMULATED_MODELS=models, HEDGE_POLICY="fallback", TURN_DETECTION="0") as bot,
        Caller(bot.url) as caller,
    ):
        await greeted(caller)
        before = len(caller.messages)
        said = await caller.say(asking)
        heard_at = await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        turn = await turn_report(caller, before)
        assert 0.75 < turn["filler"]["spoken_secs"] < 2.0, "before much has been learned"
        assert turn["ttft_secs"] >= 2.5
        assert turn["first_sound_secs"] < turn["voice_to_voice_secs"] - 1.0
        assert heard_at - said.ended_at < turn["voice_to_voice_secs"]
        await heard_out(caller, heard_at, since=before)
        texts = [m["data"]["text"] for m in caller.messages[before:] if m["type"] == "bot-llm-text"]
        assert "".join(texts) == answer

        said = await caller.say(asking)
        await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        before = len(caller.messages)
        said = await caller.say(recording("cancel-that"))
        silent_at = await caller.wait_until_silent(said.began_at, timeout_secs=HEARD_SECS)
        assert silent_at < said.ended_at
        await caller.message("the report", is_turn, since=before, timeout_secs=HEARD_SECS)
        assert (await turn_report(caller, before))["outcome"] == "answered"
