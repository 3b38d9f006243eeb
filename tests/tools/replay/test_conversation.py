"""Conversations with a bot whose delays are known, and whole replays."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.replay import (
    RATE,
    Call,
    Caller,
    CallError,
    Network,
    Replay,
    TurnResult,
    Utterance,
    replay,
)
from pipecat_hedge.tools.replay.bots import Bot
from pipecat_hedge.tools.replay.conversation import Conversation
from pipecat_hedge.tools.replay.peer import SpeechTimes
from tests.tools.replay.scripted_bot import ScriptedBot

pytestmark = [pytest.mark.live, pytest.mark.realtime]

RECEIVE_BUFFER_SECS = 0.08
"""What aiortc's receiver holds back: four packets."""


def utterance(name: str = "tone", secs: float = 0.4, *, interrupts: bool = False) -> Utterance:
    """A tone between two short silences."""
    lead = round(0.1 * RATE)
    at = np.arange(round(secs * RATE)) / RATE
    tone = np.round(9000 * np.sin(2 * np.pi * 440 * at)).astype(np.int16)
    samples = np.concatenate((np.zeros(lead, np.int16), tone, np.zeros(lead, np.int16)))
    return Utterance(name, samples, lead, lead + len(tone) - 1, interrupts=interrupts)


def message(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


def record(answer: float | None, sound: float) -> dict[str, Any]:
    """A bot's own record of a turn."""
    times = {"voice_to_voice_secs": answer, "first_sound_secs": sound}
    return message("server-message", type="turn", **times)


@asynccontextmanager
async def conversation(*messages: dict[str, Any], **options: Any) -> AsyncIterator[Conversation]:
    """A conversation with a bot that sends these messages in each turn."""
    async with (
        ScriptedBot(messages=lambda turn: [*messages], **options) as bot,
        Caller(bot.url) as caller,
    ):
        yield Conversation(caller, run=2, number=3)


async def test_measured_latency_is_the_bots_delay(capsys: pytest.CaptureFixture[str]) -> None:
    """To within 40 ms, over two calls at a time, whatever the bot's delay."""
    errors: list[float] = []

    class RecordingCaller(Caller):
        async def say(self, utterance: Utterance) -> SpeechTimes:
            self.said = await super().say(utterance)
            return self.said

    async def call() -> None:
        async with (
            ScriptedBot(lambda turn: 0.05 + 0.13 * turn, speaks_secs=0.3) as bot,
            RecordingCaller(bot.url) as caller,
        ):
            spoken_with = Conversation(caller)
            for _ in range(5):
                turn = await spoken_with.say(utterance())
                truth = bot.voices[0].first_loud_at[-1] - caller.said.ended_at
                assert turn.voice_to_voice_secs is not None
                errors.append(turn.voice_to_voice_secs - truth - RECEIVE_BUFFER_SECS)

    async with asyncio.TaskGroup() as calls:
        calls.create_task(call())
        calls.create_task(call())
    with capsys.disabled():
        print(
            f"\nvoice to voice, measured against the truth: {1000 * statistics.mean(errors):+.0f} "
            f"ms, standard deviation {1000 * statistics.stdev(errors):.0f} ms"
        )
    assert abs(statistics.median(errors)) <= 0.04


async def test_turn_has_the_bots_messages_and_both_waves() -> None:
    messages = [
        message("user-transcription", text="open on sunday?", final=True),
        *({"type": kind} for kind in ("user-stopped-speaking", "bot-llm-started")),
        {"type": "bot-tts-started"},
        message("bot-llm-text", text="Till nine."),
        {"type": "bot-llm-stopped"},
        record(1.9, 0.6),
    ]
    async with conversation(*messages) as spoken_with:
        turn = await spoken_with.say(utterance("open", 0.6))
    assert (turn.recording, turn.run, turn.caller, turn.error) == ("open", 2, 3, None)
    assert (turn.understood_text, turn.answer_text) == ("open on sunday?", "Till nine.")
    assert list(turn.stages) == ["turn_end", "llm_started", "first_text"], "speech: the filler's"
    assert turn.first_sound_secs is not None
    assert turn.voice_to_voice_secs is not None
    assert turn.voice_to_voice_secs == pytest.approx(turn.first_sound_secs + 1.3), "a filler first"
    assert turn.record is not None
    waves = turn.waves
    assert waves is not None
    assert waves.audible_secs is not None
    assert waves.secs > waves.spoken_secs + turn.voice_to_voice_secs, "the answer is shown"
    rate = len(waves.caller) / waves.secs
    spoken, heard = round(waves.spoken_secs * rate), round(waves.audible_secs * rate)
    assert waves.caller[spoken - 5] > 0.1 > waves.caller[spoken + 3]
    assert max(waves.bot[heard : heard + 2]) > 0.1 > waves.bot[heard - 4], "more may come late"


async def test_filler_without_an_answer_is_no_answer() -> None:
    filler = message("bot-output", text="One moment.")
    async with conversation(filler, record(None, 0.6)) as spoken_with:
        turn = await spoken_with.say(utterance())
    assert turn.error == "a filler was heard, but no answer"
    assert (turn.answer_text, turn.voice_to_voice_secs) == ("", None)
    assert turn.first_sound_secs is not None


@pytest.mark.parametrize("written", ["", "We are open"])
async def test_answer_that_never_ends_is_no_answer(written: str) -> None:
    """The LLM hangs behind a filler, or during its answer."""
    text = [message("bot-llm-text", text=written)] if written else []
    messages = [{"type": "bot-llm-started"}, *text, message("bot-output", text="One moment.")]
    turns: list[TurnResult] = []
    async with (
        ScriptedBot(messages=lambda turn: messages, speaks_secs=0.3) as bot,
        Call(Bot(bot.url), greeting_secs=0, timeout_secs=1.2, on_turn=turns.append) as call,
    ):
        with pytest.raises(CallError, match=r"tone: a sound was heard .* did not finish"):
            await call.say(utterance())
    (turn,) = turns
    assert (turn.answer_text, turn.voice_to_voice_secs) == (written, None)
    assert turn.first_sound_secs is not None


async def test_interrupted_filler_is_no_answer() -> None:
    """The bot's record of the interrupted turn comes during the interruption."""
    async with (
        ScriptedBot(
            speaks_secs=6.0,
            messages=lambda turn: [record(0.9, 0.9)] if turn == 2 else [],
            when_interrupted=record(None, 0.6),
        ) as bot,
        Caller(bot.url) as caller,
    ):
        first, second = await Conversation(caller).say_and_interrupt(utterance("a"), utterance("b"))
    assert first.voice_to_voice_secs is None
    assert first.first_sound_secs is not None
    assert first.error == "a filler was heard, but no answer before the interruption"
    assert second.error is None
    assert second.voice_to_voice_secs == second.first_sound_secs


async def test_interruption_of_silence_is_a_turn() -> None:
    """The answer was over before it could be interrupted."""
    async with conversation(speaks_secs=0.2) as spoken_with:
        _, second = await spoken_with.say_and_interrupt(utterance("a"), utterance("b"))
    assert second.silent_after_secs is second.error is None


async def test_bot_that_cuts_in_has_a_negative_latency() -> None:
    one, pause = utterance(), np.zeros(round(1.4 * RATE), np.int16)
    samples = np.concatenate((one.samples, pause, one.samples // 40))
    spoken = Utterance("pause", samples, one.speech_begins, len(samples) - 1)
    async with conversation(delay_secs=lambda turn: 0.0, speaks_secs=2.5) as spoken_with:
        turn = await spoken_with.say(spoken)
    assert (turn.voice_to_voice_secs or 0) < 0


# ---- whole replays


async def test_replay_makes_a_call_for_each_run_and_caller() -> None:
    reported: list[TurnResult] = []
    async with ScriptedBot(speaks_secs=0.3) as bot:
        wanted = Replay(
            bot.url,
            (utterance("a"), utterance("b", interrupts=True), utterance("c")),
            runs=2,
            callers=2,
            greeting_secs=0.2,
            network=Network(loss=0.02, jitter_secs=0.01),
        )
        turns = await replay(wanted, on_turn=reported.append)
    assert [(t.caller, t.run, t.recording) for t in turns] == [
        (caller, run, name) for caller in (1, 2) for run in (1, 2) for name in "abc"
    ]
    assert [t.error for t in turns] == [None] * 12
    assert len(reported) == wanted.turns == 12
    assert len(bot.voices) == 4


async def test_replay_interrupts_every_answer() -> None:
    async with ScriptedBot(speaks_secs=5.0) as bot:
        stop = utterance("stop", 0.2)
        wanted = Replay(bot.url, (utterance("a"),), greeting_secs=0, interrupt_with=stop)
        turns = await replay(wanted)
    first, second = turns
    assert (first.recording, second.recording, wanted.turns) == ("a", "stop", 2)
    assert first.error is second.error is first.silent_after_secs is None
    assert 0 < (second.silent_after_secs or 0) < 2.0
    assert (second.voice_to_voice_secs or 0) > 0.3


async def test_replay_goes_on_after_a_silent_answer() -> None:
    async with ScriptedBot(answers=False) as bot:
        script = (utterance("a"), utterance("b"))
        turns = await replay(Replay(bot.url, script, greeting_secs=0, timeout_secs=1.0))
    assert [t.error for t in turns] == ["the bot was silent for 1 s"] * 2
    assert [t.voice_to_voice_secs for t in turns] == [None, None]
    assert turns[0].waves is not None, "what was said is shown all the same"


async def test_replay_makes_the_next_call_after_a_hang_up() -> None:
    async with ScriptedBot(hangs_up_after=1, speaks_secs=0.3) as bot:
        script = (utterance("a"), utterance("b"), utterance("c"))
        turns = await replay(Replay(bot.url, script, runs=2, greeting_secs=0))
    assert [t.error for t in turns] == [None, "the bot hung up", "the bot hung up"] * 2


async def test_replay_without_a_bot_is_an_error(unused_tcp_port: int) -> None:
    wanted = Replay(f"http://127.0.0.1:{unused_tcp_port}", (utterance(),), callers=3)
    with pytest.raises(CallError, match="nothing answers at"):
        await replay(wanted)
    assert len(asyncio.all_tasks()) == 1
    with pytest.raises(ConfigurationError, match="script is empty"):
        Replay(wanted.url, ())
