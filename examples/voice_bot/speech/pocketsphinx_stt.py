"""Offline speech recognition with pocketsphinx and a grammar of the callers' sentences.

Any other sentence is recognised as the nearest one of the grammar. Without a grammar the same model
gets 12 to 76 % of the words wrong.
"""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from pipecat.frames.frames import Frame, TranscriptionFrame
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import SegmentedSTTService
from pipecat.transcriptions.language import Language
from pipecat.utils.time import time_now_iso8601
from pipecat.utils.tracing.service_decorators import traced_stt

from examples.voice_bot.speech.grammar_recognizer import SAMPLE_RATE, shared_recognizer

RESTAURANT_GRAMMAR = Path(__file__).with_name("restaurant.jsgf")

# From the end of speech: the VAD's 0.2 s, 0.04 to 0.1 s of recognition, and reserve.
TTFS_P99_SECS = 0.4


@dataclass
class PocketsphinxSTTSettings(STTSettings):
    """Settings of `PocketsphinxSTTService`; the model and its language (English) are fixed."""


class PocketsphinxSTTService(SegmentedSTTService):
    """Transcribes each segment of speech with a grammar, in a thread.

    Args:
        grammar: A JSGF file; its first public rule is used.
        ttfs_p99_latency: The 99th percentile from the end of speech to the transcript, in seconds.
        **kwargs: Passed to `SegmentedSTTService`.

    Raises:
        ConfigurationError: If the grammar cannot be used; the message has the reason.
    """

    Settings = PocketsphinxSTTSettings

    def __init__(
        self,
        *,
        grammar: str | Path = RESTAURANT_GRAMMAR,
        ttfs_p99_latency: float = TTFS_P99_SECS,
        **kwargs,
    ):
        self._recognizer = shared_recognizer(Path(grammar).resolve())
        super().__init__(
            sample_rate=SAMPLE_RATE,
            ttfs_p99_latency=ttfs_p99_latency,
            # The segment already ends with the VAD's 0.2 s of silence.
            trailing_silence_secs=0.1,
            settings=self.Settings(model="pocketsphinx-en-us", language=Language.EN),
            **kwargs,
        )

    @property
    def wants_wav_segments(self) -> bool:
        """False: the recogniser reads raw samples."""
        return False

    def can_generate_metrics(self) -> bool:
        """Return True: the service measures its time to the transcript."""
        return True

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        """Transcribe one segment of 16-bit mono samples at 16 kHz.

        Yields one `TranscriptionFrame`, or nothing if no sentence of the grammar matches.
        """
        await self.start_processing_metrics()
        text = await asyncio.to_thread(self._recognizer.recognize, audio)
        await self.stop_processing_metrics()
        if text:
            await self._transcribed(text, True, Language.EN)
            yield TranscriptionFrame(text, self._user_id, time_now_iso8601(), Language.EN)

    @traced_stt
    async def _transcribed(self, transcript: str, is_final: bool, language: Language | None = None):
        """Pipecat's tracing reads the transcript from this call."""
