"""500 turns on real sockets, with every fault of a voice and barge-ins: nothing grows."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sized
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Limits
from openai import DefaultAsyncHttpxClient
from pipecat.services.tts_service import WebsocketTTSService
from websockets.asyncio.client import connect
from websockets.protocol import State

from pipecat_hedge import HedgedTTSService, ProviderStats, SpeechReport, Voice
from pipecat_hedge.tools.simulator.server import ProviderUrls
from tests.live.test_proxy_soak import rss_mb
from tests.live.test_voices import Call, cartesia, elevenlabs, openai

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.timeout(500)]

RATE = 16000
CALLS = 20
TURNS = [5, 10, 10]
"""Of each call before each measurement: 100, 200 and 200 in all."""
TEXTS = ["Yes, we do. ", "It is forty minutes. ", "Shall we?"]
FAULTS = [
    *("silent", "late&delay=9", "half_open", "1008&after=1", "silence_only", "wrong_context"),
    *("no_timestamps", "stall&after=1", "cut&after=1", "dribble&delay=1", "slow_close&delay=7"),
    *("429", "half_open&after=2", "empty"),
]
SCRIPT = [keys for fault in FAULTS for keys in ("", "", "", "", f"?fault={fault}")]
BARGE_INS = 0.1
PING_SECS = 3.0
"""Between two pings, and until one is missed: 20 s by default."""
SETTLED_SECS = 35.0 + 2 * PING_SECS
"""Pipecat finds a half-open socket by its pings, closes it for up to 12 s, and then tries three
times to open it, for 12 s."""
BOUNDED = {"HostedVoice.first_sound_secs", "ElevenLabsTTSService._alignment_started_context_ids"}
"""The last hundred sentences; and the ids of ended contexts whose audio came in another's name,
which Pipecat keeps with a bare service, too."""
_SIMULATOR = """
import asyncio, json, sys
import numpy as np
from pipecat_hedge.tools.simulator import Simulator

def voice(text):  # 10 ms a character
    return np.resize(np.repeat(np.int16([8000, -8000]), 20), 160 * len(text))

