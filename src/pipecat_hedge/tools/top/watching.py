"""Asks bots how they are, again and again, until it is cancelled."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry.live_format import LIVE_PATH
from pipecat_hedge.tools.analysis.turn_log import printable
from pipecat_hedge.tools.top.fleet import Bot, Fleet, NotAFeed

__all__ = ["feed_url", "watch"]

TIMEOUT_SECS = 5.0
MOST_BYTES = 4_000_000
"""Of an answer: some 6,000 turns, where a feed keeps 200 unless it is told otherwise."""


def feed_url(said: str) -> str:
    """Where to ask, from what a person writes: ``127.0.0.1:7860`` will do.

    Args:
        said: An address, with a path only if it is not the usual one.

    Raises:
        ConfigurationError: If it is none.
    """
    parts = urlsplit(said if "://" in said else f"http://{said}")
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        is_url = False
    if not is_url:
        raise ConfigurationError(f"{said} is no address: write http://127.0.0.1:7860")
    path = parts.path if parts.path not in ("", "/") else LIVE_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


async def watch(
    fleet: Fleet,
    every_secs: float,
    *,
    turned: Callable[[Bot, Sequence[dict[str, Any]]], None] = lambda bot, turns: None,
    left: Callable[[Bot], None] = lambda bot: None,
) -> None:
    """Keep a fleet's figures up to date; never returns.

    Args:
        fleet: Whom to ask, and where the answers go.
        every_secs: How long to wait between an answer and the next question.
        turned: Told of a bot's turns that are new or have changed.
        left: Told when a bot has gone away, and why if that has changed.
    """
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asking = [_ask_on(session, bot, every_secs, turned, left) for bot in fleet.bots]
        await asyncio.gather(*asking)


async def _ask_on(
    session: aiohttp.ClientSession,
    bot: Bot,
    every_secs: float,
    turned: Callable[[Bot, Sequence[dict[str, Any]]], None],
    left: Callable[[Bot], None],
) -> None:
    while True:
        try:
            turned(bot, bot.answered(await _ask(session, bot)))
        except (NotAFeed, aiohttp.ClientError, TimeoutError) as error:
            if bot.is_away(_why(error), time.time()):
                left(bot)
        await asyncio.sleep(every_secs)


async def _ask(session: aiohttp.ClientSession, bot: Bot) -> Any:
    async with session.get(bot.url, params={"after": str(bot.after)}) as response:
        if response.status == 404:
            raise NotAFeed("it is there, but has no feed at this path: see docs/slo.md")
        if response.status != 200:
            raise NotAFeed(f"it answers with status {response.status}")
        told = bytearray()
        async for piece in response.content.iter_any():  # read() gives what has come so far
            told += piece
            if len(told) > MOST_BYTES:
                most = f"{MOST_BYTES / 1e6:g} MB"
                raise NotAFeed(f"it answers with more than {most}: see docs/slo.md")
    try:
        return printable(json.loads(told))
    except (ValueError, RecursionError):
        raise NotAFeed("what answers there is no feed of turns: see docs/slo.md") from None


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {TIMEOUT_SECS:g} s"
    cause = getattr(error, "os_error", error)
    told = getattr(cause, "strerror", None)
    return str(told or error or type(error).__name__).splitlines()[0]
