"""Bots that are started for a call, and end with it, whatever becomes of either."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay import command_bot
from pipecat_hedge.tools.replay.bots import Bot, BotFailed, CallableBot, CommandBot, as_bot
from pipecat_hedge.tools.replay.call import Call
from pipecat_hedge.tools.replay.caller import Caller, CallError
from tests.tools.replay.pipecat_bot import ANSWER, UNDERSTOOD, bot
from tests.tools.replay.scripted_command import started

pytestmark = [pytest.mark.live, pytest.mark.realtime]

ROOT = Path(__file__).parents[3]
SPOKEN = ROOT / "fixtures/audio/goodbye_slt_normal.flac"


def scripted(file: Path, behaviour: str = "answers") -> CommandBot:
    words = ["python", "-m", "tests.tools.replay.scripted_command", "{port}", str(file), behaviour]
    return CommandBot(words, cwd=ROOT)


async def is_refused(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


# ---- commands


async def test_a_command(tmp_path: Path) -> None:
    """Its port is free, it answers, and nothing of it is left: no process, no port."""
    file = tmp_path / "started"
    async with Call(scripted(file), greeting_secs=0) as caller:
        turn = await caller.say(SPOKEN)
        assert turn.answer_text == "We are open till nine."
        assert turn.voice_to_voice_secs is not None
        (one,) = started(file)
        assert caller.bot.url == f"http://127.0.0.1:{one.port}"
        assert len(one.left) == 2
        assert "the scripted bot is at port" in caller.bot.output
    assert one.left == []
    assert await is_refused(one.port)
    assert not caller.bot.is_running


async def test_a_command_that_does_not_want_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed, its child too."""
    endings = ((signal.SIGINT, 0.1), (signal.SIGTERM, 0.1))
    monkeypatch.setattr(command_bot, "ENDINGS", endings)
    file = tmp_path / "started"
    async with scripted(file, "stays"):
        (one,) = started(file)
    assert one.left == []
    assert await is_refused(one.port)


async def test_what_fails_around_a_command(tmp_path: Path) -> None:
    """Has the bot's last words in its notes, and the bot is gone."""
    file = tmp_path / "started"
    with pytest.raises(ZeroDivisionError) as failed:
        async with scripted(file):
            raise ZeroDivisionError
    (note,) = failed.value.__notes__
    (one,) = started(file)
    assert note == f"the bot said:\n  the scripted bot is at port {one.port}"
    assert one.left == []


async def test_a_command_that_exits_in_mid_call(tmp_path: Path) -> None:
    """The caller does not wait for an answer that cannot come."""
    with pytest.raises(BotFailed, match="ended by itself, with status 3") as failed:
        async with Call(scripted(tmp_path / "started", "exits"), greeting_secs=0) as caller:
            await caller.say(SPOKEN)
    assert "something has gone wrong" in failed.value.__notes__[0]


async def test_a_command_that_exits_at_once() -> None:
    """Is noticed at once, and says why it did."""
    command = [sys.executable, "-c", "import sys; sys.exit('no key for the model')"]
    with pytest.raises(BotFailed, match=r"status 1: run .* to see why") as failed:
        async with CommandBot(command):
            pytest.fail("it runs")
    assert failed.value.__notes__ == ["the bot said:\n  no key for the model"]


async def test_a_command_that_never_listens(tmp_path: Path) -> None:
    """Is waited for as long as agreed, and ended."""
    file = tmp_path / "pid"
    sleeps = f"echo $$ $$ 1 >{file}; echo starting; exec sleep 1000"
    with pytest.raises(BotFailed, match=r"nobody listens on port \d+, 1 s after") as failed:
        async with CommandBot(["sh", "-c", sleeps], start_secs=1):
            pytest.fail("it listens")
    assert failed.value.__notes__ == ["the bot said:\n  starting"]
    assert started(file)[0].left == []


async def test_a_command_that_is_none() -> None:
    """Says which."""
    with pytest.raises(BotFailed, match=r"no-such-bot cannot be run .*: correct"):
        async with CommandBot("no-such-bot --port {port}"):
            pytest.fail("it runs")


