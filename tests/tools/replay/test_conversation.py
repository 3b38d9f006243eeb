"""A caller made of recordings, and a bot whose delays are known: what is measured is what was."""

from __future__ import annotations

import asyncio
import statistics
from typing import Any

import numpy as np
import pytest

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay.bot import Bot
from pipecat_hedge.tools.replay.call import Call
from pipecat_hedge.tools.replay.caller import Caller, CallError, Said
from pipecat_hedge.tools.replay.conversation import Conversation, HeardTurn
from pipecat_hedge.tools.replay.network import Network
from pipecat_hedge.tools.replay.replaying import Replay, replay
from pipecat_hedge.tools.replay.sound import RATE, Utterance
from tests.tools.replay.scripted_bot import ScriptedBot

pytestmark = [pytest.mark.live, pytest.mark.realtime]

EAR_BUFFER_SECS = 0.08
"""What aiortc's receiver holds back: four packets."""


def utterance(name: str = "tone", secs: float = 0.4, *, interrupts: bool = False) -> Utterance:
    """A tone between two short silences."""
    lead = round(0.1 * RATE)
    at = np.arange(round(secs * RATE)) / RATE
    tone = np.round(9000 * np.sin(2 * np.pi * 440 * at)).astype(np.int16)
    samples = np.concatenate((np.zeros(lead, np.int16), tone, np.zeros(lead, np.int16)))
    return Utterance(name, samples, lead, lead + len(tone) - 1, interrupts=interrupts)


class Spoken(Caller):
    """A caller that remembers when it spoke."""

    def __init__(self, url: str):
        super().__init__(url)
        self.said: list[Said] = []

    async def say(self, utterance: Utterance) -> Said:
        self.said.append(await super().say(utterance))
        return self.said[-1]


async def test_what_is_measured_is_what_was(capsys: pytest.CaptureFixture[str]) -> None:
    """To within 40 ms, over two calls, whatever the bot's delay."""
    errors: list[float] = []
    for call in range(2):
        async with (
            ScriptedBot(lambda turn: 0.05 + 0.13 * turn, speaks_secs=0.3) as bot,
            Spoken(bot.url) as caller,
        ):
            conversation = Conversation(caller)
            for _ in range(5):
                turn = await conversation.say(utterance())
                truth = bot.voices[0].first_loud_at[-1] - caller.said[-1].ended_at
                assert turn.voice_to_voice_secs is not None
                errors.append(turn.voice_to_voice_secs - truth - EAR_BUFFER_SECS)
        assert len(bot.voices) == 1, call
    spread = statistics.stdev(errors)
    with capsys.disabled():
        print(
            f"\nvoice to voice, measured against the truth: {1000 * statistics.mean(errors):+.0f} "
            f"ms, standard deviation {1000 * spread:.0f} ms"
        )
    assert abs(statistics.median(errors)) <= 0.04


async def test_a_turn_and_what_the_bot_tells_of_it() -> None:
    """Its words, its stages and its own record, from its messages; the waves of both sides."""

    def messages(turn: int) -> list[dict[str, Any]]:
        return [
            {"type": "user-transcription", "data": {"text": "open on sunday?", "final": True}},
            {"type": "user-stopped-speaking"},
            {"type": "bot-llm-started"},
            {"type": "bot-tts-started"},
            {"type": "bot-llm-text", "data": {"text": "Till nine."}},
            {"type": "bot-llm-stopped"},
            {
                "type": "server-message",
                "data": {"type": "turn", "voice_to_voice_secs": 1.9, "first_sound_secs": 0.6},
            },
        ]

    async with ScriptedBot(messages=messages) as bot, Caller(bot.url) as caller:
        turn = await Conversation(caller, run=2, number=3).say(utterance("open", 0.6))
    assert (turn.recording, turn.run, turn.caller, turn.error) == ("open", 2, 3, None)
    assert turn.understood_text == "open on sunday?"
    assert turn.answer_text == "Till nine."
    assert list(turn.stages) == ["turn_end", "llm_started", "first_text"], "speech: the filler's"
    assert turn.first_sound_secs is not None
    assert turn.voice_to_voice_secs == pytest.approx(turn.first_sound_secs + 1.3), "a filler first"
    assert turn.record is not None
    waves = turn.waves
    assert waves is not None
    assert waves.heard_secs is not None
    answered = waves.spoken_secs + (turn.voice_to_voice_secs or 0.0)
    assert waves.secs > answered, "the answer is in the picture"
    rate = len(waves.caller) / waves.secs
    spoken, heard = round(waves.spoken_secs * rate), round(waves.heard_secs * rate)
    assert waves.caller[spoken - 5] > 0.1 > waves.caller[spoken + 3]
    assert max(waves.bot[heard : heard + 2]) > 0.1 > waves.bot[heard - 4], "more may come late"
    assert spoken < heard


