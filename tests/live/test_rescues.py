"""The second recogniser on real sockets: one that streams, one that rejects, one that is down."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import AsyncExitStack

import pytest
from openai import DefaultAsyncHttpxClient
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.stt_service import STTService

from pipecat_hedge import HedgedSTTService, ProviderStats
from pipecat_hedge.tools.simulator import Simulator
from tests.live.test_dead_sockets import joined
from tests.live.test_hedged_stt import Phone
from tests.live.test_recognizers import DELIVER, KNOWN, PARKING, SUNDAY, deepgram, openai

pytestmark = [
    pytest.mark.live,
    pytest.mark.realtime,
    pytest.mark.timeout(60),
    # Deepgram's SDK leaves a socket whose close is cancelled to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


async def deepgram_rescues_deepgram() -> None:
    """It finds three ends of speech in the long sentence, which is one transcript."""
    long = ["where is the restaurant", "can we sit outside"]
    async with AsyncExitStack() as stack:  # the simulators end first: some faults answer no close
        async with Simulator(transcripts=KNOWN) as first, Simulator(transcripts=KNOWN) as second:
            first.set_conditions(fault="silent")
            rescue = deepgram(second, endpointing=100)
            stt = HedgedSTTService(lambda: deepgram(first), rescue, stats=ProviderStats())
            phone = Phone(stt)
            await stack.enter_async_context(phone)
            await phone.speak(DELIVER, 3.0)
            await phone.play(joined(long, 0.1), 3.0)
            await phone.speak(PARKING, 3.0)
            finals = second.ledger.requests[0].finals
        assert phone.said == [DELIVER, " ".join(long), PARKING]
        assert finals > 3


async def rescue_that_sends_retry_after_is_not_asked_before() -> None:
    """And again from then on; its SDK repeats nothing."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(DefaultAsyncHttpxClient())  # Pipecat closes none
        async with Simulator(transcripts=KNOWN) as first, Simulator(transcripts=KNOWN) as second:
            first.set_conditions(fault="silent")
            second.set_conditions(fault="429", retry_after=8)
            rescue = openai(second, http_client=client)
            stt = HedgedSTTService(lambda: deepgram(first), rescue, stats=ProviderStats())
            phone = Phone(stt)
            await stack.enter_async_context(phone)
            await phone.speak(DELIVER, 3.0)
            second.set_conditions()
            await phone.speak(SUNDAY, 3.0)
            await phone.speak(PARKING, 3.0)
            statuses = [entry.status for entry in second.ledger.requests]
        assert phone.said == [PARKING]
        assert statuses == [429, 200]


def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def down(kind: str, client: DefaultAsyncHttpxClient) -> STTService:
    address = f"http://127.0.0.1:{closed_port()}"
    if kind == "deepgram":
        return DeepgramSTTService(api_key="any", base_url=address)
    return OpenAISTTService(api_key="any", base_url=f"{address}/v1", http_client=client)


async def rescue_that_is_down_delays_nothing(kind: str) -> None:
    """Neither the call's beginning, nor its end, nor a transcript that is late."""
    now = asyncio.get_running_loop().time
    async with (
        DefaultAsyncHttpxClient() as client,
        Simulator(transcripts=KNOWN) as first,
        AsyncExitStack() as stack,
    ):
        stt = HedgedSTTService(lambda: deepgram(first), down(kind, client), stats=ProviderStats())
        phone, began_at = Phone(stt), now()
        await stack.enter_async_context(phone)
        ready_secs = now() - began_at
        await phone.speak(DELIVER, 1.0)
        first.set_conditions(fault="late", delay=2)
        await phone.speak(SUNDAY, 2.5)
        ended_at = now()
        await stack.aclose()
        ended_secs = now() - ended_at
    print(f"\n{kind}: ready after {ready_secs:.2f} s, ended after {ended_secs:.2f} s")
    assert phone.said == [DELIVER, SUNDAY]
    assert max(ready_secs, ended_secs) < 1.0


async def test_rescues_that_stream_send_retry_after_or_are_down() -> None:
    async with asyncio.TaskGroup() as calls:
        calls.create_task(deepgram_rescues_deepgram())
        calls.create_task(rescue_that_sends_retry_after_is_not_asked_before())
        for kind in ("deepgram", "openai"):
            calls.create_task(rescue_that_is_down_delays_nothing(kind))
    gc.collect()
