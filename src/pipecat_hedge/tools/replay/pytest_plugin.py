"""A pytest plugin: the fixture ``caller`` starts a voice bot, calls it and plays recordings.

The module is imported in every test run, so it imports nothing but pytest. The first test that
makes a call loads the rest.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pipecat_hedge.tools.replay.conversation import TurnResult
    from pipecat_hedge.tools.replay.run import Call

TURN = "voice_bot_turn"
"""The name of turns in ``user_properties``, which pytest-xdist transfers from its workers."""
NOT_IN_TABLE = ("answer_text", "understood_text", "stages", "record", "waves")
UNNAMED = (
    "no voice bot is named: return a command, a function or an address from a fixture voice_bot, "
    'mark the test with @pytest.mark.voice_bot("python bot.py --port {port}"), or set --voice-bot '
    "or voice_bot in pytest's configuration"
)
WITHOUT_ASYNCIO = (
    'the fixture caller needs pytest-asyncio: pip install "pipecat-hedge[replay]", and write '
    "async def test_...(caller)"
)
OPTIONS = ("bot", "greeting_secs", "timeout_secs", "start_secs", "network")
_CALL = pytest.StashKey["Call"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the bot."""
    text = 'the voice bot that tests call: a command such as "python bot.py --port {port}", or URL'
    parser.getgroup("voice bot").addoption("--voice-bot", metavar="BOT", help=text)
    parser.addini("voice_bot", text, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, and register the fixture ``caller``, if pytest-asyncio is active."""
    config.addinivalue_line(
        "markers",
        "voice_bot(bot, *, greeting_secs=5.0, timeout_secs=15.0, start_secs=60.0, network=None): "
        "the bot that the fixture caller calls (see the fixture voice_bot), and its options; write "
        "bot=... for a function, because pytest would treat it as the decorated test",
    )
    asyncio_plugin = sys.modules.get("pytest_asyncio.plugin")
    is_async = asyncio_plugin is not None and config.pluginmanager.is_registered(asyncio_plugin)
    config.pluginmanager.register(_async_fixtures() if is_async else _WithoutAsyncio())


def _async_fixtures() -> object:
    import pytest_asyncio

    class Fixtures:
        @pytest_asyncio.fixture
        async def caller(self, _voice_call: Call) -> AsyncIterator[Call]:
            """A call to the voice bot, after its greeting.

            ``turn = await caller.say("recording.wav")`` plays a recording, waits for the answer,
            and returns a ``TurnResult``. The bot is started for the test, and stopped after it.

            Raises:
                CallError: By ``say``, if the bot does not answer, hangs up or fails.
            """
            async with _voice_call as call:
                yield call

    return Fixtures()


class _WithoutAsyncio:
    @pytest.fixture
    def caller(self) -> None:
        """A caller to a voice bot; needs pytest-asyncio."""
        pytest.fail(WITHOUT_ASYNCIO, pytrace=False)


@pytest.fixture
def voice_bot(pytestconfig: pytest.Config) -> Any:
    """The bot to call; override it to return yours.

    A command (a line or a list; ``{port}`` becomes a free port), ``async def bot(runner_args)``, an
    address, or a ``pipecat_hedge.tools.replay.CommandBot`` with its own environment.
    """
    bot = pytestconfig.getoption("--voice-bot") or pytestconfig.getini("voice_bot")
    if not bot:
        pytest.fail(UNNAMED, pytrace=False)
    return bot


@pytest.fixture
def _voice_call(request: pytest.FixtureRequest) -> Call:
    """Create the call that ``caller`` makes."""
    from pipecat_hedge.race import ConfigurationError, missing_extra

    try:
        from pipecat_hedge.tools.replay.bots import as_bot
        from pipecat_hedge.tools.replay.run import Call
    except ImportError as e:
        message = missing_extra("the fixture caller", e.name or "more", "replay")
        raise pytest.fail.Exception(str(message), pytrace=False) from None

    test: pytest.Item = request.node

    def add_turn(turn: TurnResult) -> None:
        names = [field.name for field in fields(turn) if field.name not in NOT_IN_TABLE]
        test.user_properties.append((TURN, {name: getattr(turn, name) for name in names}))

    try:
        options: dict[str, Any] = {}
        for mark in reversed(list(test.iter_markers("voice_bot"))):  # the closest last
            if len(mark.args) > 1:
                raise ConfigurationError(f"the marker voice_bot takes one bot, got {mark.args!r}")
            options |= mark.kwargs if not mark.args else {"bot": mark.args[0], **mark.kwargs}
        if unknown := options.keys() - OPTIONS:
            raise ConfigurationError(
                f"the marker voice_bot has no {', '.join(sorted(unknown))}: it has "
                f"{', '.join(OPTIONS)}"
            )
        bot = options.pop("bot") if "bot" in options else request.getfixturevalue("voice_bot")
        root = request.config.rootpath
        bot = as_bot(bot, cwd=root, start_secs=options.pop("start_secs", None))
        call = Call(bot, root=root, on_turn=add_turn, **options)
    except ConfigurationError as e:
        pytest.fail(str(e), pytrace=False)
    test.stash[_CALL] = call
    return call


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Attach the bot's output to a failed test."""
    made, error = item.stash.get(_CALL, None), call.excinfo
    if made is not None and error is not None and not error.errisinstance(pytest.skip.Exception):
        made.bot.annotate(error.value)
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a table of all turns, if any."""
    turns = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, value in report.user_properties
        if name == TURN
    ]
    if not turns:
        return
    from pipecat_hedge.tools.replay.conversation import TurnResult
    from pipecat_hedge.tools.replay.report import table

    terminalreporter.section("turns with voice bots")
    width = terminalreporter._tw.fullwidth
    terminalreporter.write_line(table([TurnResult(**turn) for turn in turns], width))
