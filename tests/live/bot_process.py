"""The example bot in a process of its own, as `make bot` runs it, on ports of its own choice."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from examples.voice_bot.choices import SETTINGS

__all__ = ["BotProcess"]

ROOT = Path(__file__).parents[2]
READY = re.compile(r"Uvicorn running on (http://\S+)")
SIMULATOR = re.compile(r"providers at (http://\S+)")
START_SECS = 60  # imports are slow where the cores are busy
STOP_SECS = 10


class BotProcess:
    """Starts the bot and ends it with Ctrl-C.

    Args:
        arguments: More of the command line.
        settings: Settings of the bot; those of this machine do not reach it.
    """

    def __init__(self, *arguments: str, **settings: str):
        self._arguments = arguments
        ours = {setting.name for setting in SETTINGS}
        self._env = {name: value for name, value in os.environ.items() if name not in ours}
        self._env |= {"PYTHON_DOTENV_DISABLED": "1", "PYTHONUNBUFFERED": "1", **settings}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
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
        try:
            async with asyncio.timeout(START_SECS):
                while not (found := READY.search(await self._read_line())):
                    pass
        except BaseException:
            await self.stop()
            raise
        self.url = found[1]
        self._reader = asyncio.create_task(self._read_on())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()
        if error is not None:
            error.add_note("the bot said:\n" + "\n".join(self.lines[-40:]))

    @property
    def simulator_url(self) -> str:
        """Where the simulated providers are."""
        return next(found[1] for line in self.lines if (found := SIMULATOR.search(line)))

    async def ledger(self, *, wait_secs: float = 5) -> dict[str, Any]:
        """What became of every request to a provider: ``{"requests": [...], "open": n}``.

        Args:
            wait_secs: Wait up to so long until none is open.
        """
        address = f"{self.simulator_url}/ledger?wait={wait_secs:g}"
        async with aiohttp.ClientSession() as session, session.get(address) as answer:
            return await answer.json()

    async def stop(self) -> int:
        """End the bot with Ctrl-C, or by force if that does not do it.

        Returns:
            Its exit status; -9 if it had to be killed.
        """
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGINT)
            try:
                await asyncio.wait_for(self._process.wait(), STOP_SECS)
            except TimeoutError:
                self._process.kill()
        status = await self._process.wait()
        if self._reader is not None:
            await self._reader
        return status

    async def _read_line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        line = (await self._process.stdout.readline()).decode()
        if not line:
            raise RuntimeError("the bot ended at once; it said:\n" + "\n".join(self.lines))
        self.lines.append(line.rstrip())
        return line

    async def _read_on(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(line.decode().rstrip())
