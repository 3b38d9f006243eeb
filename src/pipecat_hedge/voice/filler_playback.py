"""Speaks a filler, and withdraws it if the answer starts first.

A filler is a ``TTSSpeakFrame`` outside the context. Pipecat can take one back only by an
interruption, which would end the answer too. So the TTS's public events are followed: a queued
filler is emptied; one with a context but no audio yet is ended with one silent sample, in order,
so that no TTS reports missing audio. A filler that already plays is short and may finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pipecat.frames.frames import (
    Frame,
    OutputAudioRawFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.tts_service import TTSService

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import FillerCause
from pipecat_hedge.service.pipecat_private import pauses_for_audio
from pipecat_hedge.voice.audio_file import read_audio
from pipecat_hedge.voice.filler_policy import FillerPhrases

EARCON_RATE = 24_000
AUDIBLE_LEVEL = 33
"""Sound whose peak is lower (-60 dBFS) is silence. Not 0: resampling a silent file yields ones."""


@dataclass
class FillerFrame(TTSSpeakFrame):
    """A filler's text; it stays out of the context."""

    append_to_context: bool = False


class FillerVoice:
    """Speaks phrases through a TTS service, and follows the latest one until it sounds.

    It is queued (``_frame``), then at work (``_is_next``), then requested (``_context_id``).
    """

    most_delay_secs = 5.0
    """How long after a filler was sent it may begin to play: a slow TTS takes 1 to 3 s."""

    def __init__(self, tts: TTSService, phrases: FillerPhrases):
        """Subscribe to the events of the TTS that speaks the fillers."""
        self._tts = tts
        self._phrases = phrases
        self._frame: FillerFrame | None = None
        self._is_next = False
        self._context_id: str | None = None
        tts.add_event_handler("on_before_process_frame", self._processes)
        tts.add_event_handler("on_tts_request", self._requests)
        tts.add_event_handler("on_before_push_frame", self._pushes)

    def choices(self, cause: FillerCause) -> list[tuple[str, float]]:
        """Return the candidates and their durations in seconds; the drawn one first."""
        return self._phrases.choices(cause)

    def frame(self, text: str) -> Frame:
        """Create a filler to push, and follow it."""
        self._phrases.mark_spoken(text)
        self._frame, self._is_next, self._context_id = FillerFrame(text), False, None
        return self._frame

    async def cut(self) -> bool:
        """Withdraw the latest filler, unless it has started to play.

        Returns:
            Whether it was withdrawn.
        """
        if self._frame is not None:
            self._frame.text, self._frame = "", None
            return True
        # A service that pauses does not match audio to contexts: late filler audio would be taken
        # for the answer's.
        context_id, self._context_id = self._context_id, None
        if context_id is None or pauses_for_audio(self._tts):
            return False
        silence = TTSAudioRawFrame(bytes(2), self._tts.sample_rate, 1, context_id=context_id)
        await self._tts.append_to_audio_context(context_id, silence)
        await self._tts.remove_audio_context(context_id)
        await self._tts.on_audio_context_interrupted(context_id=context_id)
        return True

    async def _processes(self, _: FrameProcessor, frame: Frame) -> None:
        if frame is self._frame:
            self._frame, self._is_next = None, True

    async def _requests(self, _: FrameProcessor, context_id: str, text: str) -> None:
        if self._is_next:
            self._is_next, self._context_id = False, context_id

    async def _pushes(self, _: FrameProcessor, frame: Frame) -> None:
        is_sound = isinstance(frame, (TTSAudioRawFrame, TTSStoppedFrame))
        if is_sound and frame.context_id == self._context_id:
            self._context_id = None


class Earcon:
    """A short sound in place of phrases: mono, 16 bit, at ``EARCON_RATE``."""

    most_delay_secs = 0.0

    def __init__(self, path: str | Path):
        """Read the sound.

        Args:
            path: An audio file.

        Raises:
            ConfigurationError: If it is not audio, or is silent; the message names the field.
        """
        remedy = "omit it to use spoken phrases"
        if not isinstance(path, (str, Path)) or not str(path):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"earcon must be the path of an audio file, got {path!r}: {remedy}"
            )
        try:
            sound = read_audio(Path(path), EARCON_RATE)
        except ConfigurationError as error:
            raise ConfigurationError(f"earcon: {error} Or {remedy}.") from error
        if np.abs(sound.astype(np.int32)).max(initial=0) < AUDIBLE_LEVEL:
            raise ConfigurationError(
                f"earcon: {path} is silent or empty. Name another file, or {remedy}"
            )
        self._sound = sound.astype("<i2").tobytes()

    def choices(self, _: FillerCause) -> list[tuple[str, float]]:
        """Return its duration, in seconds; it has no text."""
        return [("", len(self._sound) / 2 / EARCON_RATE)]

    def frame(self, _: str) -> Frame:
        """Return the sound; the bot does not count as speaking."""
        return OutputAudioRawFrame(self._sound, EARCON_RATE, 1)

    async def cut(self) -> bool:
        """Return False: it is played at once."""
        return False
