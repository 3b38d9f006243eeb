"""A scripted recogniser, and a caller who speaks to it, in the loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, TypeAlias

from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer, BaseTurnParams, EndOfTurnState
from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService

Said: TypeAlias = tuple[float, str]
"""A transcript: seconds after the VAD has noticed the end of speech, and its text. A text that
begins with "…" is an interim one."""

STOP_SECS = 0.2


class ScriptedSTT(STTService):
    """Says what a script says of each utterance.

    Attributes:
        script: Returns the transcripts of the utterance of a number, from 0.
        marks: Whether transcripts are marked as final.
    """

    def __init__(
        self,
        script: Callable[[int], Sequence[Said]],
        *,
        marks: bool = False,
        model: str = "scripted-1",
        constant_secs: float = 1.9,
        **kwargs: Any,
    ):
        settings = STTSettings(model=model, language=None)
        super().__init__(settings=settings, ttfs_p99_latency=constant_secs, **kwargs)
        self.script, self.marks = script, marks
        self._number = 0

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        yield None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            script, self._number = self.script(self._number), self._number + 1
            self.create_task(self._speak(script), "says what the script says")

    async def _speak(self, script: Sequence[Said]) -> None:
        began = asyncio.get_running_loop().time()
        for after_secs, text in script:
            await asyncio.sleep(began + after_secs - asyncio.get_running_loop().time())
            if text.startswith("…"):
                await self.push_frame(InterimTranscriptionFrame(text[1:], "caller", "now"))
            else:
                final = TranscriptionFrame(text, "caller", "now", finalized=self.marks)
                await self.push_frame(final)


class Complete(BaseTurnAnalyzer):
    """Finds every turn complete."""

    def append_audio(self, buffer: bytes, is_speech: bool) -> EndOfTurnState:
        return EndOfTurnState.INCOMPLETE

    async def analyze_end_of_turn(self) -> tuple[EndOfTurnState, MetricsData | None]:
        return EndOfTurnState.COMPLETE, None

    @property
    def speech_triggered(self) -> bool:
        return False

    @property
    def params(self) -> BaseTurnParams:
        return BaseTurnParams()

    def clear(self) -> None:
        pass


def spoken(secs: float = 1.0) -> list[Any]:
    """The caller speaks so long, as the VAD sees it."""
    stopped = lambda: VADUserStoppedSpeakingFrame(stop_secs=STOP_SECS)  # noqa: E731
    return [VADUserStartedSpeakingFrame, secs + STOP_SECS, stopped]
