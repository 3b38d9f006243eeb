"""Scripted voices whose words can be told from their sound, and a loudspeaker that hears them."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import httpx
import numpy as np
from pipecat.frames.frames import Frame, OutputAudioRawFrame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.utils.text.markup_utils import strip_complete_markup

from tests.support.call import RATE, Loudspeaker

WORD_SECS, GAP_SECS = 0.2, 0.05
LOUD = 4000
WINDOW = 80
"""Samples that are looked at together: 5 ms."""
STEP = 20
"""Of the level of one word to the next one's."""
VOCABULARY: dict[str, int] = {}


@dataclass(frozen=True)
class Says:
    """How a voice says a text.

    Parameters:
        after_secs: To the first sound; None is never.
        lead_secs: Of silence in the audio before the first word.
        stops_after: Words after which nothing comes; None says all.
        end_secs: From the last sound to the mark of the end; None is never.
        times_ahead: Whether the times of all words come before the first sound.
        pace: Seconds of audio a second.
        only_silence: Whether the audio is silent.
        fails: Whether it reports an error instead of the first sound.
        retry_after_secs: The ``Retry-After`` of the response behind the error.
    """

    after_secs: float | None = 0.1
    lead_secs: float = 0.0
    stops_after: int | None = None
    end_secs: float | None = 0.0
    times_ahead: bool = False
    pace: float = 20.0
    only_silence: bool = False
    fails: bool = False
    retry_after_secs: float | None = None


class ScriptedVoice(TTSService):
    """Says texts as a script has it, each word as a level of its own.

    Attributes:
        script: Returns how the request of a number, from 0, is answered.
        asked: What was asked for, and when.
        cancelled: The texts whose contexts were interrupted.
        open: The requests that run.
        most_open: The most of them at once.
    """

    def __init__(
        self,
        script: Callable[[int], Says] = lambda _: Says(),
        *,
        times_words: bool = True,
        sample_rate: int = RATE,
        **kwargs: object,
    ):
        super().__init__(
            sample_rate=sample_rate,
            push_start_frame=True,
            push_stop_frames=True,
            push_text_frames=not times_words,
            settings=TTSSettings(model=None, voice=None, language=None),
            **kwargs,  # pyright: ignore[reportArgumentType]
        )
        self.script, self._times_words = script, times_words
        self.asked: list[tuple[float, str]] = []
        self.cancelled: list[str] = []
        self.open: dict[str, asyncio.Task[None]] = {}
        self.most_open = 0
        self._texts: dict[str, str] = {}

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        self.asked.append((asyncio.get_running_loop().time(), text))
        says = self.script(len(self.asked) - 1)
        self._texts[context_id] = text
        work = self._say(text, context_id, says)
        self.open[context_id] = asyncio.get_running_loop().create_task(work)
        self.most_open = max(self.most_open, len(self.open))
        yield None

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        self.cancelled.append(self._texts[context_id])
        self._drop(context_id)

    async def on_audio_context_completed(self, context_id: str) -> None:
        self._drop(context_id)

    def _drop(self, context_id: str) -> None:
        if (task := self.open.pop(context_id, None)) is not None:
            task.cancel()

    async def _say(self, text: str, context_id: str, says: Says) -> None:
        if says.after_secs is None:
            return
        await asyncio.sleep(says.after_secs)
        if says.fails:
            await self.push_error("no more of this", exception=_rejection(says.retry_after_secs))
            return
        at = says.lead_secs
        if at:
            await self._send(np.zeros(int(at * self.sample_rate), np.int16), context_id, says)
        words = strip_complete_markup(text).split()
        if says.times_ahead:
            times = [(word, at + n * WORD_SECS) for n, word in enumerate(words)]
            await self.add_word_timestamps(times, context_id)
        for word in words[: says.stops_after]:
            if self._times_words and not says.times_ahead:
                await self.add_word_timestamps([(word, at)], context_id)
            await self._send(self._sound(word) * (not says.only_silence), context_id, says)
            at += WORD_SECS
        if says.stops_after is None and says.end_secs is not None:
            await asyncio.sleep(says.end_secs)
            await self.remove_audio_context(context_id)

    async def _send(self, samples: np.ndarray, context_id: str, says: Says) -> None:
        size = int(0.05 * self.sample_rate)
        for at in range(0, len(samples), size):
            part = samples[at : at + size].astype(np.int16).tobytes()
            frame = TTSAudioRawFrame(part, self.sample_rate, 1, context_id=context_id)
            await self.append_to_audio_context(context_id, frame)
            await asyncio.sleep(len(part) / 2 / self.sample_rate / says.pace)

    def _sound(self, word: str) -> np.ndarray:
        level = LOUD + STEP * VOCABULARY.setdefault(_bare(word), len(VOCABULARY))
        samples = np.zeros(int(WORD_SECS * self.sample_rate), np.int16)
        loud = samples[: int((WORD_SECS - GAP_SECS) * self.sample_rate)]
        loud[:] = np.where(np.arange(len(loud)) % 16 < 8, level, -level)
        return samples


