"""The pytest plugin, in test runs of their own: what a user's tests read like, and what they leave.

Each inner run is a process; the bot that it calls is the scripted one, in a process of its own.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.replay.scripted_command import started

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[3]
PLUGIN = "pipecat_hedge.tools.replay.pytest_plugin"
IS_INSTALLED = any(p.value == PLUGIN for p in importlib.metadata.entry_points(group="pytest11"))
PLUGINS = () if IS_INSTALLED else ("-p", PLUGIN)  # it must not be registered twice
COMMAND = "python -m tests.tools.replay.scripted_command {port} started"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester) -> None:
    """The inner run finds this package, the scripted bot, and a recording."""
    found = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    (pytester.path / "hours.flac").symlink_to(ROOT / "fixtures/audio/goodbye_slt_normal.flac")
    pytester.makeini("[pytest]\nasyncio_mode = auto\n")


def run(pytester: pytest.Pytester, tests: str, *args: str) -> pytest.RunResult:
    """Run a user's tests; ``BOT`` is the scripted bot's command."""
    pytester.makepyfile(f"import asyncio, pytest\nBOT = {COMMAND!r}\n{tests}")
    return pytester.runpytest_subprocess(*PLUGINS, *args, timeout=100)


def left(pytester: pytest.Pytester) -> list[list[int]]:
    """Of each bot that was started the processes that still run."""
    return [bot.left for bot in started(pytester.path / "started")]


def test_users_test_calls_its_bot(pytester: pytest.Pytester) -> None:
    """A fixture names the bot, and the figures are shown at the end."""
    result = run(
        pytester,
        """
pytestmark = pytest.mark.voice_bot(greeting_secs=0)

@pytest.fixture
def voice_bot():
    return BOT

async def test_hours(caller):
    turn = await caller.say("hours.flac")
    assert turn.voice_to_voice_secs < 20
    assert "nine" in turn.answer_text

async def test_interruption(caller):
    first, second = await caller.say_and_interrupt("hours.flac", by="hours.flac")
    assert "nine" in first.answer_text
    assert second.silent_after_secs < 20
""",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        ["*turns with voice bots*", "*recording*turns*p50*p95*max*", "*hours*3*3*s*s*s*"]
    )
    assert left(pytester) == [[], []]


def test_failed_tests_leave_no_bot(pytester: pytest.Pytester) -> None:
    """By an assertion, by a cancellation, by a time limit: no process, no port; and output.

    What a bot that is a function raises is an error.

    The signal of pytest-timeout raises an error wherever the loop is; where that is one of aiortc's
    tasks, asyncio swallows it, one time in fifteen. Hence the second limit.
    """
    result = run(
        pytester,
        """
pytestmark = pytest.mark.voice_bot(BOT, greeting_secs=0)

async def test_asserts(caller):
    assert caller.bot.url == "elsewhere"

async def test_is_cancelled(caller):
    async with asyncio.timeout(0.1):
        await caller.say("hours.flac")

@pytest.mark.timeout(3, method="signal", func_only=True)
async def test_takes_too_long(caller):
    async with asyncio.timeout(10):
        await asyncio.Event().wait()

async def test_says_what_is_not_there(caller):
    await caller.say("no-such.wav")

async def broken(runner_args):
    raise LookupError("no such voice")

@pytest.mark.voice_bot(bot=broken)
async def test_calls_what_raises(caller):
    pass
""",
        *("-p", "no:cacheprovider"),
    )
    result.assert_outcomes(failed=4, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*BotFailed: the bot raised LookupError: no such voice",
            "*the bot's output:",
            "*the scripted bot is at port*",
            "*there is no recording 'no-such.wav': *no-such.wav is not a file*",
        ]
    )
    assert left(pytester) == [[]] * 4
    for bot in started(pytester.path / "started"):
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", bot.port)) != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_run_leaves_no_bot(pytester: pytest.Pytester, number: signal.Signals) -> None:
    """By Ctrl-C, which ends the test in order, or by a kill."""
    pytester.makepyfile(
        f"""
        import asyncio
        import pytest

        @pytest.mark.voice_bot({COMMAND!r}, greeting_secs=0)
        async def test_hangs(caller):
            print("now", flush=True)
            await asyncio.Event().wait()
        """
    )
    words = [sys.executable, "-m", "pytest", *PLUGINS, "-s"]
    # In the background of a shell Ctrl-C is ignored, also by what is started from there.
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=heeds) as inner:
        try:
            assert inner.stdout is not None
            assert any(line.endswith("now\n") for line in inner.stdout)
            (bot,) = started(pytester.path / "started")
            ends = [os.pidfd_open(pid) for pid in bot.processes]
            inner.send_signal(number)
            inner.stdout.read()
        finally:
            inner.kill()
    for end in ends:
        assert select.select([end], [], [], 30)[0], "it outlives the run"
        os.close(end)
    assert bot.left == []


def test_session_fixture_shares_one_bot(pytester: pytest.Pytester) -> None:
    """A bot that runs already is called where it is, and goes on running."""
    result = run(
        pytester,
        """
import pytest_asyncio
from pipecat_hedge.tools.replay import CommandBot

@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def voice_bot():
    async with CommandBot(BOT) as bot:
        yield bot.url

@pytest.mark.voice_bot(greeting_secs=0)
@pytest.mark.parametrize("number", range(3))
async def test_call(caller, number):
    assert caller.bot.is_running
""",
    )
    result.assert_outcomes(passed=3)
    assert left(pytester) == [[]]


def test_command_line_goes_before_the_configuration(pytester: pytest.Pytester) -> None:
    pytester.makeini(f"[pytest]\nasyncio_mode = auto\nvoice_bot = {COMMAND}\n")
    test = "async def test_call(caller): pass"
    result = run(pytester, test, "--voice-bot", "no-such-bot")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*BotFailed: no-such-bot cannot be run*correct the bot's command"])


def test_wrong_marker_is_an_error_without_a_traceback(pytester: pytest.Pytester) -> None:
    wrong = {
        "usefixtures()": "no voice bot is named: return a command*",
        "voice_bot(7860)": "a bot is an address such as *; got 7860",
        "voice_bot('true', greetings=1)": "the marker voice_bot has no greetings: it has *",
        "voice_bot('true', 'false')": "the marker voice_bot takes one bot, got *",
        "voice_bot('true', timeout_secs=0)": "timeout_secs must be positive, got 0",
    }
    tests = "".join(
        f"@pytest.mark.{marker}\nasync def test_call_{number}(caller): pass\n"
        for number, marker in enumerate(wrong)
    )
    result = run(pytester, tests, "--strict-markers")
    result.assert_outcomes(errors=len(wrong))
    result.stdout.fnmatch_lines([*wrong.values()])
    result.stdout.no_fnmatch_line("*Traceback*")
