"""The scripted bot as a command, called with PORT FILE [BEHAVIOUR].

It has a child that does nothing, appends a line with its own process id, its child's and the port
to FILE, and then behaves: "answers", "exits" in mid-call, "stays" whatever signal it gets.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.replay.scripted_bot import ScriptedBot


@dataclass(frozen=True, slots=True)
class Started:
    """What a bot has written of itself."""

    processes: tuple[int, ...]
    port: int

    @property
    def left(self) -> list[int]:
        """Which of its processes still run."""
        return [pid for pid in self.processes if is_running(pid)]


def started(file: Path) -> list[Started]:
    """Every bot that was started."""
    lines = (list(map(int, line.split())) for line in file.read_text().splitlines())
    return [Started((pid, child), port) for pid, child, port in lines]


def is_running(pid: int) -> bool:
    """Whether a process runs, zombies excluded."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def answer(turn: int) -> list[dict[str, Any]]:
    return [
        {"label": "rtvi-ai", "type": "bot-llm-text", "data": {"text": "We are open till nine."}}
    ]


def leave(turn: int) -> list[dict[str, Any]]:
    print("something has gone wrong", flush=True)
    os._exit(3)


async def serve(port: int, behaviour: str) -> None:
    messages = leave if behaviour == "exits" else answer
    async with ScriptedBot(messages=messages, speaks_secs=2.0, port=port):
        if behaviour == "stays":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        await asyncio.Event().wait()


def main(port: str, file: str, behaviour: str = "answers") -> None:
    child = subprocess.Popen(["sleep", "1000"])
    with Path(file).open("a") as notes:
        print(os.getpid(), child.pid, port, file=notes)
    print(f"the scripted bot is at port {port}", flush=True)
    asyncio.run(serve(int(port), behaviour))


if __name__ == "__main__":
    main(*sys.argv[1:])
