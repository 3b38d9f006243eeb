"""A call for the scripts beside it: a model, a voice, and a caller.

Each text has a tone of its own, so that what was heard can be told from what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from pipecat.frames.frames import (
    EndFrame,
    InterruptionFrame,
    LLMContextFrame,
    OutputAudioRawFrame,
    StartFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.llm_service import LLMService
from pipecat.services.tts_service import TTSService
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams

from pipecat_hedge.tools.bench import run_worker

RATE = 16000
LETTER_SECS = 0.05
LOWEST_HZ, STEP_HZ = 400, 40
LOUD = 1000


def voice_of(texts: Sequence[str]) -> Callable[[str], npt.NDArray[np.int16]]:
    """Return a simulated voice: the n-th text, or a part of it, has the n-th tone."""

    def speak(text: str) -> npt.NDArray[np.int16]:
        number = next(n for n, each in enumerate(texts) if text.strip() in each)
        at_secs = np.arange(round(LETTER_SECS * len(text) * RATE)) / RATE
        tone = np.sin(2 * np.pi * (LOWEST_HZ + STEP_HZ * number) * at_secs)
        return (10_000 * tone).astype(np.int16)

    return speak


class Loudspeaker(BaseOutputTransport):
    """Plays at the speed of sound; it keeps when which text was heard."""

    def __init__(self) -> None:
        super().__init__(TransportParams(audio_out_enabled=True, audio_out_sample_rate=RATE))
        self.heard: list[tuple[float, int]] = []

    async def start(self, frame: StartFrame) -> None:
        """Start to play."""
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Play a piece, and wait until it has been heard."""
        samples = np.frombuffer(frame.audio, np.int16)
        if len(samples) and np.abs(samples).max() > LOUD:
            spectrum = np.abs(np.fft.rfft(samples, RATE))  # padded: a bin of 1 Hz
            number = round((int(np.argmax(spectrum)) - LOWEST_HZ) / STEP_HZ)
            self.heard.append((asyncio.get_running_loop().time(), number))
        await asyncio.sleep(frame.num_frames / frame.sample_rate)
        return True


class Call:
    """A call of one caller, for the length of an ``async with``."""

    def __init__(self, llm: LLMService[Any], tts: TTSService):
        self.context, self._ear = LLMContext(), Loudspeaker()
        self._asked_at: list[float] = []
        assistant = LLMContextAggregatorPair(self.context).assistant()
        self._worker = PipelineWorker(
            Pipeline([llm, tts, self._ear, assistant]), cancel_on_idle_timeout=False
        )

    async def __aenter__(self) -> Self:
        self._running = await run_worker(self._worker)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._worker.queue_frame(EndFrame())
        await self._running

    async def ask(self, text: str, patience_secs: float) -> float | None:
        """Say something, and wait for so long.

        Returns:
            The seconds to the first sound of the answer; None if there was none.
        """
        self.context.add_message({"role": "user", "content": text})
        asked_at = asyncio.get_running_loop().time()
        self._asked_at.append(asked_at)
        await self._worker.queue_frame(LLMContextFrame(self.context))
        await asyncio.sleep(patience_secs)
        return next((at - asked_at for at, _ in self._ear.heard if at > asked_at), None)

    async def interrupt(self) -> None:
        """Speak while an answer is due: Pipecat drops it."""
        await self._worker.queue_frame(InterruptionFrame())

    @property
    def heard(self) -> set[int]:
        """The numbers of the texts that were heard."""
        return {number for _, number in self._ear.heard}

    @property
    def longest_silence_secs(self) -> float:
        """The longest one that ended with a sound, from a question or another sound on."""
        asked = [(at, False) for at in self._asked_at]
        moments = sorted(asked + [(at, True) for at, _ in self._ear.heard])
        return max((b - a for (a, _), (b, is_sound) in pairwise(moments) if is_sound), default=0.0)

    @property
    def remembered(self) -> str:
        """What the conversation says that the bot has said."""
        return " ".join(
            str(message.get("content"))
            for message in self.context.messages
            if isinstance(message, dict) and message["role"] == "assistant"
        )


def secs(value: float | None) -> str:
    """Format a wait; None is an answer that did not come."""
    return "nothing" if value is None else f"{value:.1f} s"


def show(title: str, rows: dict[str, tuple[str, str]], bare: str = "Pipecat alone") -> None:
    """Print what happened to a caller, bare and hedged side by side."""
    print(f"{title}\n\n{'':44}{bare:18}hedged")
    for label, (alone, hedged) in rows.items():
        print(f"{label:44}{alone:18}{hedged}")
