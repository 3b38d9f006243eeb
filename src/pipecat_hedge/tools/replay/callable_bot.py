"""A bot that is a function, ``async def bot(runner_args)``, answering calls in this process.

It is called as Pipecat's development runner calls it, once a call. It shares the loop with the
caller: that is quick and can be debugged, but for figures a bot belongs into a process of its own.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.tools.replay.bot import Bot, BotFailed
from pipecat_hedge.tools.replay.loopback import LOOPBACK_ALONE

__all__ = ["CallableBot"]

HANG_UP_SECS = 5.0
"""How long a bot may take to end by itself once its caller has hung up."""
CANCEL_SECS = 5.0
"""How long it may take when it is cancelled."""
_NOT_YET = ("new", "connecting")
"""The states of a connection that has never come about."""


class CallableBot(Bot):
    """Serves a function as a bot on a port of its own.

    Example::

        from bot import bot

        async with CallableBot(bot) as running, Caller(running.url) as caller:
            ...
    """

    def __init__(self, bot: Callable[[Any], Awaitable[object]], *, body: Any = None):
        """Prepare a bot; it is served when it is entered.

        Args:
            bot: The function; it gets a ``SmallWebRTCRunnerArguments``.
            body: What it gets as ``runner_args.body``.

        Raises:
            ConfigurationError: If it is no function.
        """
        super().__init__()
        if not callable(bot):
            raise ConfigurationError(f"bot must be async def bot(runner_args), got {bot!r}")
        self._bot = bot
        self._body = {} if body is None else body
        self._scope = TaskScope()
        self._calls: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        try:
            from pipecat.runner.types import SmallWebRTCRunnerArguments
            from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
        except ImportError as e:
            raise ConfigurationError(
                f"bot: Pipecat's WebRTC transport is missing ({e}): run pip install \"pipecat-hedge"
                '[webrtc]"'
            ) from e
        self._failure, self._told = None, False
        self._connection, self._arguments = SmallWebRTCConnection, SmallWebRTCRunnerArguments
        app = web.Application()
        app.router.add_post("/api/offer", self._offer)
        self._server = web.AppRunner(app, access_log=None)
        try:
            await self._server.setup()
            await web.TCPSite(self._server, "127.0.0.1", 0).start()
        except BaseException:
            await self._server.cleanup()
            raise
        self.url = "http://{}:{}".format(*self._server.addresses[0])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.url = ""
        try:
            await self._end_calls()
        finally:
            await self._scope.close()
            await self._server.cleanup()
        if self._failure is not None and not self._told:
            if error is None:
                self._tell()
            else:
                error.add_note(f"besides, {self._failure[0]}")

    # ---- inside

    async def _offer(self, request: web.Request) -> web.Response:
        offer = await request.json()
        connection = self._connection()
        with LOOPBACK_ALONE:
            await connection.initialize(sdp=offer["sdp"], type=offer["type"])
        call = self._scope.start(self._hold(connection), name="bot")
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        return web.json_response(connection.get_answer())

    async def _hold(self, connection: Any) -> None:
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
            if connection.pc.connectionState in _NOT_YET:
                self._fail(
                    "the bot returned without answering the call: have it run its pipeline until "
                    "the caller has hung up"
                )
        finally:
            await connection.disconnect()

    async def _end_calls(self) -> None:
        if not self._calls:
            return
        await asyncio.wait(tuple(self._calls), timeout=HANG_UP_SECS)
        for call in self._calls:
            call.cancel()
        if not self._calls:
            return
        _, pending = await asyncio.wait(tuple(self._calls), timeout=CANCEL_SECS)
        if pending:
            raise BotFailed(
                f"the bot did not end within {CANCEL_SECS:g} s of being cancelled: does it swallow "
                "asyncio.CancelledError?"
            )
