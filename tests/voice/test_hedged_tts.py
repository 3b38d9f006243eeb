"""``HedgedTTSService``: a sentence that stays silent is said by another voice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from pipecat.services.tts_service import TTSService

from pipecat_hedge import ProviderStats
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.voice import HedgedTTSService, Voice
from tests.support.call import RATE, PhoneCall
from tests.support.speech import Listener, Says, ScriptedVoice, bare

pytestmark = pytest.mark.virtual_time

SENTENCES = (
    "We are open until nine tonight.",
    "Our kitchen closes half an hour before.",
    "Would you like to book a table?",
)
ANSWER = " ".join(SENTENCES)
SILENT = Says(after_secs=None)


class Spoken:
    """A call whose answers are spoken."""

    def __init__(self, tts: TTSService, answers: Sequence[str] = (ANSWER,)):
        self.ear = Listener()
        llm = ScriptedLLMService(*([Say(each)] for each in answers))
        self.call = PhoneCall(llm, voice=tts, speaker=self.ear)


def hedged(*scripts: Callable[[int], Says], **options: object) -> HedgedTTSService:
    """Voices of the same sound."""
    voices = [
        Voice(f"voice-{n}", ScriptedVoice(script, **options), same_voice=True)
        for n, script in enumerate(scripts)
    ]
    return HedgedTTSService(voices, stats=ProviderStats(), sample_rate=RATE)


def only(*numbers: int, says: Says = SILENT) -> Callable[[int], Says]:
    """Some requests are answered so, the others well."""
    return lambda number: says if number in numbers else Says()


def voices_of(tts: HedgedTTSService) -> list[ScriptedVoice]:
    return [each.service for each in tts._voices]  # pyright: ignore


@pytest.mark.parametrize("times_words", [True, False])
async def test_every_sentence_is_heard_once_and_remembered(times_words: bool) -> None:
    tts = hedged(lambda _: Says(), lambda _: Says(), times_words=times_words)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert not voices_of(tts)[1].asked
        assert not call.line.errors


@pytest.mark.parametrize("times_words", [True, False])
@pytest.mark.parametrize("silent", [0, 1, 2])
async def test_a_silent_sentence_is_said_by_the_other_connection(
    silent: int, times_words: bool
) -> None:
    tts = hedged(only(silent), lambda _: Says(), times_words=times_words)
    spoken = Spoken(tts)
    async with spoken.call as call:
        await call.ask()
        assert spoken.ear.text() == bare(ANSWER)
        assert call.remembered == [ANSWER]
        assert [text for _, text in voices_of(tts)[1].asked] == [SENTENCES[silent]]
        gaps = spoken.ear.gaps()
        assert all(gap < 0.3 for gap in gaps)
