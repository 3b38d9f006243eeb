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
async def test_line_that_sounds_after_the_llm_was_asked_is_no_answer(
    make: Any, remembered: bool
) -> None:
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


async def test_sound_that_is_no_speech_is_no_answer() -> None:
    async with Phone(hedged(ANSWER)) as phone:
        await phone.speak()
        await asyncio.sleep(0.2)
        await phone.voice.push_frame(OutputAudioRawFrame(b"\1\1" * round(0.1 * RATE), RATE, 1))
        turn = await phone.answered()
    assert turn.first_sound_secs == pytest.approx(0.3 + 0.2, abs=2 * CHUNK)
    assert turn.first_answer_secs == pytest.approx(1.1)
    assert turn.filler_end_secs is None


SLOW: list[Step] = [Wait(0.4), Say("We are "), Wait(2.0), Say("open. "), Say("Till nine.")]


@both
@pytest.mark.parametrize(
    ("script", "mode", "line_secs", "answer_secs"),
    [
        ([Wait(2.0), *ANSWER], TextAggregationMode.SENTENCE, 0.5, 2.7),
        ([Wait(2.0), *ANSWER], TextAggregationMode.TOKEN, 0.5, 2.4),
        (SLOW, TextAggregationMode.SENTENCE, 1.0, 2.4),
    ],
    ids=["before the text", "before the text, by tokens", "before the sentence"],
)
async def test_line_in_the_middle_of_an_answer_is_no_answer(
    make: Any, script: Any, mode: TextAggregationMode, line_secs: float, answer_secs: float
) -> None:
    async with Phone(make(script), voice=Voice(0.1, text_aggregation_mode=mode)) as phone:
        await phone.speak()
        await asyncio.sleep(line_secs)
        await phone.voice.queue_frame(TTSSpeakFrame("One moment."))
        turn = await phone.answered()
    assert turn.first_sound_secs == pytest.approx(0.3 + line_secs + 0.1)
    assert turn.first_answer_secs == pytest.approx(0.3 + answer_secs + 0.1)
    assert turn.first_tts_audio_secs == turn.first_answer_secs


@both
async def test_second_request_while_the_answer_sounds_has_its_own_record(make: Any) -> None:
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


async def test_pause_of_a_bare_service_does_not_end_the_turn() -> None:
    """It may still be interrupted."""
    slow: list[Step] = [Wait(0.4), Say("We are open. "), Say("So "), Wait(5.0), Say("come.")]
    async with Phone(ScriptedLLMService(slow)) as phone:
        await phone.speak()
        await asyncio.sleep(3.0)
        assert phone.told == []
        turn = await phone.answered()
    assert len(phone.told) == 1
    assert turn.first_answer_secs == pytest.approx(0.8, abs=0.01)


def test_speech_to_speech_model_says_only_answers() -> None:
    audio, model = AnswerAudio(), ScriptedLLMService(ANSWER)
    for turn in (1, 2):
        audio.audio_started(TTSStartedFrame(), model, turn)
        assert audio.turn_of(None) == turn


def test_interruption_forgets_what_was_queued() -> None:
    """The same words may be an answer then."""
    audio, voice = AnswerAudio(), Voice()
    audio.frame_queued(TTSSpeakFrame("One moment."))
    audio.interrupted()
    audio.audio_started(TTSStartedFrame(context_id="a"), voice, 1)
    assert audio.is_line("a")
    assert audio.turn_of("b") is None
