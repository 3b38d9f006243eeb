"""Bots to call: at an address, started by a command, or a function in this process.

A call to a failed bot ends at once with the reason. Leaving a bot's context stops all of it.
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
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Self, TypeAlias

from aiohttp import web

from pipecat_hedge.race import ConfigurationError, TaskScope, missing_extra
from pipecat_hedge.tools.replay.peer import CallError, check_secs, loopback_only

HOST = "127.0.0.1"
START_SECS = 60.0
POLL_SECS = 0.05
STOP_SECS = 5.0
OUTPUT_BYTES, OUTPUT_LINES = 16_384, 40
_OUTPUT_NOTE = "the bot's output:"


class BotFailed(CallError):
    """A bot did not start, or ended during a call; the message has the reason.

    The last lines of its output, if any, are in the exception's notes.
    """


class Bot:
    """A bot at an address; it runs already and is not stopped.

    Attributes:
        url: Its address; empty while it does not run.
    """

    def __init__(self, url: str = ""):
        self.url = url
        self._failure: BotFailed | None = None
        self._is_raised = False
        self._watching: set[asyncio.Timeout] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        return None

    @property
    def is_running(self) -> bool:
        """Whether the bot can be called."""
        return bool(self.url)

    @property
    def output(self) -> str:
        """The end of its output; empty if unknown."""
        return ""

    def annotate(self, error: BaseException) -> None:
        """Add the last lines of the bot's output to an exception's notes, once."""
        notes: list[str] = getattr(error, "__notes__", [])
        if self.output and not any(note.startswith(_OUTPUT_NOTE) for note in notes):
            lines = self.output.splitlines()[-OUTPUT_LINES:]
            error.add_note("\n".join((_OUTPUT_NOTE, *(f"  {line}" for line in lines))))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Cancel the body when the bot fails.

        Raises:
            BotFailed: If it has failed, or fails meanwhile.
        """
        self._raise_failure()
        never = asyncio.timeout(None)
        try:
            async with never:
                self._watching.add(never)
                yield
        except TimeoutError:
            if never.expired():
                self._raise_failure()
            raise
        finally:
            self._watching.discard(never)

    def _fail(self, why: str, cause: BaseException | None = None) -> None:
        """Cancel all watched bodies; the first failure is raised."""
        if self._failure is None:
            self._failure = BotFailed(why)
            self._failure.__cause__ = cause
            now = asyncio.get_running_loop().time()
            for watching in self._watching:
                watching.reschedule(now)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            self._is_raised = True
            self.annotate(self._failure)
            raise self._failure


# ---- commands

_WARDEN = """
import os, signal, sys
sys.stdin.buffer.read()
try:
    os.killpg(int(sys.argv[1]), signal.SIGKILL)
except OSError:
    pass
"""
"""Waits until a pipe closes, however this process ends, and then kills a process group."""


