"""Bots that are started for a call, and end with it, whatever becomes of either."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.replay import Call, Caller, CallError, CommandBot, TurnResult
from pipecat_hedge.tools.replay.bots import BotFailed, CallableBot
from pipecat_hedge.tools.replay.conversation import Conversation
from tests.tools.replay.pipecat_bot import bot
from tests.tools.replay.scripted_command import started

pytestmark = [pytest.mark.live, pytest.mark.realtime]

ROOT = Path(__file__).parents[3]
SPOKEN = ROOT / "fixtures/audio/goodbye_slt_normal.flac"


def scripted(file: Path, behaviour: str = "answers", **options: Any) -> CommandBot:
    words = ["python", "-m", "tests.tools.replay.scripted_command", "{port}", str(file), behaviour]
    return CommandBot(words, cwd=ROOT, **options)


async def is_refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


# ---- commands


async def test_command_answers_and_leaves_nothing(tmp_path: Path) -> None:
    """Its port is free; afterwards its processes and its port are gone."""
    file = tmp_path / "started"
    async with Call(scripted(file), greeting_secs=0) as caller:
        turn = await caller.say(SPOKEN)
        assert turn.answer_text == "We are open till nine."
        (one,) = started(file)
        assert caller.bot.url == f"http://127.0.0.1:{one.port}"
        assert len(one.left) == 2
        assert "the scripted bot is at port" in caller.bot.output
    assert (one.left, caller.bot.is_running) == ([], False)
    assert await is_refused(one.port)


async def test_command_that_ignores_signals_is_killed(tmp_path: Path) -> None:
    """Its child, too; an error around it has the bot's output in its notes."""
    file = tmp_path / "started"
    with pytest.raises(ZeroDivisionError) as failed:
        async with scripted(file, "stays", stop_secs=0.1):
            raise ZeroDivisionError
    (one,) = started(file)
    assert failed.value.__notes__ == [
        f"the bot's output:\n  the scripted bot is at port {one.port}"
    ]
    assert one.left == []
    assert await is_refused(one.port)


async def test_command_that_exits_ends_the_call(tmp_path: Path) -> None:
    with pytest.raises(BotFailed, match="the bot exited with status 3") as failed:
        async with Call(scripted(tmp_path / "started", "exits"), greeting_secs=0) as caller:
            await caller.say(SPOKEN)
    assert "something has gone wrong" in failed.value.__notes__[0]


@pytest.mark.parametrize(
    ("command", "message", "notes"),
    [
        (
            [sys.executable, "-c", "import sys; sys.exit('no key for the model')"],
            r"status 1: run .* to see why",
            ["the bot's output:\n  no key for the model"],
        ),
        (
            ["sh", "-c", "echo $$ $$ 1 >pid; echo starting; exec sleep 1000"],
            r"nothing listens on port \d+, 1 s after",
            ["the bot's output:\n  starting"],
        ),
        ("no-such-bot --port {port}", r"no-such-bot cannot be run .*: correct", []),
    ],
    ids=["exits at once", "never listens", "does not exist"],
)
async def test_command_that_does_not_start_says_why(
    command: str | list[str], message: str, notes: list[str], tmp_path: Path
) -> None:
    with pytest.raises(BotFailed, match=message) as failed:
        async with CommandBot(command, start_secs=1, cwd=tmp_path):
            pytest.fail("it runs")
    assert getattr(failed.value, "__notes__", []) == notes
    if (tmp_path / "pid").exists():
        assert started(tmp_path / "pid")[0].left == []


