"""What a peer's process does: plays the turns, and prints a line of JSON for each.

It runs in the peer's environment, so it needs no package.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

from benchmarks.sections import ANSWER, ARGUMENTS, SENTENCE, TOOL, Section, prompt


class Heard:
    """A turn: what was asked, and what has come of it, with its times."""

    def __init__(self, section: Section, turn: int):
        self.section, self.turn = section, turn
        self.prompt = prompt(section.name, turn)
        self.wanted, self.sentence = ANSWER, SENTENCE
        self.sent_at = time.monotonic()
        self.first_secs: float | None = None
        self.sentence_secs: float | None = None
        self.text = ""
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

    def call(self, name: str, arguments: dict[str, Any]) -> None:
        """Take in a tool call that the peer would run."""
        self.calls.append((name, arguments))
        self.first_secs = self.sentence_secs = time.monotonic() - self.sent_at

    @property
    def outcome(self) -> str:
        """``ok``, ``cut`` (a part of the answer), ``wrong`` (something else) or ``lost``."""
        if self.section.has_tools:
            whole = self.calls == [(TOOL, ARGUMENTS)]
            return "ok" if whole else "wrong" if self.calls else "lost"
        text = " ".join(self.text.split())
        if text == self.wanted:
            return "ok"
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
            "error": self.error,
        }


Ask = Callable[[Heard], Awaitable[None]]
"""Asks a turn's question, and returns when the answer is over; cancelled when the caller leaves."""
NewCaller = Callable[[], AbstractAsyncContextManager[Ask]]
"""Opens a call."""
Peer = Callable[[str, str, Section], AbstractAsyncContextManager[NewCaller]]
"""Sets a peer up: its kind, the providers' address, and the section."""


def show(**line: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(line), flush=True)


async def play(peer: Peer, kind: str, url: str, section: Section, half: asyncio.Event) -> None:
    """Play a section; ``half`` is set when half of its calls are over."""
    left = section.callers
    async with AsyncExitStack() as stack:
        new_caller = await stack.enter_async_context(peer(kind, url, section))
        asks = [await stack.enter_async_context(new_caller()) for _ in range(section.callers)]

        async def call(number: int, ask: Ask) -> None:
            nonlocal left
            if section.name != "fifty":
                await asyncio.sleep(number / section.callers)  # not all in the same moment
            for turn in range(number * section.turns, (number + 1) * section.turns):
                heard = Heard(section, turn)
                try:
                    async with asyncio.timeout(section.give_up_secs):
                        await ask(heard)
                except Exception as error:
                    heard.error = f"{type(error).__name__}: {error}"[:200]
                show(**heard.line())
            left -= 1
            if 2 * left <= section.callers:
                half.set()

        show(begins=section.name)
        before_secs = time.process_time()
        await asyncio.gather(*(call(number, ask) for number, ask in enumerate(asks)))
        cpu_secs = time.process_time() - before_secs
        show(ends=section.name, cpu_secs=cpu_secs)


async def play_all(peer: Peer, kind: str, url: str, sections: list[Section]) -> None:
    """Play the sections: those with faults together, when half of the usual day's calls are over.

    The rest of those calls wait for slow answers, so the machine is nearly idle.
    """
    faulty = [section for section in sections if section.name not in ("one", "fifty", "calm")]
    async with asyncio.TaskGroup() as group:
        for section in sections:
            if section not in faulty:
                half = asyncio.Event()
                playing = group.create_task(play(peer, kind, url, section, half))
                await (half.wait() if section.name == "calm" else playing)
        show(nearly_idle=True)
        for section in faulty:
            group.create_task(play(peer, kind, url, section, asyncio.Event()))


def main(peer: Peer) -> None:
    """Play what the arguments say: the kind of peer, the address, and the sections as JSON."""
    kind, url, wanted = sys.argv[1:]
    sections = [Section(**each) for each in json.loads(wanted)]
    asyncio.run(play_all(peer, kind, url, sections))