class CommandBot(Bot):
    """Starts a bot with a command, and stops it and its children.

    It gets SIGTERM, and SIGKILL if it still runs after ``stop_secs``. If this process is killed, so
    is the bot.

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
        stop_secs: float = STOP_SECS,
    ):
        """Prepare a bot; it starts when entered.

        Args:
            command: The command line, split as by a shell but not run by one, or a list of
                arguments. ``{port}`` becomes a free port, which is also in the environment variable
                ``PORT``. ``python`` is the current interpreter.
            env: Environment variables, in addition to those of this process.
            cwd: The working directory; None keeps the current one.
            start_secs: The longest time until the bot listens, in seconds; more than 0.
            stop_secs: The longest time from SIGTERM to the exit, in seconds; more than 0.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it.
        """
        super().__init__()
        try:
            arguments = shlex.split(command) if isinstance(command, str) else [*map(str, command)]
        except ValueError as e:
            raise ConfigurationError(f"command: {e} in {command!r}: close the quotes") from e
        if not arguments or not arguments[0]:
            raise ConfigurationError(
                'command is empty: write, for example, "python bot.py --port {port}"'
            )
        check_secs("start_secs", start_secs)
        check_secs("stop_secs", stop_secs)
        if os.name != "posix":
            raise ConfigurationError(
                "command: needs a POSIX system; start the bot yourself and give its address"
            )
        self._argv = arguments
        self._env = dict(env or {})
        self._cwd = cwd
        self._start_secs, self._stop_secs = start_secs, stop_secs
        self._scope = TaskScope()
        self._log: IO[bytes] | None = None
        self._log_end = ""

    async def __aenter__(self) -> Self:
        self._failure, self._log_end = None, ""
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        # A file, not a pipe: a pipe could fill while the test's loop is blocked.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the bot runs
        try:
            self._process = await self._launch(port)
        except OSError as e:
            self._close_log()
            raise BotFailed(
                f"{self._argv[0]} cannot be run ({e.strerror}): correct the bot's command"
            ) from e
        self._warden = subprocess.Popen(  # noqa: ASYNC220 - outlives the loop
            [sys.executable, "-I", "-S", "-c", _WARDEN, str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._scope.start(self._watch(), name="bot's process")
            async with self.watched():
                await self._wait_for_server(port)
        except BaseException:
            await self._stop()
            raise
        self.url = f"http://{HOST}:{port}"
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.annotate(error)
        await self._stop()

    @property
    def output(self) -> str:
        """The end of its standard output and standard error."""
        if self._log is None:
            return self._log_end
        file = self._log.fileno()  # shared with the bot: reading must not move its position
        begin = max(os.fstat(file).st_size - OUTPUT_BYTES, 0)
        return os.pread(file, OUTPUT_BYTES, begin).decode(errors="replace").strip()

    async def _launch(self, port: int) -> asyncio.subprocess.Process:
        arguments = [argument.replace("{port}", str(port)) for argument in self._argv]
        if arguments[0] in ("python", "python3"):
            arguments[0] = sys.executable
        return await asyncio.create_subprocess_exec(
            *arguments,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env, "PORT": str(port)},
            cwd=self._cwd,
            start_new_session=True,
        )

    async def _watch(self) -> None:
        status = await self._process.wait()
        self._fail(
            f"the bot exited with status {status}: run {shlex.join(self._argv)} to see why, with "
            "a number for {port}"
        )

    async def _wait_for_server(self, port: int) -> None:
        try:
            async with asyncio.timeout(self._start_secs):
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection(HOST, port)
                        writer.close()
                        return
                    await asyncio.sleep(POLL_SECS)
        except TimeoutError:
            error = BotFailed(
                f"nothing listens on port {port}, {self._start_secs:g} s after the bot's start: "
                "pass {port} in its command, or let it read the environment variable PORT; a bot "
                "that starts slowly needs a larger start_secs"
            )
            self.annotate(error)
            raise error from None

    async def _stop(self) -> None:
        self.url = ""
        try:
            if self._process.returncode is None:
                self._signal(signal.SIGTERM)
                await self._wait_for_end()
        finally:
            self._signal(signal.SIGKILL)  # its children, too
            self._warden.kill()
            self._warden.communicate()
            await self._wait_for_end()
            await self._scope.close()
            self._close_log()

    def _signal(self, number: int) -> None:
        # The group may be empty; macOS then raises PermissionError.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    async def _wait_for_end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_secs):
                await self._process.wait()

    def _close_log(self) -> None:
        self._log_end = self.output
        if self._log is not None:
            self._log.close()
            self._log = None


# ---- functions


class CallableBot(Bot):
    """Serves ``async def bot(runner_args)`` on a free port, in this process.

    The function is called as by Pipecat's development runner, once per call. It shares the event
    loop with the caller: this is quick to start and easy to debug, but use a command to measure.

    Example::

        from bot import bot

        async with CallableBot(bot) as running, Caller(running.url) as caller:
            ...
    """

    def __init__(
        self,
        bot: Callable[[Any], Awaitable[object]],
        *,
        body: Any = None,
        stop_secs: float = STOP_SECS,
    ):
        """Prepare a bot; it is served when entered.

        Args:
            bot: The function; it gets a ``SmallWebRTCRunnerArguments``.
            body: The value of ``runner_args.body``.
            stop_secs: The longest time to end after the caller hung up, and again after it was
                cancelled, in seconds.

        Raises:
            ConfigurationError: If ``stop_secs`` is not positive.
        """
        super().__init__()
        check_secs("stop_secs", stop_secs)
        self._bot = bot
        self._body = {} if body is None else body
        self._stop_secs = stop_secs
        self._scope = TaskScope()
        self._calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            from pipecat.runner.types import SmallWebRTCRunnerArguments
            from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
        except ImportError:
            raise missing_extra("bot", "Pipecat's WebRTC transport", "webrtc") from None
        self._failure, self._is_raised = None, False
        self._connection, self._arguments = SmallWebRTCConnection, SmallWebRTCRunnerArguments
        app = web.Application()
        app.router.add_post("/api/offer", self._offer)
        self._server = web.AppRunner(app, access_log=None)
        try:
            await self._server.setup()
            await web.TCPSite(self._server, HOST, 0).start()
        except BaseException:
            await self._server.cleanup()
            raise
        self.url = "http://{}:{}".format(*self._server.addresses[0])
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.url = ""
        try:
            await self._end_calls()
        finally:
            await self._scope.close()
            await self._server.cleanup()
        if self._failure is not None and not self._is_raised:
            if error is None:
                self._raise_failure()
            else:
                error.add_note(f"besides, {self._failure}")

    async def _offer(self, request: web.Request) -> web.Response:
        offer = await request.json()
        connection = self._connection()
        with loopback_only():
            await connection.initialize(sdp=offer["sdp"], type=offer["type"])
        call = self._scope.start(self._serve(connection), name="bot")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return web.json_response(connection.get_answer())

    async def _serve(self, connection: Any) -> None:
        arguments = self._arguments(
            webrtc_connection=connection, body=self._body, session_id=str(uuid.uuid4())
        )
        try:
            await self._bot(arguments)
        except Exception as e:
            self._fail(f"the bot raised {type(e).__name__}: {e}", e)
        else:
            if connection.pc.connectionState in ("new", "connecting"):
                self._fail(
                    "the bot returned without answering the call: run its pipeline until the "
                    "caller hangs up"
                )
        finally:
            await connection.disconnect()

    async def _end_calls(self) -> None:
        if self._calls:
            await asyncio.wait(tuple(self._calls), timeout=self._stop_secs)
        for call in self._calls:
            call.cancel()
        if self._calls:
            _, pending = await asyncio.wait(tuple(self._calls), timeout=self._stop_secs)
            if pending:
                raise BotFailed(
                    f"the bot did not end within {self._stop_secs:g} s of being cancelled: does it "
                    "swallow asyncio.CancelledError?"
                )


# ---- any bot

BotLike: TypeAlias = Bot | str | Sequence[str] | Callable[[Any], Awaitable[object]]


def as_bot(
    given: BotLike, *, cwd: str | Path | None = None, start_secs: float | None = None
) -> Bot:
    """Create a bot from its name.

    Args:
        given: A `Bot`, returned unchanged; an address (``http://...``); a command, as a line or a
            list of arguments; or ``async def bot(runner_args)``.
        cwd: A command's working directory; None keeps the current one.
        start_secs: A command's longest start, in seconds; None is the default.

    Raises:
        ConfigurationError: If it is none of these, or ``start_secs`` is given without a command.
    """
    is_address = isinstance(given, str) and given.startswith(("http://", "https://"))
    if start_secs is not None and (is_address or callable(given) or isinstance(given, Bot)):
        raise ConfigurationError(
            f"start_secs applies to a bot given as a command, not to {given!r}: omit it"
        )
    if isinstance(given, Bot):
        return given
    if callable(given):
        return CallableBot(given)
    if isinstance(given, str) and is_address:
        return Bot(given)
    if isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)):  # pyright: ignore[reportUnnecessaryIsInstance]
        secs = START_SECS if start_secs is None else start_secs
        return CommandBot(given, cwd=cwd, start_secs=secs)
    raise ConfigurationError(
        "a bot is an address such as http://127.0.0.1:7860, a command such as "
        f'"python bot.py --port {{port}}", or async def bot(runner_args); got {given!r}'
    )
