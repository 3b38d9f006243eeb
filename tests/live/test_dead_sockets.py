"""A recogniser's socket that dies in mid-call: what the bare service loses, and the hedged one not.

The caller speaks in real time, through Silero's VAD, to Pipecat's Deepgram service. The socket dies
while the caller speaks for 6 s. One that stops reading reads on after 8 s.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack

import numpy as np
import pytest

from pipecat_hedge import HedgedSTTService, ProviderStats
from pipecat_hedge.tools.replay import read_samples
from pipecat_hedge.tools.simulator import Simulator
from tests.live.test_hedged_stt import RATE, Phone, Samples
from tests.live.test_recognizers import (
    DELIVER,
    KNOWN,
    PARKING,
    RECORDINGS,
    SUNDAY,
    deepgram,
    openai,
)

pytestmark = [
    pytest.mark.live,
    pytest.mark.realtime,
    pytest.mark.timeout(90),
    # Deepgram's SDK leaves a socket whose close is cancelled to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LONG = [
    "i am allergic to nuts is the curry safe",
    "can i order two pizzas for pick up",
    "no wait cancel that",
]
WORDS = " ".join([DELIVER, *LONG, SUNDAY, PARKING, "thank you goodbye"]).split()
BACK_SECS = 8.0
KINDS, FAULTS = ("bare", "kept", "replaced"), ("stops_reading", "half_open")


def joined(texts: Sequence[str], gap_secs: float = 0.05) -> Samples:
    """Recordings with no pause that a VAD would notice."""
    parts: list[Samples] = []
    for text in texts:
        recording = RECORDINGS[text]
        speech = slice(recording.speech_begins_sample, recording.speech_ends_sample)
        parts += [read_samples(recording, RATE)[speech], np.zeros(round(gap_secs * RATE), np.int16)]
    return np.concatenate(parts)


async def hold(kind: str, fault: str) -> list[str]:
    """Hold a call with a bare service, or a hedged one whose first is replaced when it is stuck."""
    async with AsyncExitStack() as stack:  # the simulators end first: some faults answer no close
        async with Simulator(transcripts=KNOWN) as first, Simulator(transcripts=KNOWN) as second:
            if kind == "bare":
                stt = deepgram(first)
            else:
                rescue, stats = openai(second), ProviderStats()
                primary = deepgram(first) if kind == "kept" else lambda: deepgram(first)
                stt = HedgedSTTService(primary, rescue, stats=stats)
            phone = Phone(stt)
            await stack.enter_async_context(phone)
            await phone.speak(DELIVER, 0.8)
            first.set_conditions(fault=fault, delay=BACK_SECS)
            speaking = asyncio.create_task(phone.play(joined(LONG), 1.5))
            await first.ledger.wait_until(
                lambda ledger: any(entry.fault == fault for entry in ledger.open), 10
            )
            first.set_conditions()
            await speaking
            for text in (SUNDAY, PARKING, "thank you goodbye"):
                await phone.speak(text, 1.5)
        return " ".join(phone.said).split()


async def test_dead_socket_loses_no_word() -> None:
    """And none is said twice when it reads on."""
    cells = list(itertools.product(KINDS, FAULTS))
    said = dict(zip(cells, await asyncio.gather(*(hold(*cell) for cell in cells)), strict=True))
    for fault in FAULTS:
        bare = said["bare", fault]
        print(f"\n{fault}: of {len(WORDS)} words bare said {len(bare)}")
        assert said["kept", fault] == WORDS
        assert said["replaced", fault] == WORDS
        assert len(bare) < len(WORDS)
    gc.collect()
