"""Ten calls of 56 sentences, of which a voice leaves some silent for 7 to 19 s (pipecat, 2026-11).

Other faults and other voices have five calls of 30 sentences. Each sentence is heard once and in
its order, and is what the model is told. A rescued first sentence sounds at most the learned p99
+ 0.5 s after its text; a later one leaves at most 0.3 s of silence.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pipecat_hedge import ProviderStats
from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.testing import Say, ScriptedLLMService
from pipecat_hedge.voice import HedgedTTSService, Voice
from tests.support.call import CHUNK, RATE, PhoneCall, ask
from tests.support.speech import GAP_SECS as WORD_GAP_SECS
from tests.support.speech import LOUD, WINDOW, Listener, Says, ScriptedVoice, bare

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

WORDS = [
    *("so", "this", "is", "one", "of", "all", "the"),
    *("many", "things", "that", "we", "have", "to", "say"),
]
BACKEND = Backend("voice-0", None, measures="speech")
FIRST_SECS, GAP_SECS = 0.5, 0.3


def alike(number: int) -> str:
    return f"This is the sentence number {number} of them."


def unlike(number: int) -> str:
    """Of 2 to 16 words."""
    return f"Number {' '.join([str(number), *WORDS[: number * 5 % 15]])}."


def late(rng: random.Random) -> Says:
    return Says(after_secs=rng.uniform(7, 19))


def always(says: Says) -> Callable[[random.Random], Says]:
    return lambda _: says


@dataclass(frozen=True)
class Ledger:
    """What is different in a replay.

    Parameters:
        silent: The sentences that the first voice does not speak; None draws 7 of 56.
        trouble: How it does not.
        text: The text of a sentence.
        first: Options of the first voice.
        second: Options of the others.
        voices: How many there are; all but the last have the trouble.
        sentences: How many are said, six in a call.
        gap_secs: The longest silence between sentences, or within one.
    """

    silent: frozenset[int] | None = None
    trouble: Callable[[random.Random], Says] = late
    text: Callable[[int], str] = alike
    first: Mapping[str, Any] = field(default_factory=dict[str, Any])
    second: Mapping[str, Any] = field(default_factory=dict[str, Any])
    voices: int = 2
    sentences: int = 56
    gap_secs: float = GAP_SECS


def fewer(trouble: Callable[[random.Random], Says] = late, **options: Any) -> Ledger:
    """Five calls, in each of which the first and the fourth sentence have the trouble."""
    return Ledger(each(0, 3), trouble, sentences=30, **options)


def each(*places: int) -> frozenset[int]:
    """Some of the six sentences of each call."""
    return frozenset(6 * call + place for call in range(9) for place in places)


LEDGERS = {
    "as counted": Ledger(),
    "two in a row": Ledger(each(2, 3)),
    "first two": Ledger(each(0, 1)),
    "endless silence as sound": fewer(always(Says(only_silence=True, end_secs=None))),
    "second voice at 24 kHz": fewer(second={"sample_rate": 24000}),
    "no word times": fewer(first={"times_words": False}),
    "one at a time": fewer(first={"pause_frame_processing": True}),
    "three voices": Ledger(each(0, 3), voices=3),
    "sentences of 2 to 16 words, two in a row": Ledger(each(0, 1, 4, 5), text=unlike),
}


def sounds_of(ear: Listener) -> list[tuple[float, float]]:
    """When each word began and ended, whichever it was."""
    found: list[tuple[float, float]] = []
    for at, audio in ear.played:
        samples = np.abs(np.frombuffer(audio, np.int16).astype(int))
        loud = samples[: len(samples) // WINDOW * WINDOW].reshape(-1, WINDOW).max(axis=1) > LOUD / 2
        for number in np.flatnonzero(loud):
            begins = at + number * WINDOW / RATE
            if found and begins - found[-1][1] < WORD_GAP_SECS / 2:
                found[-1] = (found[-1][0], begins + WINDOW / RATE)
            else:
                found.append((begins, begins + WINDOW / RATE))
    return found


@pytest.mark.parametrize("name", LEDGERS)
async def test_a_silent_sentence_is_heard_once_in_time_and_remembered(name: str) -> None:
    ledger, rng, stats = LEDGERS[name], random.Random(7), ProviderStats()
    texts = [ledger.text(number) for number in range(ledger.sentences)]
    numbers = {text: number for number, text in enumerate(texts)}
    silent = set(rng.sample(range(56), 7)) if ledger.silent is None else ledger.silent
    waits, gaps, asked = list[float](), [0.0], 0
    for at in range(0, ledger.sentences, 6):
        voices = [
            ScriptedVoice(**(ledger.second if n else ledger.first)) for n in range(ledger.voices)
        ]
        for voice in voices:
            voice.script = lambda _, voice=voice, is_last=voice is voices[-1]: (
                ledger.trouble(rng)
                if not is_last and numbers.get(voice.asked[-1][1]) in silent
                else Says(after_secs=rng.lognormvariate(-1.8, 0.3))
            )
        tts = HedgedTTSService(
            [Voice(f"voice-{n}", voice, same_voice=True) for n, voice in enumerate(voices)],
            stats=stats,
            sample_rate=RATE,
        )
        answer, ear = " ".join(texts[at : at + 6]), Listener()
        learned = stats.estimates([BACKEND], None, by_sentence=False)[BACKEND.provider]
        is_resampled = "sample_rate" in ledger.second
        async with PhoneCall(ScriptedLLMService([Say(answer)]), speech=(tts, ear)) as call:
            call.context.add_message({"role": "user", "content": "And?"})
            asked_at = asyncio.get_running_loop().time()
            await call.play(ask, 60)
            sounds = sounds_of(ear)
            assert len(sounds) == len(answer.split())
            if not is_resampled:  # the levels of words are not those of their samples any more
                assert ear.text() == bare(answer)
            assert call.remembered == [answer]
            wait_secs = sounds[0][0] - asked_at
        gaps += [b - a - WORD_GAP_SECS for (_, a), (b, _) in itertools.pairwise(sounds)]
        asked += sum(len(text) for voice in voices for _, text in voice.asked)
        if at in silent:
            waits.append(wait_secs - learned.first_token.quantile(0.99))
    print(
        f"{name}: a silent first sentence at most the learned p99 {max(waits, default=0.0):+.2f} s,"
        f" longest gap {max(gaps):.2f} s, characters {asked / len(' '.join(texts)):.2f}"
    )
    assert max(waits, default=0.0) < FIRST_SECS + CHUNK
    assert max(gaps) < ledger.gap_secs