async def main():
    async with Simulator(voice=voice, voice_script=json.loads(sys.argv[1])) as simulator:
        print(simulator.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


class Voices(ProviderUrls):
    """The simulated voices, in a process of their own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SIMULATOR, json.dumps(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self._url = self._process.stdout.readline().strip()

    @property
    def url(self) -> str:
        return self._url

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class SoakedCall(Call):
    """A call whose turns are spoken one after another, and some interrupted."""

    def __init__(self, voices: list[Voice], stats: ProviderStats, seed: int):
        self.tts = HedgedTTSService(voices, stats=stats, sample_rate=RATE)
        super().__init__(self.tts)
        self._rng = random.Random(seed)
        self.ended: Counter[str] = Counter()
        self._reported = asyncio.Event()
        self.tts.add_event_handler("on_speech_report", self._take)

    async def _take(self, _: object, report: SpeechReport) -> None:
        self.ended["interrupted" if report.was_interrupted else "whole"] += 1
        self.ended["rescued"] += report.rescued
        self.ended["left out"] += report.left_out
        self._reported.set()

    async def turns(self, count: int) -> None:
        for _ in range(count):
            self._reported.clear()
            await self.say(*TEXTS)
            if self._rng.random() < BARGE_INS:
                await asyncio.sleep(self._rng.uniform(0.05, 0.8))
                await self.interrupt()
            await asyncio.wait_for(self._reported.wait(), 60)
            self.forget()


@asynccontextmanager
async def calling(stats: ProviderStats, seed: int, sim: Voices) -> AsyncIterator[SoakedCall]:
    """A call with three voices, each in trouble with a fifth of its sentences."""
    limits = Limits(max_keepalive_connections=0)  # so that each open socket is a voice's
    async with DefaultAsyncHttpxClient(limits=limits) as client:
        services = [
            cartesia(sim, sample_rate=RATE),  # pyright: ignore[reportArgumentType]
            elevenlabs(sim, sample_rate=RATE),  # pyright: ignore[reportArgumentType]
            openai(sim, http_client=client, sample_rate=24000),  # pyright: ignore[reportArgumentType]
        ]
        voices = [Voice(type(each).__name__, each, same_voice=True) for each in services]
        call = SoakedCall(voices, stats, seed)
        async with call:
            yield call


@dataclass
class Level:
    """What there is while nobody speaks.

    Parameters:
        tasks: Of the loop.
        names: What these run, and how many of each there are.
        sockets: That are open.
        lost: Connections that have been given up.
        rss_mb: Memory of the process.
        objects: That the garbage collector knows.
        kept: The entries of everything that services and voices keep, by its name.
    """

    tasks: int
    sockets: int
    lost: int
    rss_mb: float
    objects: int
    kept: dict[str, int] = field(repr=False)
    names: Counter[str] = field(repr=False)


def running() -> Counter[str]:
    """What the tasks of the loop run, by name; names of runners and workers have numbers."""
    names: list[str] = []
    for task in asyncio.all_tasks():
        work: Any = task.get_coro()
        names.append(work.__qualname__ + re.sub(r"#\d+|-[0-9a-f]+", "", task.get_name()))
    return Counter(names)


def counts() -> tuple[int, int]:
    """The tasks of the loop, and the open sockets."""
    links = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return len(asyncio.all_tasks()), sum(link.startswith("socket:") for link in links)


def lost(calls: list[SoakedCall]) -> int:
    """The connections that a service has given up, as bare: the next text opens them again."""
    services: list[Any] = [voice.service for call in calls for voice in call.tts._voices]
    sockets = [each._websocket for each in services if isinstance(each, WebsocketTTSService)]
    return sum(socket is None or socket.state is not State.OPEN for socket in sockets)


async def measure(calls: list[SoakedCall], before: tuple[int, int]) -> Level:
    """What there is when tasks and sockets are as before and no request is open, or after 41 s.

    A voice that reconnects has one task more, a connection that was lost one less.
    """

    def is_settled() -> bool:
        tasks, sockets = counts()
        is_idle = not any(voice.open for call in calls for voice in call.tts._voices)
        return is_idle and tasks <= before[0] and sockets + lost(calls) == before[1]

    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLED_SECS):
            while not is_settled():
                await asyncio.sleep(0.2)
    gc.collect()
    kept: Counter[str] = Counter()
    for call in calls:
        hosted: list[Any] = call.tts._voices
        for each in (call.tts, *hosted, *(voice.service for voice in hosted)):
            for name, value in vars(each).items():
                if isinstance(value, Sized) and not isinstance(value, (str, bytes)):
                    kept[f"{type(each).__name__}.{name}"] += len(value)
        kept["slots"] += sum(
            len(voice.service._aggregated_frame_sequencer._slots) for voice in hosted
        )
    tasks, sockets = counts()
    return Level(
        tasks=tasks,
        sockets=sockets,
        lost=lost(calls),
        rss_mb=rss_mb(os.getpid()),
        objects=len(gc.get_objects()),
        kept=dict(kept),
        names=running(),
    )


async def test_memory_sockets_and_tasks_are_level_over_500_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinging = partial(connect, ping_interval=PING_SECS, ping_timeout=PING_SECS)
    monkeypatch.setattr("pipecat.services.websocket_service.websocket_connect", pinging)
    stats, sim, levels = ProviderStats(), Voices(), list[Level]()
    async with AsyncExitStack() as stack:
        calls = [await stack.enter_async_context(calling(stats, n, sim)) for n in range(CALLS)]
        stack.callback(sim.close)  # first: a half-open socket answers no close
        before, ran = counts(), running()
        for count in TURNS:
            await asyncio.gather(*(call.turns(count) for call in calls))
            levels.append(await measure(calls, before))
            done = sum((call.ended for call in calls), Counter[str]())
            print(f"{dict(done)}: {levels[-1]}")
    first, later, last = levels
    grown = {name for name, count in last.kept.items() if count > first.kept[name]} - BOUNDED
    assert not grown
    for level in levels:
        assert level.sockets + level.lost == before[1]
        assert (
            before[0] - 2 * level.lost <= level.tasks <= before[0]
        ), (  # its reader, and its pings
            level.names - ran
        )
    assert last.objects < 1.02 * first.objects
    assert last.rss_mb < 1.1 * later.rss_mb  # by then, most of what is learned is known
