"""Bots that are called: at an address, started by a command, or a function in this process.

A call to a bot that has failed ends at once, with the reason. When a bot's context is left, nothing
of it runs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
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

__all__ = ["Bot", "BotFailed", "BotLike", "CallableBot", "CommandBot", "as_bot"]

HOST = "127.0.0.1"
START_SECS = 60.0
POLL_SECS = 0.05
STOP_SECS = 5.0
OUTPUT_BYTES, OUTPUT_LINES = 16_384, 40
_OUTPUT_NOTE = "the bot's output:"


class BotFailed(CallError):
    """A bot that did not start, or ended during a call; the message says why, the cause is its own.

    The last lines of its output, if it has any, are in the exception's notes.
    """


class Bot:
    """A bot at an address; this one runs already, and goes on running.

    Attributes:
        url: Its address; empty while it does not run.
    """

    def __init__(self, url: str = ""):
        """Name a bot that runs already.

        Args:
            url: Its address, such as ``http://127.0.0.1:7860``.
        """
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
        """Whether it can be called."""
        return bool(self.url)

    @property
    def output(self) -> str:
        """The end of what it has written; empty if that is not known."""
        return ""

    def annotate(self, error: BaseException) -> None:
        """Add the last lines of the bot's output to an error's notes, once.

        Args:
            error: What went wrong.
        """
        notes: list[str] = getattr(error, "__notes__", [])
        if self.output and not any(note.startswith(_OUTPUT_NOTE) for note in notes):
            lines = self.output.splitlines()[-OUTPUT_LINES:]
            error.add_note("\n".join((_OUTPUT_NOTE, *(f"  {line}" for line in lines))))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Ends what is done inside when the bot fails.

        Raises:
            BotFailed: If it has failed, or does so meanwhile.
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
        """End what is watched; the first failure is the one that is raised."""
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
"""Waits for the end of a pipe, which comes however this process ends, and kills a process group."""


class CommandBot(Bot):
    """Starts a bot with a command, and ends it and its children.

    It gets SIGTERM, and SIGKILL if it still runs after ``stop_secs``. If this process is killed,
    the bot is killed, too.

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
        """Prepare a bot; it is started when it is entered.

        Args:
            command: What starts it: a line, split as a shell does but not run by one, or its
                words. ``{port}`` in it becomes a free port, which the environment variable
                ``PORT`` has, too. ``python`` is the interpreter that runs this.
            env: Environment variables, besides those of this process.
            cwd: Where it runs; here if None.
            start_secs: A bot that cannot be called after so long has not started.
            stop_secs: How long it may take to end when it is told to.

        Raises:
            ConfigurationError: If an argument cannot work; the message names it.
        """
        super().__init__()
        try:
            arguments = shlex.split(command) if isinstance(command, str) else [*map(str, command)]
        except ValueError as e:
            raise ConfigurationError(f"command: {e} in {command!r}: close the quotes") from e
        if not arguments or not arguments[0]:
            raise ConfigurationError(
                'command: there is nothing to run; write "python bot.py --port {port}", say'
            )
        check_secs("start_secs", start_secs)
        check_secs("stop_secs", stop_secs)
        if os.name != "posix":
            raise ConfigurationError(
                "command: this takes a POSIX system; start the bot yourself and give its address"
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
        # A file, not a pipe: it never fills up while the test's loop stands still.
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
        """The end of what it has written to its standard output and standard error."""
        if self._log is None:
            return self._log_end
        file = self._log.fileno()  # shared with the bot: reading must not move it
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
            f"the bot ended by itself, with status {status}: run {shlex.join(self._argv)} to see "
            "why, with a number for {port}"
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
                "write {port} into its command where it takes its port, or have it read the "
                "environment variable PORT; a bot that starts slowly needs more start_secs"
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
        # The group may be empty; macOS then refuses it.
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
    """Serves ``async def bot(runner_args)`` on a port of its own, in this process.

    The function is called as Pipecat's development runner calls it, once a call. It shares the
    loop with the caller: that is quick and can be debugged, but for figures use a command.

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
        """Prepare a bot; it is served when it is entered.

        Args:
            bot: The function; it gets a ``SmallWebRTCRunnerArguments``.
            body: What it gets as ``runner_args.body``.
            stop_secs: How long it may take to end when its caller has hung up, and again when it
                is cancelled.

        Raises:
            ConfigurationError: If it is not a function.
        """
        super().__init__()
        if not callable(bot):
            raise ConfigurationError(f"bot must be async def bot(runner_args), got {bot!r}")
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
            answering = self._bot(arguments)
            if not inspect.isawaitable(answering):
                self._fail(
                    f"the bot must be async def bot(runner_args), but returned {answering!r}"
                )
                return
            await answering
        except Exception as e:
            self._fail(f"the bot raised {type(e).__name__}: {e}", e)
        else:
            if connection.pc.connectionState in ("new", "connecting"):
                self._fail(
                    "the bot returned without answering the call: have it run its pipeline until "
                    "the caller has hung up"
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


# ---- either

BotLike: TypeAlias = Bot | str | Sequence[str] | Callable[[Any], Awaitable[object]]


def as_bot(
    given: BotLike, *, cwd: str | Path | None = None, start_secs: float | None = None
) -> Bot:
    """Make a bot of what names one.

    Args:
        given: A bot, which is returned as it is; an address (``http://...``); a command, as a line
            or its words; or ``async def bot(runner_args)``.
        cwd: Where a command runs; here if None.
        start_secs: How long a command may take to start; the usual time if None.

    Raises:
        ConfigurationError: If it names none, or ``start_secs`` is given for one that runs already.
    """
    is_address = isinstance(given, str) and given.startswith(("http://", "https://"))
    if start_secs is not None and (is_address or callable(given) or isinstance(given, Bot)):
        raise ConfigurationError(
            f"start_secs is for a bot that is given as a command, not for {given!r}: leave it out"
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
