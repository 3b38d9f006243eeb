"""A bot in a process of its own, that ends with the test whatever becomes of the test.

Law: when a bot's context has been left, nothing of its process group runs any more.

The naive ways leak. A signal to the process leaves its children, hence the group. A bot that waits
for its caller to hang up does not end at Ctrl-C, hence three signals, each with a bound. And a test
run that is killed tidies nothing up, hence a warden: a process that does nothing but wait for the
end of a pipe, which comes however the test run ends, and then kills the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import aiohttp

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.tools.replay.bot import Bot, BotFailed
from pipecat_hedge.tools.replay.waits import check_wait

__all__ = ["CommandBot"]

HOST = "127.0.0.1"
START_SECS = 60.0
POLL_SECS, REPLY_SECS = 0.05, 5.0
ENDINGS = ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0))
"""What the bot is told to end with, and how long it may take to obey."""
KILLED_SECS = 5.0
OUTPUT_BYTES = 16_384
_WARDEN = """
import os, signal, sys
sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except OSError:
    pass
"""


class CommandBot(Bot):
    """Starts a bot with a command, and ends it.

    Example::

        async with CommandBot("python bot.py --port {port}") as bot, Caller(bot.url) as caller:
            ...
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        start_secs: float = START_SECS,
    ):
        """Prepare a bot; it is started when it is entered.

        Args:
            command: What starts it: a line, split as a shell does but not run by one, or its
                words. ``{port}`` in it becomes a free port, which the environment variable
                ``PORT`` has too. ``python`` is the one that runs this.
            env: Environment variables, besides those of this process.
            cwd: Where it runs; here if None.
            start_secs: A bot that nobody can call after so long has not started.

        Raises:
            ConfigurationError: If an argument cannot work; the message names it.
        """
        super().__init__()
        try:
            words = shlex.split(command) if isinstance(command, str) else [*map(str, command)]
        except ValueError as e:
            raise ConfigurationError(f"command: {e} in {command!r}: close the quotes") from e
        if not words or not words[0]:
            told = 'command: there is nothing to run; write "python bot.py --port {port}", say'
            raise ConfigurationError(told)
        check_wait("start_secs", start_secs)
        if os.name != "posix":
            told = "command: this takes a POSIX system; start the bot yourself and give its address"
            raise ConfigurationError(told)
        self._words = words
        self._env = dict(env or {})
        self._cwd = cwd
        self._start_secs = start_secs
        self._scope = TaskScope()
        self._said: IO[bytes] | None = None
        self._tail = ""
        self._warden: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        self._failure, self._tail = None, ""
        port = _free_port()
        # A file, not a pipe: it never fills up while the test's loop stands still.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the bot runs
        try:
            self._process = await self._launch(port)
        except OSError as e:
            self._forget_output()
            raise BotFailed(
                f"{self._words[0]} cannot be run ({e.strerror}): correct the bot's command"
            ) from e
        try:
            self._warden = _ward(self._process.pid)
            self._scope.start(self._watch(), name="bot's process")
            async with self.watched():
                await self._listens(port)
        except BaseException:
            await self._stop()
            raise
        self.url = f"http://{HOST}:{port}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.annotate(error)
        await self._stop()

    @property
    def output(self) -> str:
        """The end of what it has written, to its standard output and standard error."""
        if self._said is None:
            return self._tail
        file = self._said.fileno()  # shared with the bot: reading must not move it
        begin = max(os.fstat(file).st_size - OUTPUT_BYTES, 0)
        return os.pread(file, OUTPUT_BYTES, begin).decode(errors="replace").strip()

    # ---- inside

    async def _launch(self, port: int) -> asyncio.subprocess.Process:
        words = [word.replace("{port}", str(port)) for word in self._words]
        if words[0] in ("python", "python3"):
            words[0] = sys.executable
        return await asyncio.create_subprocess_exec(
            *words,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env, "PORT": str(port)},
            cwd=self._cwd,
            start_new_session=True,
        )

    async def _watch(self) -> None:
        status = await self._process.wait()
        self._fail(
            f"the bot ended by itself, with status {status}: run {shlex.join(self._words)} to see "
            "why, with a number for {port}"
        )

    async def _listens(self, port: int) -> None:
        patience = aiohttp.ClientTimeout(total=REPLY_SECS)
        try:
            async with (
                asyncio.timeout(self._start_secs),
                aiohttp.ClientSession(timeout=patience) as session,
            ):
                while True:
                    if await _replies(session, f"http://{HOST}:{port}/api/offer"):
                        return
                    await asyncio.sleep(POLL_SECS)
        except TimeoutError:
            error = BotFailed(
                f"nobody listens on port {port}, {self._start_secs:g} s after the bot was started: "
                "write {port} into its command where it takes its port, or have it read the "
                "environment variable PORT; a bot that starts slowly needs more start_secs"
            )
            self.annotate(error)
            raise error from None

    async def _stop(self) -> None:
        process = self._process
        self.url = ""
        # Who was started in a shell's background ignores SIGINT, and so do its children.
        is_deaf = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        try:
            for number, secs in ENDINGS[1:] if is_deaf else ENDINGS:
                if process.returncode is not None:
                    break
                _signal_group(process.pid, number)
                await _ended(process, secs)
        finally:
            _signal_group(process.pid, signal.SIGKILL)  # whatever is left of it
            if self._warden is not None:
                self._warden.kill()
                self._warden.communicate()
            await _ended(process, KILLED_SECS)
            await self._scope.close()
            self._forget_output()

    def _forget_output(self) -> None:
        """Keep the end of it."""
        self._tail = self.output
        if self._said is not None:
            self._said.close()
            self._said = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


async def _replies(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether somebody speaks HTTP there, whatever it says."""
    try:
        async with session.get(url):
            return True
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _ended(process: asyncio.subprocess.Process, within_secs: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_secs):
            await process.wait()


def _signal_group(leader: int, number: int) -> None:
    # Nobody is left; on macOS, nobody but who is waited for.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _ward(leader: int) -> subprocess.Popen[bytes]:
    """Have a process group killed if this process ends without having done so."""
    words = [sys.executable, "-I", "-S", "-c", _WARDEN, str(leader)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(
        words, stdin=pipe, stdout=nowhere, stderr=nowhere, start_new_session=True
    )
