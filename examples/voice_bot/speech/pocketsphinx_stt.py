"""Speech recognition offline: pocketsphinx, with a grammar of what the bot's callers say.

It hears the sentences of its grammar and no others: anything else comes out as the nearest
sentence. Free-form, the same model gets 12 to 76 % of the words wrong.
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

# From the end of speech: the VAD's 0.2 s, then 0.04 to 0.1 s of recognition, and a busy machine.
TTFS_P99_SECS = 0.4


@dataclass
class PocketsphinxSTTSettings(STTSettings):
    """Settings for `PocketsphinxSTTService`; the model and its language (English) are fixed."""


class PocketsphinxSTTService(SegmentedSTTService):
    """Transcribes each segment of speech with a grammar, in a thread, without the network.

    Args:
        grammar: A JSGF file; its first public rule is what can be said.
        ttfs_p99_latency: Seconds from the end of speech to the transcript, at worst.
        **kwargs: Passed to `SegmentedSTTService`.

    Raises:
        ConfigurationError: If the grammar cannot be used; the message says why.
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
            # The VAD waits for 0.2 s of silence, so the segment already ends in it.
            trailing_silence_secs=0.1,
            settings=self.Settings(model="pocketsphinx-en-us", language=Language.EN),
            **kwargs,
        )

    @property
    def wants_wav_segments(self) -> bool:
        """The recogniser reads plain samples."""
        return False

    def can_generate_metrics(self) -> bool:
        """This service measures its time to the transcript."""
        return True

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame, None]:
        """Transcribe one segment.

        Args:
            audio: 16-bit mono samples at 16 kHz.

        Yields:
            One `TranscriptionFrame`, or nothing if no sentence of the grammar comes near.
        """
        await self.start_processing_metrics()
        text = await asyncio.to_thread(self._recognizer.recognize, audio)
        await self.stop_processing_metrics()
        if text:
            await self._transcribed(text, True, Language.EN)
            yield TranscriptionFrame(text, self._user_id, time_now_iso8601(), Language.EN)

    @traced_stt
    async def _transcribed(self, transcript: str, is_final: bool, language: Language | None = None):
        """Where Pipecat's tracing reads the transcript."""
