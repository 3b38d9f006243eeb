"""``pipecat-hedge top URL``: running bots, live in a terminal, or one line per turn in a pipe."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.top.feed import Bot, Fleet, Turn, feed_url, poll
from pipecat_hedge.tools.top.screen import screen, turn_line

DEFAULT_URL = "http://127.0.0.1:7860"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    urls = f"running bots (default {DEFAULT_URL}); several are merged"
    add("urls", nargs="*", metavar="URL", default=[DEFAULT_URL], help=urls)
    add("--every", type=float, default=0.5, metavar="SECS", help="between updates (default 0.5)")
    add("--lines", action="store_true", help="print one line per turn, as in a pipe")


def run(args: argparse.Namespace) -> int:
    """Show the bots until Ctrl-C.

    Raises:
        ConfigurationError: If an argument is invalid.
    """
    if not 0.05 <= args.every <= 60:
        raise ConfigurationError(f"--every must be from 0.05 to 60 s, got {args.every:g}")
    fleet = Fleet(list(dict.fromkeys(feed_url(url) for url in args.urls)))
    show = _print_lines if args.lines or not sys.stdout.isatty() else _draw
    asyncio.run(_until_signal(show(fleet, args.every)))
    print("top: stopped", file=sys.stderr)
    return 0


async def _until_signal(showing: Coroutine[Any, Any, None]) -> None:
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(showing)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _draw(fleet: Fleet, every_secs: float) -> None:
    console = Console(highlight=False)

    def drawn() -> RenderableType:
        return screen(fleet, console.width, console.height, time.time())

    with Live(drawn(), console=console, screen=True, auto_refresh=False) as live:

        async def refresh() -> None:
            while True:
                live.update(drawn(), refresh=True)
                await asyncio.sleep(every_secs)

        await asyncio.gather(poll(fleet, every_secs), refresh())


async def _print_lines(fleet: Fleet, every_secs: float) -> None:
    def on_turns(bot: Bot, turns: list[Turn]) -> None:
        name = bot.snapshot.name if bot.snapshot is not None else bot.url
        for turn in turns:
            label = f"bot {bot.number}" if len(fleet.bots) > 1 else name
            print(turn_line(label, turn), flush=True)

    def on_away(bot: Bot) -> None:
        print(f"{bot.url} is away: {bot.error}; reconnecting", file=sys.stderr, flush=True)

    await poll(fleet, every_secs, on_turns=on_turns, on_away=on_away)
