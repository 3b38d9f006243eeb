"""A hedged recogniser on real sockets: whatever befalls the first one, each sentence is heard once.

The recordings are played in real time, through Silero's VAD, to Pipecat's services.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import AsyncExitStack

import numpy as np
import numpy.typing as npt
import pytest
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import InputAudioRawFrame, TranscriptionFrame
from pipecat.processors.audio.vad_processor import VADProcessor
from pipecat.services.stt_service import STTService

from pipecat_hedge import HedgedSTTService, ProviderStats, TranscriptReport
from pipecat_hedge.tools.replay import read_samples
from pipecat_hedge.tools.simulator import Simulator
from tests.live.test_recognizers import (
    DELIVER,
    KNOWN,
    PARKING,
    RECORDINGS,
    SUNDAY,
    deepgram,
    openai,
)
from tests.support.line import Line

pytestmark = [
    pytest.mark.live,
    pytest.mark.realtime,
    pytest.mark.timeout(60),
    # Deepgram's SDK leaves a socket whose close is cancelled to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

RATE = 16_000
CHUNK = RATE // 50
Samples = npt.NDArray[np.int16]
FAULTS = ["silent", "never_final", "1008", "cut"]
"""A socket that is half-open, or not read: ``test_dead_sockets``."""


class Phone(Line):
    """A caller, Silero's VAD and a recogniser, in real time."""

    def __init__(self, stt: HedgedSTTService | STTService):
        vad = VADProcessor(vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2)))
        service = stt.primary if isinstance(stt, HedgedSTTService) else stt
        super().__init__(service, before=[vad], nested=stt)

    async def speak(self, text: str, then_secs: float) -> None:
        await self.play(read_samples(RECORDINGS[text], RATE), then_secs)

    async def play(self, samples: Samples, then_secs: float) -> None:
        noise = np.random.default_rng(1).integers(-8, 9, round((then_secs + 0.6) * RATE))
        noise = noise.astype(np.int16)
        sound = np.concatenate([noise[: RATE * 6 // 10], samples, noise])
        due_at = asyncio.get_running_loop().time()
        for at in range(0, len(sound) - CHUNK, CHUNK):
            await self.send(InputAudioRawFrame(sound[at : at + CHUNK].tobytes(), RATE, 1))
            due_at += CHUNK / RATE
            await asyncio.sleep(due_at - asyncio.get_running_loop().time())

    @property
    def said(self) -> list[str]:
        return [frame.text for frame in self.frames(TranscriptionFrame)]


async def conversation(
    fault: str | None, texts: Sequence[str]
) -> tuple[list[str], list[TranscriptReport]]:
    """The first sentence is heard well; the fault lasts from the second one to the end.

    Without one, a socket is opened to the first recogniser, and nothing to the second.
    """
    reports: list[TranscriptReport] = []

    async def take(_: object, report: TranscriptReport) -> None:
        reports.append(report)

    async with AsyncExitStack() as stack:  # the simulators end first: some faults answer no close
        async with Simulator(transcripts=KNOWN) as first, Simulator(transcripts=KNOWN) as second:
            stt = HedgedSTTService(lambda: deepgram(first), openai(second), stats=ProviderStats())
            stt.add_event_handler("on_transcript_report", take)
            phone = Phone(stt)
            await stack.enter_async_context(phone)
            await phone.speak(texts[0], 1.0)
            if fault is not None:
                first.set_conditions(fault=fault)
            for text in texts[1:]:
                await phone.speak(text, 2.0)
            if fault is None:
                assert len(first.ledger.requests) == len(first.ledger.open) == 1
                assert second.ledger.requests == []
        said = phone.said
    return said, reports


async def test_each_sentence_is_heard_once() -> None:
    texts = [DELIVER, SUNDAY, PARKING]
    faults = [None, *FAULTS]
    calls = await asyncio.gather(*(conversation(fault, texts) for fault in faults))
    assert [said for said, _ in calls] == [texts] * len(faults)
    for fault, (_, reports) in zip(faults, calls, strict=True):
        is_helped = any(report.is_rescued or report.was_replaced for report in reports)
        assert is_helped is (fault is not None), fault
    gc.collect()