async def test_the_environment_of_a_command(tmp_path: Path) -> None:
    """Has the port, and what it was given."""
    file = tmp_path / "seen"
    told = f"""
import http.server, os, pathlib
pathlib.Path({str(file)!r}).write_text(os.environ["KEY"] + os.getcwd())
class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""
    async with CommandBot(["python", "-c", told], env={"KEY": "open at "}, cwd=tmp_path):
        assert file.read_text() == f"open at {tmp_path.resolve()}"


# ---- functions


async def test_a_function() -> None:
    """A Pipecat bot, as its development runner calls it, over WebRTC; no task of it is left."""
    seen: list[Any] = []

    async def noted(runner_args: Any) -> None:
        seen.append(runner_args)
        await bot(runner_args)

    async with Call(CallableBot(noted, body={"who": "a test"}), greeting_secs=0) as caller:
        turn = await caller.say(SPOKEN)
        assert turn.understood_text == UNDERSTOOD
        assert turn.answer_text == ANSWER
        assert turn.voice_to_voice_secs is not None
        first, second = await caller.say_and_interrupt(SPOKEN, by=SPOKEN)
        assert first.answer_text == ANSWER
        assert second.recording == SPOKEN.stem
    (arguments,) = seen
    assert arguments.body == {"who": "a test"}
    assert arguments.session_id


async def test_a_function_that_raises_at_once() -> None:
    """The call does not wait for a connection that cannot come about."""

    async def broken(runner_args: Any) -> None:
        raise LookupError("no such voice")

    before = asyncio.all_tasks()
    with pytest.raises(BotFailed, match="the bot raised LookupError: no such voice") as failed:
        async with Call(CallableBot(broken)):
            pytest.fail("it answers")
    # aioice notices 20 ms later that there is nobody to connect to any more.
    if noticing := asyncio.all_tasks() - before:
        await asyncio.wait(noticing, timeout=1)
    assert isinstance(failed.value.__cause__, LookupError)


async def test_a_function_that_returns_at_once() -> None:
    """Nor does it wait for one that nobody holds."""

    async def returns(runner_args: Any) -> None:
        return

    before = asyncio.all_tasks()
    with pytest.raises(BotFailed, match="the bot returned without answering the call: have it run"):
        async with Call(CallableBot(returns), greeting_secs=0):
            pytest.fail("it answers")
    if noticing := asyncio.all_tasks() - before:  # as above
        await asyncio.wait(noticing, timeout=1)


async def test_a_function_that_is_not_async() -> None:
    """Is told what it should be."""

    def plain(runner_args: Any) -> Any:
        return 7

    before = asyncio.all_tasks()
    with pytest.raises(BotFailed, match=r"bot must be async def bot\(runner_args\), but .* 7"):
        async with Call(CallableBot(plain), greeting_secs=0):
            pytest.fail("it answers")
    if noticing := asyncio.all_tasks() - before:  # as above
        await asyncio.wait(noticing, timeout=1)


async def test_a_function_that_raises_in_mid_call() -> None:
    """What is said to it fails with its error, and is not told twice."""
    spoken_to = asyncio.Event()

    async def breaks(runner_args: Any) -> None:
        await runner_args.webrtc_connection.connect()
        await spoken_to.wait()
        raise LookupError("no such table")

    async with Call(CallableBot(breaks), greeting_secs=0) as caller:
        spoken_to.set()
        with pytest.raises(BotFailed, match="LookupError: no such table"):
            await caller.say(SPOKEN)


async def test_a_function_that_raises_when_it_is_hung_up_on() -> None:
    """The test fails all the same; if it has failed already, it says so besides."""

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


async def test_a_function_that_leaves() -> None:
    """A bot that returns has hung up."""

    async def leaves(runner_args: Any) -> None:
        connection = runner_args.webrtc_connection
        await connection.connect()
        while connection.pc.connectionState != "connected":
            await asyncio.sleep(0.01)

    with pytest.raises(CallError, match="the bot has hung up"):
        async with Call(CallableBot(leaves), greeting_secs=0) as caller:
            await caller.say(SPOKEN)


async def test_a_function_that_leaves_while_it_is_spoken_to() -> None:
    """The caller does not speak on to nobody."""
    spoken_to = asyncio.Event()

    async def leaves(runner_args: Any) -> None:
        await runner_args.webrtc_connection.connect()
        await spoken_to.wait()

    async with Call(CallableBot(leaves), greeting_secs=0) as caller:
        spoken_to.set()
        with pytest.raises(CallError, match="the bot has hung up"):
            await caller.say(SPOKEN)


async def test_a_function_that_does_not_notice_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cancelled."""
    monkeypatch.setattr("pipecat_hedge.tools.replay.callable_bot.HANG_UP_SECS", 0.1)
    cancelled: list[bool] = []

    async def waits(runner_args: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async with CallableBot(waits) as running, Caller(running.url):
        pass
    assert cancelled == [True]


# ---- what can be said to them


async def test_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test, unless silence is asked for."""
    monkeypatch.setattr("pipecat_hedge.tools.replay.callable_bot.HANG_UP_SECS", 0.1)

    async def deaf(runner_args: Any) -> None:
        await runner_args.webrtc_connection.connect()
        await asyncio.Event().wait()

    heard: list[Any] = []
    bot = CallableBot(deaf)
    async with Call(bot, greeting_secs=0, timeout_secs=0.3, heard=heard.append) as caller:
        with pytest.raises(CallError, match=r"goodbye_slt_normal: the bot was silent for 0\.3 s"):
            await caller.say(SPOKEN)
        assert [turn.error for turn in heard] == ["the bot was silent for 0.3 s"]
        turn = await caller.conversation.say(SPOKEN)
        assert turn.error == "the bot was silent for 0.3 s"
        with pytest.raises(ConfigurationError, match=r"there is no recording 'no\.wav'"):
            await caller.say("no.wav")


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        ("", {}, "command: there is nothing to run"),
        ([], {}, "command: there is nothing to run"),
        ("python 'bot.py", {}, "command: No closing quotation in .*: close the quotes"),
        (7860, {}, "a bot is an address such as .*; got 7860"),
        (b"python bot.py", {}, "a bot is an address such as .*; got b'python bot.py'"),
        ("python bot.py", {"start_secs": 0}, "start_secs must be positive, got 0"),
        ("python bot.py", {"start_secs": "5"}, "start_secs must be a number of seconds, got '5'"),
        ("http://127.0.0.1:1", {"start_secs": 5}, "start_secs is for a bot .* command"),
    ],
)
def test_what_is_no_bot(given: Any, options: dict[str, Any], told: str) -> None:
    """Is refused before anything is started, with the remedy."""
    with pytest.raises(ConfigurationError, match=told):
        as_bot(given, **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"greeting_secs": -1}, "greeting_secs must not be negative, got -1: 0 does not wait"),
        ({"greeting_secs": "5"}, "greeting_secs must be a number of seconds, got '5': write"),
        ({"greeting_secs": None}, "greeting_secs must be a number of seconds, got None"),
        ({"greeting_secs": True}, "greeting_secs must be a number of seconds, got True"),
        ({"timeout_secs": 0}, "timeout_secs must be positive, got 0"),
        ({"timeout_secs": float("nan")}, "timeout_secs must be a number of seconds, got nan"),
        ({"network": 0.5}, r"network must be a .*\.Network, such as Network\(.*\), got 0\.5"),
    ],
)
def test_what_is_no_call(options: dict[str, Any], told: str) -> None:
    """Is refused before anything is started."""
    with pytest.raises(ConfigurationError, match=told):
        Call(Bot("http://127.0.0.1:1"), **options)


def test_what_is_a_bot() -> None:
    """An address, a command, a function, and a bot."""
    address = as_bot("http://127.0.0.1:7860")
    assert (type(address), address.url, address.is_running) == (Bot, "http://127.0.0.1:7860", True)
    assert isinstance(as_bot("python bot.py"), CommandBot)
    assert isinstance(as_bot(("python", "bot.py"), start_secs=5), CommandBot)
    assert isinstance(as_bot(bot), CallableBot)
    assert as_bot(address) is address