class Listener(Loudspeaker):
    """Plays in the loop's time, and keeps what was played.

    Attributes:
        ahead_secs: How long before it is played audio is taken, as by players with a buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ahead_secs = self._ends_at = 0.0
        self.played: list[tuple[float, bytes]] = []

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        now = asyncio.get_running_loop().time()
        secs = frame.num_frames / frame.sample_rate
        if not self.played or self.played[-1][0] < now:
            self.played.append((now, frame.audio))
        self._ends_at = max(self._ends_at, now) + secs
        await asyncio.sleep(max(0.0, self._ends_at - self.ahead_secs - now))
        return True

    def words(self) -> list[tuple[float, float, str]]:
        """Each word that was heard, with when it began and ended."""
        names = {number: word for word, number in VOCABULARY.items()}
        found: list[tuple[float, float, str]] = []
        for at, audio in self.played:
            samples = np.abs(np.frombuffer(audio, np.int16).astype(int))
            levels = samples[: len(samples) // WINDOW * WINDOW].reshape(-1, WINDOW).max(axis=1)
            for number in np.flatnonzero(levels > LOUD - STEP / 2):
                word = names[round((levels[number] - LOUD) / STEP)]
                begins = at + number * WINDOW / RATE
                ends = begins + WINDOW / RATE
                if found and found[-1][2] == word and begins - found[-1][1] < GAP_SECS / 2:
                    found[-1] = (found[-1][0], ends, word)
                else:
                    found.append((begins, ends, word))
        return found

    def text(self) -> str:
        """The words that were heard."""
        return " ".join(word for _, _, word in self.words())

    def secs(self) -> float:
        """How long something loud was heard."""
        samples = np.frombuffer(b"".join(audio for _, audio in self.played), np.int16)
        windows = np.abs(samples.astype(int))[: len(samples) // 16 * 16].reshape(-1, 16)
        return float((windows.max(axis=1) > LOUD / 2).sum() * 16 / RATE)

    def gaps(self) -> list[float]:
        """The silences between words, beyond the usual ones, in seconds."""
        heard = self.words()
        return [
            b - a - GAP_SECS
            for (_, a, _), (b, _, _) in itertools.pairwise(heard)
            if b - a > GAP_SECS + 0.02
        ]


def _rejection(retry_after_secs: float | None) -> Exception | None:
    if retry_after_secs is None:
        return None
    request = httpx.Request("POST", "https://example.com")
    response = httpx.Response(429, headers={"Retry-After": str(retry_after_secs)}, request=request)
    return httpx.HTTPStatusError("busy", request=request, response=response)


def _bare(word: str) -> str:
    return re.sub(r"\W", "", word).lower()


def bare(text: str) -> str:
    """A text as ``Listener.text`` has it."""
    return " ".join(filter(None, map(_bare, text.split())))