async def test_command_gets_its_environment_and_folder(tmp_path: Path) -> None:
    server = """
import http.server, os, pathlib
pathlib.Path("seen").write_text(os.environ["KEY"] + os.getcwd())
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
    async with CommandBot(["python", "-c", server], env={"KEY": "open at "}, cwd=tmp_path):
        assert (tmp_path / "seen").read_text() == f"open at {tmp_path.resolve()}"


# ---- functions


async def test_pipecat_bot_speaks_in_this_process() -> None:
    seen: list[Any] = []

    async def noted(runner_args: Any) -> None:
        seen.append(runner_args)
        await bot(runner_args)

    async with (
        CallableBot(noted, body={"from": "a test"}) as running,
        Caller(running.url) as caller,
    ):
        assert await Conversation(caller).wait_for_greeting()
    (arguments,) = seen
    assert arguments.body == {"from": "a test"}
    assert arguments.session_id


@pytest.fixture
async def _ice_has_ended() -> AsyncIterator[None]:
    """Waits for aioice, which notices 20 ms late that a call was given up."""
    before = asyncio.all_tasks()
    yield
    if noticing := asyncio.all_tasks() - before:
        await asyncio.wait(noticing, timeout=1)


async def raises(runner_args: Any) -> None:
    raise LookupError("no such voice")


async def returns(runner_args: Any) -> None:
    return


def plain(runner_args: Any) -> Any:
    return 7


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "the bot raised LookupError: no such voice"),
        (returns, "the bot returned without answering the call: run"),
        (plain, r"the bot raised TypeError: .*'await'"),
    ],
)
@pytest.mark.usefixtures("_ice_has_ended")
async def test_function_that_does_not_answer_ends_the_call(
    function: Callable[[Any], Awaitable[object]], message: str
) -> None:
    """The call does not wait for a connection that cannot come about."""
    with pytest.raises(BotFailed, match=message) as failed:
        async with Call(CallableBot(function), greeting_secs=0):
            pytest.fail("it answers")
    assert isinstance(failed.value.__cause__, LookupError) is (function is raises)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (LookupError("no such table"), "LookupError: no such table"),
        (None, "the bot has hung up"),
    ],
)
async def test_function_that_ends_during_the_call_ends_it(
    error: Exception | None, message: str
) -> None:
    """What is said to it fails, once; the caller does not speak on."""
    spoken_to = asyncio.Event()

    async def ends(runner_args: Any) -> None:
        await runner_args.webrtc_connection.connect()
        await spoken_to.wait()
        if error is not None:
            raise error

    async with Call(CallableBot(ends), greeting_secs=0) as caller:
        spoken_to.set()
        with pytest.raises(CallError, match=message):
            await caller.say(SPOKEN)


async def test_function_that_raises_at_hang_up_fails_the_test() -> None:
    """If the test has failed already, a note says so."""

    async def breaks(runner_args: Any) -> None:
        hung_up = asyncio.Event()

        @runner_args.webrtc_connection.event_handler("closed")
        async def on_closed(connection: object) -> None:
            hung_up.set()

        await runner_args.webrtc_connection.connect()
        await hung_up.wait()
        raise LookupError("cannot say good-bye")

    with pytest.raises(BotFailed, match="LookupError: cannot say good-bye"):
        async with Call(CallableBot(breaks), greeting_secs=0):
            pass
    with pytest.raises(ZeroDivisionError) as failed:
        async with Call(CallableBot(breaks), greeting_secs=0):
            raise ZeroDivisionError
    assert failed.value.__notes__ == ["besides, the bot raised LookupError: cannot say good-bye"]


async def test_function_that_misses_the_hang_up_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def waits(runner_args: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with CallableBot(waits, stop_secs=0.1) as running, Caller(running.url):
        pass
    assert cancelled.is_set()


# ---- either


async def test_silence_fails_the_test_unless_it_is_right() -> None:
    async def mute(runner_args: Any) -> None:
        await runner_args.webrtc_connection.connect()
        await asyncio.Event().wait()

    turns: list[TurnResult] = []
    silent, error = CallableBot(mute, stop_secs=0.1), "the bot was silent for 0.3 s"
    async with Call(silent, greeting_secs=0, timeout_secs=0.3, on_turn=turns.append) as caller:
        with pytest.raises(CallError, match=f"goodbye_slt_normal: {error}"):
            await caller.say(SPOKEN)
        assert [turn.error for turn in turns] == [error]
        assert (await caller.conversation.say(SPOKEN)).error == error
        with pytest.raises(ConfigurationError, match=r"there is no recording 'no\.wav'"):
            await caller.say("no.wav")
