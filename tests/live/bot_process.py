"""The example bot in a process of its own, as `make bot` runs it, and calls to it over WebRTC."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import aiohttp
from examples.voice_bot.choices import SETTINGS

from pipecat_hedge.tools.replay import Caller, Message, Utterance, utterances

ROOT = Path(__file__).parents[2]
READY = re.compile(r"Uvicorn running on (http://\S+)")
SIMULATOR = re.compile(r"providers at (http://\S+)")
START_SECS = 60  # imports are slow where the cores are busy
STOP_SECS = 10
HEARD_SECS = 20  # generous: the machine may be busy with something else
RECORDINGS = utterances([ROOT / "fixtures/audio"])


class BotProcess:
    """Starts the bot on a free port and ends it with Ctrl-C.

    Args:
        arguments: Further arguments of the command line.
        settings: Settings of the bot; those of this machine do not reach it.
    """

    def __init__(self, *arguments: str, **settings: str):
        self._arguments = arguments
        ours = {setting.name for setting in SETTINGS}
        self._env = {name: value for name, value in os.environ.items() if name not in ours}
        self._env |= {"PYTHON_DOTENV_DISABLED": "1", "PYTHONUNBUFFERED": "1", **settings}
        self.lines: list[str] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "examples.voice_bot", "--port", "0", "--loopback-only", *self._arguments),
            cwd=ROOT,
            env=self._env,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        url = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read(url))
        try:
            self.url = await asyncio.wait_for(url, START_SECS)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        await self.stop()
        if error is not None:
            error.add_note("the bot's output:\n" + "\n".join(self.lines[-40:]))
        else:
            assert not [line for line in self.lines if "Traceback" in line]

    async def ledger(self, *, wait_secs: float = 5) -> dict[str, Any]:
        """All requests to its simulated providers: ``{"requests": [...], "open": n}``.

        Args:
            wait_secs: Wait up to so long until none is open.
        """
        url = next(found[1] for line in self.lines if (found := SIMULATOR.search(line)))
        address = f"{url}/ledger?wait={wait_secs:g}"
        async with aiohttp.ClientSession() as session, session.get(address) as answer:
            return await answer.json()

    async def stop(self) -> int:
        """End the bot with Ctrl-C, or by force if it does not end.

        Returns:
            Its exit status; -9 if it had to be killed.
        """
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECS)
            except TimeoutError:
                self._process.kill()
        status = await self._process.wait()
        await self._reader
        return status

    async def _read(self, url: asyncio.Future[str]) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(line.decode().rstrip())
            if not url.done() and (found := READY.search(self.lines[-1])):
                url.set_result(found[1])
        if not url.done():
            url.set_exception(RuntimeError("the bot ended at once:\n" + "\n".join(self.lines)))


# ---- a call


def recording(name: str) -> Utterance:
    """The recording whose name begins so."""
    (found,) = (each for each in RECORDINGS if each.name.startswith(name))
    return found


def is_turn(message: Message) -> bool:
    """Whether a message is a turn's report."""
    return message["type"] == "server-message" and message["data"]["type"] == "turn"


def of_type(kind: str) -> Callable[[Message], bool]:
    """Whether a message is of a type."""
    return lambda message: message["type"] == kind


async def turn_report(caller: Caller, since: int) -> dict[str, Any]:
    """The first turn that was heard, of those whose message came later."""

    def is_heard(message: Message) -> bool:
        return is_turn(message) and message["data"]["voice_to_voice_secs"] is not None

    message = await caller.message("the report", is_heard, since=since, timeout_secs=HEARD_SECS)
    return message["data"]


async def greeted(caller: Caller) -> None:
    """Hear the greeting out."""
    await caller.message("the greeting", of_type("bot-started-speaking"), timeout_secs=HEARD_SECS)
    await heard_out(caller, await caller.wait_until_audible(0, timeout_secs=HEARD_SECS))


async def heard_out(caller: Caller, heard_at: float, *, since: int = 0) -> None:
    """Wait until the bot has finished speaking."""
    stopped = of_type("bot-stopped-speaking")
    await caller.message("the end of it", stopped, since=since, timeout_secs=HEARD_SECS)
    await caller.wait_until_silent(heard_at, timeout_secs=HEARD_SECS)