async def test_a_filler_without_an_answer_is_no_answer() -> None:
    """The bot's record says that the sound was none."""

    def messages(turn: int) -> list[dict[str, Any]]:
        record = {"type": "turn", "voice_to_voice_secs": None, "first_sound_secs": 0.6}
        return [
            {"type": "bot-output", "data": {"text": "One moment."}},
            {"type": "server-message", "data": record},
        ]

    async with ScriptedBot(messages=messages) as bot, Caller(bot.url) as caller:
        turn = await Conversation(caller).say(utterance())
    assert turn.error == "a filler was heard, but no answer"
    assert turn.answer_text == "", "its words are no answer either"
    assert turn.voice_to_voice_secs is None
    assert turn.first_sound_secs is not None


@pytest.mark.parametrize("written", ["", "We are open"])
async def test_an_answer_that_never_ends_is_none(written: str) -> None:
    """The LLM hangs behind a filler, or in mid-answer: a sound was heard, and no record comes."""

    def messages(turn: int) -> list[dict[str, Any]]:
        text = [{"type": "bot-llm-text", "data": {"text": written}}] if written else []
        filler = {"type": "bot-output", "data": {"text": "One moment."}}
        return [{"type": "bot-llm-started"}, *text, filler]

    async with ScriptedBot(messages=messages, speaks_secs=0.3) as bot:
        async with Caller(bot.url) as caller:
            turn = await Conversation(caller, timeout_secs=1.2).say(utterance())
        assert turn.error == (
            "a sound was heard (a filler perhaps), but the bot did not finish its answer within "
            "1.2 s"
        )
        assert turn.voice_to_voice_secs is None
        assert turn.first_sound_secs is not None
        assert turn.answer_text == written
        async with Call(Bot(bot.url), greeting_secs=0, timeout_secs=1.2) as call:
            with pytest.raises(CallError, match=r"tone: a sound was heard .* did not finish"):
                await call.say(utterance())


async def test_an_interruption() -> None:
    """How long until the bot is silent, and what it answers then."""
    async with ScriptedBot(speaks_secs=6.0) as bot, Caller(bot.url) as caller:
        conversation = Conversation(caller)
        first, second = await conversation.say_and_interrupt(utterance("a"), utterance("b"))
    assert first.error is second.error is None
    assert first.silent_after_secs is None
    assert second.silent_after_secs is not None
    assert 0 < second.silent_after_secs < 2.0
    assert second.voice_to_voice_secs is not None
    assert second.voice_to_voice_secs > 0.3


async def test_an_interruption_of_a_filler() -> None:
    """The bot tells of the turn that was cut off after the interruption: it had no answer."""

    def messages(turn: int) -> list[dict[str, Any]]:
        return [
            {"type": "server-message", "data": {"type": "turn", "turn": turn, **record}}
            for record in records[turn]
        ]

    unanswered = {"voice_to_voice_secs": None, "first_sound_secs": 0.6}
    answered = {"voice_to_voice_secs": 0.9, "first_sound_secs": 0.9}
    records: dict[int, list[dict[str, Any]]] = {1: [], 2: [answered]}
    async with ScriptedBot(speaks_secs=6.0, messages=messages) as bot, Caller(bot.url) as caller:
        conversation = Conversation(caller)

        async def tell() -> None:
            """As the bot would when it is interrupted."""
            silent = caller.ear.heard
            async with silent:
                await silent.wait_for(lambda: len(caller.microphone.late_secs) > begun + 5)
            caller.messages.append(
                {
                    "type": "server-message",
                    "data": {"type": "turn", "turn": 1, **unanswered},
                    "received_at": asyncio.get_running_loop().time(),
                }
            )

        asked = await conversation._ask(utterance("a"))
        assert asked.heard_at is not None
        await conversation._spoken_for(asked.heard_at, 0.8)
        begun = len(caller.microphone.late_secs)
        _, by = await asyncio.gather(tell(), conversation._ask(utterance("b"), interrupts=True))
        await conversation._hear_out(by)
        first, second = conversation._heard(asked, by), conversation._heard(by)
    assert first.voice_to_voice_secs is None
    assert first.first_sound_secs is not None
    assert first.error == "a filler was heard, but no answer before the interruption"
    assert second.voice_to_voice_secs == second.first_sound_secs
    assert second.error is None


