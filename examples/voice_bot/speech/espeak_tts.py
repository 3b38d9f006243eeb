"""Offline speech synthesis with espeak-ng: a robotic but clear voice that starts within 20 ms."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import soxr
from pipecat.frames.frames import Frame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.transcriptions.language import Language
from pipecat.utils.tracing.service_decorators import traced_tts
from pipecat.utils.types import NOT_GIVEN, NotGiven, assert_given, require_given

from examples.voice_bot.speech.espeak_engine import shared_engine
from pipecat_hedge.race import ConfigurationError


@dataclass
class EspeakTTSSettings(TTSSettings):
    """Settings of `EspeakTTSService`; all can be changed at runtime.

    Parameters:
        words_per_minute: The rate, 80 to 450.
    """

    words_per_minute: int | NotGiven = field(default_factory=lambda: NOT_GIVEN)


class EspeakTTSService(TTSService):
    """Synthesizes sentence by sentence in a thread, and stops within 60 ms of audio.

    Args:
        settings: The voice ("en-us+f3": a voice's file name, "+" and a variant) and its rate.
        **kwargs: Passed to `TTSService`. The audio has the pipeline's output rate.

    Raises:
        ConfigurationError: If there is no such voice, or the rate is out of range.
    """

    Settings = EspeakTTSSettings
    _settings: EspeakTTSSettings  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, *, settings: EspeakTTSSettings | None = None, **kwargs):
        chosen = self.Settings(
            model=None, voice="en-us+f3", language=Language.EN, words_per_minute=165
        )
        if settings is not None:
            chosen.apply_update(settings)
        self._engine = shared_engine()
        self._check(chosen)
        super().__init__(push_start_frame=True, push_stop_frames=True, settings=chosen, **kwargs)

    def can_generate_metrics(self) -> bool:
        """Return True: the service measures its time to the first audio."""
        return True

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame, None]:
        """Synthesize a text; yields `TTSAudioRawFrame`s."""
        await self.start_tts_usage_metrics(text)
        voice = require_given(self._settings.voice, "voice")
        words_per_minute = assert_given(self._settings.words_per_minute)
        loop = asyncio.get_running_loop()
        made: asyncio.Queue[bytes | None] = asyncio.Queue()
        unwanted = threading.Event()

        def speak() -> None:
            # One converter per sentence: no samples remain from the previous one.
            converter = soxr.ResampleStream(
                self._engine.sample_rate, self.sample_rate, 1, dtype="int16"
            )

            def deliver(audio: bytes, last: bool = False) -> bool:
                if unwanted.is_set():
                    return False
                converted = converter.resample_chunk(np.frombuffer(audio, np.int16), last)
                loop.call_soon_threadsafe(made.put_nowait, converted.tobytes())
                return True

            if not unwanted.is_set():
                self._engine.speak(text, voice, words_per_minute, deliver)
            deliver(b"", last=True)

        speaking = loop.run_in_executor(None, speak)

        def spoken(done: asyncio.Future[None]) -> None:
            if not done.cancelled():
                done.exception()  # marks it as retrieved
            made.put_nowait(None)

        speaking.add_done_callback(spoken)
        try:
            while (audio := await made.get()) is not None:
                if audio:
                    await self.stop_ttfb_metrics()
                    yield TTSAudioRawFrame(audio, self.sample_rate, 1, context_id=context_id)
            await speaking
        finally:
            unwanted.set()

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:
        """Apply new settings from the next sentence on; invalid ones change nothing."""
        wanted = self._settings.copy()
        TTSSettings.apply_update(wanted, delta)
        try:
            self._check(wanted)
        except ConfigurationError as error:
            await self.push_error(str(error), error)
            return {}
        return await super()._update_settings(delta)

    def _check(self, settings: EspeakTTSSettings) -> None:
        voice = assert_given(settings.voice) or ""
        self._engine.check(voice, assert_given(settings.words_per_minute))
