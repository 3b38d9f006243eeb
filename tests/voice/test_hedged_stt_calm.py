"""What a hedged recogniser costs while all is well: 1,000 utterances beside the primary alone."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Sequence
from statistics import median

import pytest
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from pipecat_hedge import HedgedSTTService, ProviderStats, TranscriptReport
from tests.support.line import Line
from tests.support.recognition import Said, ScriptedRescue, ScriptedSTT, spoken

pytestmark = [pytest.mark.virtual_time, pytest.mark.slow]

UTTERANCES = 1_000


class Timed(ScriptedSTT):
    """Notes when it says something, in the machine's time: the loop's skips what is waited for."""

    def __init__(self) -> None:
        super().__init__(said)
        self.said_at: list[float] = []

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        if isinstance(frame, TranscriptionFrame):
            self.said_at.append(time.perf_counter())
        await super().push_frame(frame, direction)


class Notes(FrameProcessor):
    """Notes when it hears something."""

    def __init__(self) -> None:
        super().__init__(enable_direct_mode=True)
        self.heard_at: list[float] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self.heard_at.append(time.perf_counter())
        await self.push_frame(frame, direction)


def said(number: int) -> Sequence[Said]:
    secs = random.Random(number).uniform(0.0, 0.15)
    return [(secs / 2, f"…question {number}"), (secs, f"question {number} and its last word")]


class Held:
    """What was left after so many utterances, and what they cost."""

    def __init__(self) -> None:
        self.tasks: list[int] = []
        self.frames: list[int] = []
        self.finals: list[str] = []
        self.delays_ms: list[float] = []
        self.cpu_ms = 0.0


async def hold(primary: Timed, stt: FrameProcessor) -> Held:
    held, notes = Held(), Notes()
    sound = InputAudioRawFrame(bytes(2 * 1_600), 16_000, 1)
    async with Line(primary, nested=stt, processors=[notes]) as line:
        began = time.process_time()
        for number in range(UTTERANCES):
            for event in spoken(audio=sound):
                if isinstance(event, float):
                    await asyncio.sleep(event)
                else:
                    await line.send(event())
            await asyncio.sleep(1.0)
            if number in (99, UTTERANCES - 1):
                held.finals += [frame.text for frame in line.frames(TranscriptionFrame)]
                line.forget()
                gc.collect()
                held.tasks.append(len(asyncio.all_tasks()))
                held.frames.append(sum(isinstance(each, Frame) for each in gc.get_objects()))
        held.cpu_ms = (time.process_time() - began) * 1e3 / UTTERANCES
    held.delays_ms = [
        (heard - said) * 1e3 for said, heard in zip(primary.said_at, notes.heard_at, strict=True)
    ]
    return held


async def test_calm_utterances_cost_nothing() -> None:
    alone = Timed()
    bare = await hold(alone, alone)
    primary, rescue = Timed(), ScriptedRescue(lambda _: "rescued")
    stt = HedgedSTTService(primary, rescue, stats=ProviderStats())
    reports: list[TranscriptReport] = []

    async def take(_: object, report: TranscriptReport) -> None:
        reports.append(report)

    stt.add_event_handler("on_transcript_report", take)
    hedged = await hold(primary, stt)
    print(f"a transcript takes {median(hedged.delays_ms):.3f} ms instead of", end=" ")
    print(f"{median(bare.delays_ms):.3f} ms (p99 {sorted(hedged.delays_ms)[-20]:.3f} and", end=" ")
    print(f"{sorted(bare.delays_ms)[-20]:.3f}), an utterance {hedged.cpu_ms:.1f} ms of the CPU")
    print(f"instead of {bare.cpu_ms:.1f}; tasks {hedged.tasks}, frames {hedged.frames}")
    assert hedged.finals == bare.finals
    assert len(hedged.finals) == UTTERANCES
    assert rescue.heard == []
    assert [report for report in reports if report.is_rescued or report.was_replaced] == []
    assert hedged.tasks[1] == hedged.tasks[0]
    assert hedged.frames[1] <= hedged.frames[0] + 10
    assert median(hedged.delays_ms) - median(bare.delays_ms) < 1.0
