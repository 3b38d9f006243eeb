"""Which sounds are the answer: a line of the bot's own is none, whenever it sounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pipecat.frames.frames import (
    LLMContextFrame,
    OutputAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.tts_service import TextAggregationMode

from pipecat_hedge.testing import Say, ScriptedLLMService, Step, Wait
from pipecat_hedge.voice.answer_audio import AnswerAudio
from tests.voice.test_filler import RATE, Voice
from tests.voice.test_turn_latency import ANSWER, CHUNK, Phone, hedged

pytestmark = pytest.mark.virtual_time

both = pytest.mark.parametrize("make", [hedged, ScriptedLLMService])


@both
@pytest.mark.parametrize("remembered", [True, False])
async def test_a_line_that_sounds_after_the_llm_was_asked(make: Any, remembered: bool) -> None:
    """A greeting's answer is the LLM's own, behind the line."""
    async with Phone(make(ANSWER)) as phone:
        phone.voice.audio_secs = 2.0
        await phone.line.send(TTSSpeakFrame("Hello there.", append_to_context=remembered))
        await phone.line.send(LLMContextFrame(LLMContext()))
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.first_sound_secs == pytest.approx(0.1)
    assert turn.first_token_secs == pytest.approx(0.4)
    assert turn.first_tts_audio_secs == pytest.approx(0.8)
    assert turn.first_answer_secs == pytest.approx(2.1, abs=2 * CHUNK)
    assert turn.filler_end_secs == pytest.approx(2.1, abs=2 * CHUNK)


async def test_a_sound_that_is_no_speech() -> None:
    """Is heard first, and is no answer."""
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak()
        await asyncio.sleep(0.2)
        await phone.voice.push_frame(OutputAudioRawFrame(b"\1\1" * round(0.1 * RATE), RATE, 1))
        turn = await phone.answered()
    assert turn.first_sound_secs == pytest.approx(0.3 + 0.2, abs=2 * CHUNK)
    assert turn.first_answer_secs == pytest.approx(1.1)
    assert turn.filler_end_secs is None


@both
@pytest.mark.parametrize("mode", list(TextAggregationMode))
async def test_a_line_in_the_middle_of_an_answer(make: Any, mode: TextAggregationMode) -> None:
    """Which goes into the conversation between the LLM's start and end, before its words."""
    voice = Voice(0.1, text_aggregation_mode=mode)
    async with Phone(make([Wait(2.0), *ANSWER]), voice=voice) as phone:
        await phone.speak()
        await asyncio.sleep(0.5)
        await phone.voice.queue_frame(TTSSpeakFrame("One moment."))
        turn = await phone.answered()
    sentence_secs = 0.0 if mode is TextAggregationMode.TOKEN else 0.3
    assert turn.first_sound_secs == pytest.approx(0.3 + 0.5 + 0.1)
    assert turn.first_tts_audio_secs == pytest.approx(0.3 + 2.4 + sentence_secs + 0.1)
    assert turn.first_answer_secs == pytest.approx(0.3 + 2.4 + sentence_secs + 0.1)


async def test_a_line_between_the_first_words_and_the_first_sentence() -> None:
    """Is announced, and so is known."""
    slow: list[Step] = [Wait(0.4), Say("We are "), Wait(2.0), Say("open. "), Say("Till nine.")]
    async with Phone(ScriptedLLMService(slow)) as phone:
        await phone.speak()
        await asyncio.sleep(1.0)
        await phone.voice.queue_frame(TTSSpeakFrame("Let me see."))
        turn = await phone.answered()
    assert turn.first_sentence_secs == pytest.approx(0.3 + 2.4)
    assert turn.first_answer_secs == pytest.approx(0.3 + 2.4 + 0.1)


async def test_a_bare_service_that_is_asked_again_while_it_is_heard() -> None:
    """Two records, as with a hedged one; the second counts from its own asking."""
    for make in (hedged, ScriptedLLMService):
        async with Phone(make(ANSWER)) as phone:
            phone.voice.audio_secs = 2.0
            await phone.speak()
            await asyncio.sleep(1.0)
            await phone.line.send(LLMContextFrame(LLMContext()))
            await phone.answered()
        first, second = phone.told
        assert first.voice_to_voice_secs == pytest.approx(1.1)
        assert not first.interrupted
        assert second.anchor == "context"
        assert second.first_tts_audio_secs == pytest.approx(0.8)
        assert second.first_answer_secs == pytest.approx(3.1 - 1.3, abs=2 * CHUNK)


async def test_a_bare_service_that_pauses() -> None:
    """Has not finished when the bot falls silent: the turn may still be interrupted."""
    slow: list[Step] = [Wait(0.4), Say("We are open. "), Say("So "), Wait(5.0), Say("come.")]
    async with Phone(ScriptedLLMService(slow)) as phone:
        await phone.speak()
        await asyncio.sleep(3.0)
        assert phone.told == []
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.first_answer_secs == pytest.approx(0.8, abs=0.01)


def test_a_model_that_speaks_for_itself() -> None:
    """Says nothing but the answer; it may tell of it only behind its first sound."""
    audio, model = AnswerAudio(), ScriptedLLMService(ANSWER)
    audio.audio_started(TTSStartedFrame(), model, 1)
    assert audio.turn_of(None) == 1
    audio.audio_started(TTSStartedFrame(), model, 2)
    assert audio.turn_of(None) == 2


def test_what_an_interruption_takes_away() -> None:
    """Is not waited for: the same words may be an answer then."""
    audio, voice = AnswerAudio(), Voice()
    audio.frame_queued(TTSSpeakFrame("One moment."))
    audio.interrupted()
    audio.audio_started(TTSStartedFrame(context_id="a"), voice, 1)
    assert audio.is_line("a")
    assert audio.turn_of("b") is None
