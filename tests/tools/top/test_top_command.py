"""The command in a pseudo-terminal, whose screen is read, and in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Self

import pyte
import pytest

from pipecat_hedge.telemetry import LIVE_PATH, LiveFeed, LiveServer
from tests.support.line import Line
from tests.telemetry.test_live import hedged

pytestmark = pytest.mark.live

WAIT_SECS = 30.0
ENV = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
ENV["TERM"] = "xterm-256color"
TOP = [sys.executable, "-m", "pipecat_hedge.cli", "top", "--every", "0.1"]


class Terminal:
    """The command in a pseudo-terminal."""

    def __init__(self, *arguments: str, width: int = 120, height: int = 30):
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self._parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), child)
        self.process = subprocess.Popen(
            [*TOP, *arguments], **streams, env=ENV, start_new_session=True
        )
        os.close(child)
        os.set_blocking(self._parent, False)

    async def until(self, seen: Callable[[str], bool]) -> str:
        """Wait until the screen is as it should be."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._parent, changed.set)
        try:
            async with asyncio.timeout(WAIT_SECS):
                while not seen(text := "\n".join(self.screen.display)):
                    await changed.wait()
                    changed.clear()
                    with contextlib.suppress(BlockingIOError):
                        self._stream.feed(os.read(self._parent, 65536))
        except TimeoutError:
            pytest.fail("not seen; the screen was:\n" + "\n".join(self.screen.display))
        finally:
            loop.remove_reader(self._parent)
        return text

    async def ended(self, number: int) -> int:
        """End it with a signal: its exit status."""
        self.process.send_signal(number)
        await asyncio.to_thread(self.process.wait, 10)
        return self.process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._parent)


async def test_a_bot_in_a_terminal() -> None:
    """It races, goes away and comes back; a signal ends the command."""
    llm, feed = hedged(), LiveFeed("here")
    feed.watch(llm)
    async with LiveServer(feed) as server, Line(llm) as line:
        port = int(server.url.rpartition(":")[2])
        with Terminal(server.url) as shown:
            await shown.until(lambda text: "no turn yet" in text)
            await line.ask()
            text = await shown.until(lambda text: "quick won, hedge at 5" in text)
            assert "1 call" in text
            assert text.count("slow superseded") == 1
            await server.__aexit__(None, None, None)
            text = await shown.until(lambda text: "is away for" in text)
            assert "reconnecting" in text
            assert "quick won" in text  # what was seen stays
            async with LiveServer(feed, port=port):
                await shown.until(lambda text: "is away" not in text and "1 call" in text)
                assert await shown.ended(signal.SIGTERM) == 0
        await server.__aenter__()


async def test_one_line_a_turn_in_a_pipe() -> None:
    """Each turn once, as it happens; a bot that is away goes to stderr."""
    llm, feed = hedged(), LiveFeed("here")
    feed.watch(llm)
    async with LiveServer(feed) as server, Line(llm) as line:
        process = await asyncio.create_subprocess_exec(
            *(*TOP, server.url, "http://127.0.0.1:9"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_SECS):
            away = (await process.stderr.readline()).decode()
            assert away.startswith(f"http://127.0.0.1:9{LIVE_PATH} is away: ")
            await line.ask()
            first = (await process.stdout.readline()).decode()
            await line.ask()
            second = (await process.stdout.readline()).decode()
            process.send_signal(signal.SIGINT)
            rest, _ = await process.communicate()
    assert "bot 1 call 1 turn 1 premium: answered, winner quick, first token" in first
    assert "turn 2 premium: failed" in second
    assert (process.returncode, rest) == (0, b"")
