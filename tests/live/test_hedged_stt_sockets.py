"""A calm call on real sockets: one to the recogniser, none to the rescue, none left behind."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from openai import DefaultAsyncHttpxClient
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import Frame, TranscriptionFrame
from pipecat.processors.audio.vad_processor import VADProcessor

from pipecat_hedge import HedgedSTTService, ProviderStats, TranscriptReport
from pipecat_hedge.tools.simulator import Simulator
from tests.live.test_recognizers import KNOWN, PARKING, SUNDAY, Call, deepgram, openai
from tests.support.line import Line

pytestmark = [pytest.mark.live, pytest.mark.realtime]

TEXTS = [SUNDAY, PARKING, SUNDAY]
BATCH_SECS = 0.1


class HedgedCall(Call):
    """A hedged recogniser, and Silero's VAD before or behind it.

    It is spoken to in real time: audio that comes faster makes the VAD late on a busy machine, and
    the transcripts with it, so that the rescue is asked.
    """

    def __init__(self, stt: HedgedSTTService, is_behind: bool):
        vad = [VADProcessor(vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2)))]
        before, behind = ([], vad) if is_behind else (vad, [])
        Line.__init__(self, stt.primary, before=before, nested=stt, processors=behind)

    async def send(self, *frames: Frame) -> None:
        size = round(BATCH_SECS / 0.02)
        for at in range(0, len(frames), size):
            await super().send(*frames[at : at + size])
            await asyncio.sleep(BATCH_SECS)


async def hold(is_behind: bool) -> None:
    """Hold a calm call, and check that it opens one socket and leaves none."""
    reports: list[TranscriptReport] = []

    async def take(_: object, report: TranscriptReport) -> None:
        reports.append(report)

    async with Simulator(transcripts=KNOWN) as first, Simulator(transcripts=KNOWN) as second:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(DefaultAsyncHttpxClient())
            rescue = openai(second, http_client=client)
            stt = HedgedSTTService(lambda: deepgram(first), rescue, stats=ProviderStats())
            stt.add_event_handler("on_transcript_report", take)
            call = HedgedCall(stt, is_behind)
            await stack.enter_async_context(call)
            for number, text in enumerate(TEXTS, 1):
                await call.play(text)
                await call.finals(number)
            assert len(first.ledger.open) == 1
            said = [frame.text for frame in call.frames(TranscriptionFrame)]
        await first.ledger.wait_until(lambda ledger: not ledger.open, 5)
        assert len(first.ledger.requests) == 1
        assert second.ledger.requests == []
    assert said == TEXTS
    assert len(reports) == len(TEXTS)
    assert not any(report.is_rescued or report.was_replaced for report in reports)


async def test_calm_call_opens_one_socket_and_leaves_none() -> None:
    async with asyncio.TaskGroup() as calls:
        calls.create_task(hold(is_behind=False), name="vad before")
        calls.create_task(hold(is_behind=True), name="vad behind")
