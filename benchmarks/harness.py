"""What a peer's process does: plays the turns, and prints a line of JSON for each.

It runs in the peer's environment, so it needs no package.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from benchmarks.sections import ANSWER, ARGUMENTS, SENTENCE, SPOKEN, TOOL, VOICES, Section, prompt

RATE, PIECE = 16_000, 320
PAUSE_SECS = 0.3
"""Between two turns of a call: so many calls at once leave the slowest peer a third of a core."""
WARM_UP = Section("warm", 1, 1)
AUDIBLE = 300
"""A sample of 16 bit that can be heard."""


class Heard:
    """A turn: what was asked, and what has come of it, with its times."""

    def __init__(self, section: Section, turn: int):
        self.section, self.turn = section, turn
        self.prompt = prompt(section.name, turn)
        self.wanted, self.sentence = ANSWER, SENTENCE
        if section.name in VOICES:
            self.wanted = self.sentence = SPOKEN
        self.sent_at = time.monotonic()
        self.first_secs: float | None = None
        self.sentence_secs: float | None = None
        self.text = ""
        self.played_at = 0.0
        """When a voice's audio will have been played."""
        self.calls = list[tuple[str, dict[str, Any]]]()
        self.error = ""

    def say(self, text: str) -> None:
        """Take in a part of the answer."""
        self.text += text
        secs = time.monotonic() - self.sent_at
        if self.first_secs is None and self.text.strip():
            self.first_secs = secs
        if self.sentence_secs is None and self.sentence in self.text:
            self.sentence_secs = secs

    def sound(self, audio: bytes, rate: int) -> None:
        """Take in a voice's audio, 16 bit, mono: a sound that can be heard is enough."""
        self.played_at = max(self.played_at, time.monotonic()) + len(audio) / 2 / rate
        if not self.text and max(array("h", audio), default=0) > AUDIBLE:
            self.say(self.wanted)

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        """Take in a tool call that the peer would run."""
        self.calls.append((name, arguments))
        self.first_secs = self.sentence_secs = time.monotonic() - self.sent_at

    @property
    def outcome(self) -> str:
        """What the caller heard.

        ``ok``, ``cut`` (a part of the answer), ``said twice`` (a part, then all of it), ``wrong``
        (something else) or ``lost``.
        """
        if self.section.has_tools:
            whole = self.calls == [(TOOL, ARGUMENTS)]
            return "ok" if whole else "wrong" if self.calls else "lost"
        text = " ".join(self.text.split())
        if text == self.wanted:
            return "ok"
        if text.endswith(self.wanted):
            return "said twice"
        return "lost" if not text else "cut" if self.wanted.startswith(text) else "wrong"

    def line(self) -> dict[str, Any]:
        """The turn as JSON values; times in seconds."""
        return {
            "section": self.section.name,
            "turn": self.turn,
            "sent_at": self.sent_at,
            "first_secs": self.first_secs,
            "sentence_secs": self.sentence_secs,
            "end_secs": time.monotonic() - self.sent_at,
            "outcome": self.outcome,
            "words": len(self.text.split()),
            "error": self.error,
        }


async def speech(hear: Callable[[bytes, bool], Awaitable[None]], heard: Heard) -> None:
    """Play a question in real time, and then silence, until cancelled.

    ``hear`` gets pieces of 20 ms, 16 kHz, mono, 16 bit, and whether they are speech. The turn's
    times count from the end of speech.
    """
    tone = (int(8000 * math.sin(2 * math.pi * 440 * n / RATE)) for n in range(PIECE))
    loud, silent = array("h", tone).tobytes(), bytes(2 * PIECE)
    began = time.monotonic()
    for number in itertools.count():
        is_speech = 15 <= number < 75
        await hear(loud if is_speech else silent, is_speech)
        if is_speech:
            heard.sent_at = time.monotonic()
        await asyncio.sleep(began + (number + 1) * PIECE / RATE - time.monotonic())


Ask = Callable[[Heard], Awaitable[None]]
"""Asks a turn's question, and returns when the answer is over; cancelled when the caller leaves."""
NewCaller = Callable[[], AbstractAsyncContextManager[Ask]]
"""Opens a call."""
Peer = Callable[[str, str, Section], AbstractAsyncContextManager[NewCaller]]
"""Sets a peer up: its kind, the providers' address, and the section."""


def show(**line: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(line), flush=True)


async def play(peer: Peer, kind: str, url: str, section: Section, begun: asyncio.Event) -> None:
    """Play a section: open its calls, each with a first turn that does not count, then all others.

    Of a usual day, ``begun`` is set when half of its calls are over: the others wait for slow
    answers, so the machine is nearly idle.
    """
    left = section.callers
    async with AsyncExitStack() as stack:
        new_caller = await stack.enter_async_context(peer(kind, url, section))
        asks = list[Ask]()
        for number in range(section.callers):
            asks.append(await stack.enter_async_context(new_caller()))
            if section.name not in VOICES:
                await asks[-1](Heard(WARM_UP, number))

        async def call(number: int, ask: Ask) -> None:
            nonlocal left
            await asyncio.sleep(number / section.callers)  # not all in the same moment
            for turn in range(number * section.turns, (number + 1) * section.turns):
                heard = Heard(section, turn)
                try:
                    async with asyncio.timeout(section.give_up_secs):
                        await ask(heard)
                except Exception as error:
                    heard.error = f"{type(error).__name__}: {error}"[:200]
                show(**heard.line())
                playing_secs = max(heard.played_at - time.monotonic(), 0.0)
                await asyncio.sleep(playing_secs + (PAUSE_SECS if section.callers > 1 else 0.0))
            left -= 1
            if 2 * left <= section.callers:
                begun.set()

        show(begins=section.name)
        if section.name != "calm":
            begun.set()
        before_secs = time.process_time()
        await asyncio.gather(*(call(number, ask) for number, ask in enumerate(asks)))
        cpu_secs = time.process_time() - before_secs
        show(ends=section.name, cpu_secs=cpu_secs)


async def play_all(peer: Peer, kind: str, url: str, sections: list[Section]) -> None:
    """Play the sections: those with faults together, beside the end of the usual day."""
    async with asyncio.TaskGroup() as group:
        for section in sections:
            begun = asyncio.Event()
            playing = group.create_task(play(peer, kind, url, section, begun))
            await (playing if section.name in ("one", "fifty") else begun.wait())
        show(nearly_idle=True)


def main(peer: Peer) -> None:
    """Play what the arguments say: the kind of peer, the address, and the sections as JSON."""
    kind, url, wanted = sys.argv[1:]
    sections = [Section(**each) for each in json.loads(wanted)]
    asyncio.run(play_all(peer, kind, url, sections))
