"""The command as a person runs it: in a terminal, whose screen is read, and in a pipe."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyte
import pytest

from pipecat_hedge.cli import main
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry.live import LIVE_PATH, LiveFeed, LiveServer
from pipecat_hedge.tools.top.command import _Told
from pipecat_hedge.tools.top.watching import feed_url
from tests.support.line import Line
from tests.telemetry.test_live import hedged

pytestmark = pytest.mark.live

WAIT_SECS = 30.0
ENV = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": ""}
TOP = [sys.executable, "-m", "pipecat_hedge.cli", "top", "--every", "0.1"]


class Terminal:
    """A pseudo-terminal in which a command runs."""

    def __init__(self, *arguments: str, width: int = 120, height: int = 30):
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self._parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        env = {name: value for name, value in ENV.items() if value}
        self.process = subprocess.Popen(
            [*TOP, *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            env=env,
            start_new_session=True,
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
                    try:
                        self._stream.feed(os.read(self._parent, 65536))
                    except BlockingIOError:
                        continue
                    except OSError:  # the other end is closed
                        break
        except TimeoutError:
            pytest.fail("not seen; the screen was:\n" + "\n".join(self.screen.display))
        finally:
            loop.remove_reader(self._parent)
        return text

    async def ended(self, number: int = signal.SIGINT) -> tuple[int, float]:
        """End it with a signal: its exit status, and how long it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        await asyncio.to_thread(self.process.wait, 10)
        return self.process.returncode, time.monotonic() - began

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._parent)


@contextmanager
def terminal(*arguments: str, width: int = 120, height: int = 30) -> Iterator[Terminal]:
    shown = Terminal(*arguments, width=width, height=height)
    try:
        yield shown
    finally:
        shown.close()


async def test_a_bot_in_a_terminal() -> None:
    """It is seen to race, to go away and to come back; Ctrl-C ends at once."""
    llm, feed = hedged(), LiveFeed("here")
    feed.watch(llm)
    async with LiveServer(feed) as server, Line(llm) as line:
        port = int(server.url.rpartition(":")[2])
        with terminal(server.url) as shown:
            await shown.until(lambda text: "no turn yet" in text)
            await line.ask()
            text = await shown.until(lambda text: "quick won, hedge at 5" in text)
            assert "1 call" in text
            assert text.count("slow superseded") == 1
            await server.__aexit__(None, None, None)
            text = await shown.until(lambda text: "is away since" in text)
            assert "asking again" in text
            assert "quick won" in text  # what was seen stays
            async with LiveServer(feed, port=port):
                await shown.until(lambda text: "is away" not in text and "1 call" in text)
                status, took = await shown.ended()
                print(f"ended {1000 * took:.0f} ms after Ctrl-C")
            assert status == 0
        await server.__aenter__()


async def test_several_bots_in_a_narrow_terminal() -> None:
    """One is away, and it still fits."""
    async with LiveServer(LiveFeed("here")) as server:
        with terminal(server.url, "http://127.0.0.1:9", width=44, height=20) as shown:
            text = await shown.until(lambda text: "is away" in text and "1 of 2 bots" in text)
            assert all(len(row) <= 44 for row in text.splitlines())
            status, _ = await shown.ended(signal.SIGTERM)
            assert status == 0


async def test_a_line_a_turn_in_a_pipe() -> None:
    """Each turn once, as it happens; who is away is said on the other channel."""
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


async def test_something_else_is_said_to_be_no_bot() -> None:
    """A server without a feed, with what to read."""
    async with LiveServer(LiveFeed("here")) as server:
        process = await asyncio.create_subprocess_exec(
            *(*TOP, f"{server.url}/elsewhere"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        async with asyncio.timeout(WAIT_SECS):
            told = (await process.stderr.readline()).decode()
            process.send_signal(signal.SIGINT)
            await process.wait()
    assert "it is there, but has no feed at this path: see docs/slo.md" in told


def test_what_was_printed_is_forgotten_when_it_cannot_be_told_again() -> None:
    """A pipe may be read for months; a turn that changes is still printed once."""
    told = _Told(most=3)
    assert [told.is_new(("p", 1, n)) for n in (1, 2, 3, 1, 4)] == [True, True, True, False, True]
    assert not told.is_new(("p", 1, 1))  # it had changed since, so it is among the latest
    assert told.is_new(("p", 1, 2))
    assert told.is_new(("q", 1, 1))
    assert len(told._turns) == 3


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("127.0.0.1:7860", f"http://127.0.0.1:7860{LIVE_PATH}"),
        ("http://bot/", f"http://bot{LIVE_PATH}"),
        ("https://bot:8443/mine?key=1", "https://bot:8443/mine?key=1"),
        ("[::1]:7860", f"http://[::1]:7860{LIVE_PATH}"),
    ],
)
def test_where_is_asked(said: str, asked: str) -> None:
    """A host and a port will do."""
    assert feed_url(said) == asked


@pytest.mark.parametrize("said", ["", "http://", "ftp://bot", "bot:99999", "bot:x"])
def test_what_is_no_address(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Refused with an example, before anything is drawn."""
    with pytest.raises(ConfigurationError):
        feed_url(said)
    assert main(["top", said]) == 2
    assert "is no address: write http://127.0.0.1:7860" in capsys.readouterr().err
    assert main(["top", "--every", "0"]) == 2
