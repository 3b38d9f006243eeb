"""The example bot, called over real WebRTC by callers who speak the recordings in real time.

Asserts what was heard and said, and in which order, never how many milliseconds it took: that is in
the table at the end of the run, and depends on what else the machine does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipecat_hedge.tools.replay import Caller, Message, utterances
from tests.live.bot_process import BotProcess
from tests.live.conftest import Row

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(300)]

RECORDINGS = utterances([Path(__file__).parents[2] / "fixtures/audio"])
WAITS = "after 1.2 s of silence and a tool call"
HEARD_SECS = 20  # generous: the machine may be busy with something else
SHORT = "answer=Certainly.%20One%20moment."


def is_turn(message: Message) -> bool:
    return message["type"] == "server-message" and message["data"]["type"] == "turn"


def is_heard_turn(message: Message) -> bool:
    return is_turn(message) and message["data"]["voice_to_voice_secs"] is not None


def of_type(kind: str) -> Callable[[Message], bool]:
    return lambda message: message["type"] == kind


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


async def greeted(caller: Caller) -> None:
    """Hear the greeting out."""
    await caller.message("the greeting", of_type("bot-started-speaking"), timeout_secs=HEARD_SECS)
    await heard_out(caller, await caller.wait_until_audible(0, timeout_secs=HEARD_SECS))


async def heard_out(caller: Caller, heard_at: float, *, since: int = 0) -> None:
    """Wait until the bot has said what it has to say."""
    stopped = of_type("bot-stopped-speaking")
    await caller.message("the end of it", stopped, since=since, timeout_secs=HEARD_SECS)
    await caller.wait_until_silent(heard_at, timeout_secs=HEARD_SECS)


async def test_every_recording_is_understood_and_answered(
    subtests: pytest.Subtests, tabulate: Callable[[Row], None]
) -> None:
    """Each is transcribed, answered by the faster of two providers, and leaves no request open."""
    models = f"fixed?ttft=0.15&{SHORT} fixed?ttft=0.6&{SHORT}"
    in_one_breath = [recording for recording in RECORDINGS if "pause" not in recording.name]
    async with (
        BotProcess(SIMULATED_MODELS=models, HEDGE_POLICY="race", TURN_DETECTION="0") as bot,
        Caller(bot.url) as caller,
    ):
        await greeted(caller)
        for recording in in_one_breath:
            with subtests.test(recording.name):
                before = len(caller.messages)
                said = await caller.say(recording)
                heard_at = await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)

                inputs = [
                    number
                    for number, message in enumerate(caller.messages)
                    if number >= before and message["type"] == "user-input"
                ]
                said_words = [w for n in inputs for w in words(caller.messages[n]["data"]["text"])]
                assert said_words == words(recording.transcript or "")

                message = await caller.message(
                    "the turn's report", is_heard_turn, since=inputs[-1], timeout_secs=HEARD_SECS
                )
                turn = message["data"]
                assert (turn["outcome"], turn["winner"]) == ("answered", "openai:fixed")
                assert turn["ttft_secs"] >= 0.15
                outcomes = {a["provider"]: a["outcome"] for a in turn["attempts"]}
                assert outcomes == {"openai:fixed": "won", "anthropic:fixed": "superseded"}
                assert (await bot.ledger())["open"] == 0

                tabulate(
                    Row(recording.name, heard_at - said.ended_at, turn["ttft_secs"], turn["winner"])
                )
                await heard_out(caller, heard_at, since=inputs[-1])
        requests = (await bot.ledger())["requests"]
        assert {request["outcome"] for request in requests} == {"completed", "aborted"}


async def test_a_conversation_over_a_broken_provider(tabulate: Callable[[Row], None]) -> None:
    """A pause does not end the turn, the second provider answers, and an interruption is obeyed.

    The first provider refuses every request. The caller books a table with a pause in
    mid-sentence, asks something, interrupts the answer to cancel, and is still there when the
    bot is ended with Ctrl-C.
    """
    (paused,) = (recording for recording in RECORDINGS if "pause" in recording.name)
    (interrupting,) = (recording for recording in RECORDINGS if recording.interrupts)
    (asking,) = (recording for recording in RECORDINGS if recording.name.startswith("open-sunday"))
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
        turn = (
            await caller.message(
                "the turn's report", is_heard_turn, since=before, timeout_secs=HEARD_SECS
            )
        )["data"]
        asked = [m["data"]["text"] for m in caller.messages[before:] if of_type("user-llm-text")(m)]
        assert words(asked[0]) == words(paused.transcript or "")
        turns = [message["data"] for message in caller.messages[before:] if is_turn(message)]
        assert [turn["outcome"] for turn in turns] == ["answered_with_tools", "answered"]
        for each in turns:
            assert [(a["provider"], a["outcome"]) for a in each["attempts"]] == [
                ("openai:fixed", "failed"),
                ("anthropic:fixed", "won"),
            ]
        waited = heard_at - said.ended_at
        tabulate(Row(paused.name, waited, turn["ttft_secs"], turn["winner"], WAITS))
        await heard_out(caller, heard_at, since=before)

        # The caller speaks over the answer: the bot falls silent, then answers what was said.
        said = await caller.say(asking)
        await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        before = len(caller.messages)
        said = await caller.say(interrupting)
        await caller.message(
            "the interruption", of_type("bot-interrupted"), since=before, timeout_secs=HEARD_SECS
        )
        spoken = [m["type"] for m in caller.messages[before:] if m["type"].startswith("bot-")]
        assert "bot-stopped-speaking" not in spoken[: spoken.index("bot-interrupted")]
        silent_at = await caller.wait_until_silent(said.began_at, timeout_secs=HEARD_SECS)
        heard_at = await caller.wait_until_audible(said.ended_at, timeout_secs=HEARD_SECS)
        assert silent_at < heard_at
        turn = (
            await caller.message(
                "the turn's report", is_heard_turn, since=before, timeout_secs=HEARD_SECS
            )
        )["data"]
        waited = heard_at - said.ended_at
        tabulate(Row(interrupting.name, waited, turn["ttft_secs"], turn["winner"], WAITS))
        calls = [m["data"] for m in caller.messages if of_type("llm-function-call-started")(m)]
        assert [call["function_name"] for call in calls] == ["book_table", "cancel_booking"]
        assert (await bot.ledger())["open"] == 0

        # Ctrl-C ends the bot although the caller is still connected, and tells the caller.
        assert await bot.stop() == 0
        await caller.message(
            "the good-bye",
            lambda message: message["type"] == "signalling",
            since=before,
            timeout_secs=HEARD_SECS,
        )
    assert not [line for line in bot.lines if "Traceback" in line]
    told = "\n".join(line for line in bot.lines if "| DEBUG" not in line)
    assert "Sunday" not in told
    assert "seven" not in told