async def test_an_interruption_of_nothing_is_a_turn() -> None:
    """The answer was over before it could be interrupted."""
    async with ScriptedBot(speaks_secs=0.2) as bot, Caller(bot.url) as caller:
        _, second = await Conversation(caller).say_and_interrupt(utterance("a"), utterance("b"))
    assert second.silent_after_secs is None
    assert second.error is None


async def test_a_bot_that_does_not_let_the_caller_finish() -> None:
    """It is heard before the caller's last sound: the latency is negative."""
    async with ScriptedBot(lambda turn: 0.0, speaks_secs=2.5) as bot, Caller(bot.url) as caller:
        pause = np.zeros(round(1.4 * RATE), np.int16)
        one, quiet = utterance(), utterance().samples // 40
        samples = np.concatenate((one.samples, pause, quiet))
        spoken = Utterance("pause", samples, one.speech_begins, len(samples) - 1)
        turn = await Conversation(caller).say(spoken)
    assert turn.voice_to_voice_secs is not None
    assert turn.voice_to_voice_secs < 0


# ---- whole replays


async def test_runs_and_callers() -> None:
    """Every caller says everything in every run, and each turn is told of."""
    told: list[HeardTurn] = []
    async with ScriptedBot(speaks_secs=0.3) as bot:
        wanted = Replay(
            bot.url,
            (utterance("a"), utterance("b", interrupts=True), utterance("c")),
            runs=2,
            callers=2,
            greeting_secs=0.2,
            network=Network(loss=0.02, jitter_secs=0.01),
        )
        turns = await replay(wanted, progress=told.append)
    assert [(t.caller, t.run, t.recording) for t in turns] == [
        (caller, run, name) for caller in (1, 2) for run in (1, 2) for name in "abc"
    ]
    assert [t.error for t in turns] == [None] * 12
    assert len(told) == wanted.turns == 12
    assert len(bot.voices) == 4


async def test_every_answer_can_be_interrupted() -> None:
    """With one recording, spoken into each."""
    async with ScriptedBot(speaks_secs=5.0) as bot:
        wanted = Replay(
            bot.url, (utterance("a"),), greeting_secs=0, interrupt_with=utterance("stop", 0.2)
        )
        turns = await replay(wanted)
    assert [t.recording for t in turns] == ["a", "stop"]
    assert wanted.turns == 2
    assert turns[1].silent_after_secs is not None


async def test_a_bot_that_is_silent() -> None:
    """Each turn says so, and the next one is tried."""
    async with ScriptedBot(answers=False) as bot:
        wanted = Replay(
            bot.url, (utterance("a"), utterance("b")), greeting_secs=0, timeout_secs=1.0
        )
        turns = await replay(wanted)
    assert [t.error for t in turns] == ["the bot was silent for 1 s"] * 2
    assert [t.voice_to_voice_secs for t in turns] == [None, None]
    assert turns[0].waves is not None, "what was said is shown all the same"


async def test_a_bot_that_hangs_up() -> None:
    """The rest of the call is not answered; the next call is made."""
    async with ScriptedBot(hangs_up_after=1, speaks_secs=0.3) as bot:
        wanted = Replay(
            bot.url, (utterance("a"), utterance("b"), utterance("c")), runs=2, greeting_secs=0
        )
        turns = await replay(wanted)
    assert [t.error for t in turns] == [None, "the bot hung up", "the bot hung up"] * 2


async def test_nobody_there(unused_tcp_port: int) -> None:
    """Is no turn, but an error."""
    wanted = Replay(f"http://127.0.0.1:{unused_tcp_port}", (utterance(),), callers=3)
    with pytest.raises(CallError, match="nobody answers at"):
        await replay(wanted)
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"script": ()}, "script: there is nothing to say"),
        ({"runs": 0}, "runs must be at least 1, got 0"),
        ({"callers": -1}, "callers must be at least 1, got -1"),
        ({"timeout_secs": 0.0}, r"timeout_secs must be positive, got 0\.0"),
        ({"greeting_secs": -1.0}, r"greeting_secs must not be negative, got -1\.0"),
    ],
)
def test_what_cannot_be_replayed(fields: dict[str, Any], told: str) -> None:
    """Is refused before anybody is called."""
    with pytest.raises(ConfigurationError, match=told):
        Replay(**{"url": "http://127.0.0.1:1", "script": (utterance(),), **fields})
