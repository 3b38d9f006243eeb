"""``pipecat-hedge top URL``: running bots, live in a terminal, or a line a turn in a pipe."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.top.fleet import Bot, Fleet
from pipecat_hedge.tools.top.screen import screen
from pipecat_hedge.tools.top.watching import MOST_BYTES, feed_url, watch
from pipecat_hedge.tools.top.words import line

__all__ = ["configure", "run"]

DEFAULT_URL = "http://127.0.0.1:7860"
LEAST_BYTES = 250
"""A turn in an answer is never shorter: the names of its fields alone are that long."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments.

    Args:
        parser: The command's own parser.
    """
    parser.add_argument(
        "urls",
        nargs="*",
        metavar="URL",
        default=[DEFAULT_URL],
        help=f"running bots (default {DEFAULT_URL}); several are shown as one",
    )
    parser.add_argument(
        "--every",
        type=float,
        default=0.5,
        metavar="SECS",
        help="ask so often (default 0.5)",
    )
    parser.add_argument("--lines", action="store_true", help="print a line a turn, as into a pipe")


def run(args: argparse.Namespace) -> int:
    """Show the bots until Ctrl-C.

    Args:
        args: The parsed arguments.

    Returns:
        0, or 2 if an argument cannot work.
    """
    try:
        if not 0.05 <= args.every <= 60:
            raise ConfigurationError(f"--every must be from 0.05 to 60 s, got {args.every:g}")
        urls = list(dict.fromkeys(feed_url(url) for url in args.urls))
    except ConfigurationError as error:
        print(f"pipecat-hedge top: {error}", file=sys.stderr)
        return 2
    fleet = Fleet(urls)
    shown = _print_lines if args.lines or not sys.stdout.isatty() else _draw
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_until_told(shown(fleet, args.every)))
    return 0


async def _until_told(showing: Any) -> None:
    """Run until a signal says that it is enough; the terminal is as it was then."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(showing)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _draw(fleet: Fleet, every_secs: float) -> None:
    console = Console(highlight=False)

    def picture() -> Any:
        return screen(fleet, console.width, console.height, time.time())

    with Live(picture(), console=console, screen=True, auto_refresh=False) as live:

        async def draw_on() -> None:
            while True:
                live.update(picture(), refresh=True)
                await asyncio.sleep(every_secs)

        await asyncio.gather(watch(fleet, every_secs), draw_on())


class _Told:
    """The turns that a bot has told of: so many that it cannot tell of another one again."""

    def __init__(self, most: int = MOST_BYTES // LEAST_BYTES):
        self._most = most
        self._turns: dict[tuple[str, int, int], None] = {}

    def is_new(self, turn: tuple[str, int, int]) -> bool:
        """Whether it is told of for the first time, by process, session and number."""
        is_new = turn not in self._turns
        self._turns.pop(turn, None)
        self._turns[turn] = None  # the feed, too, keeps those that have changed last
        while len(self._turns) > self._most:
            del self._turns[next(iter(self._turns))]
        return is_new


async def _print_lines(fleet: Fleet, every_secs: float) -> None:
    told: defaultdict[str, _Told] = defaultdict(_Told)

    def turned(bot: Bot, turns: Sequence[dict[str, Any]]) -> None:
        answer = bot.answer or {}
        process = str(answer.get("process"))
        label = f"bot {bot.label}" if len(fleet.bots) > 1 else str(answer.get("name"))
        for turn in turns:
            # Once, when it is over; what was heard of it comes later.
            if told[bot.url].is_new((process, turn["session"], turn["turn"])):
                print(line(label, turn), flush=True)

    def left(bot: Bot) -> None:
        print(f"{bot.url} is away: {bot.why}; asking again", file=sys.stderr, flush=True)

    await watch(fleet, every_secs, turned=turned, left=left)
