"""A pytest plugin: the fixture ``caller`` starts a voice bot, calls it and speaks recordings.

Law: this module is imported in every test run of everybody who has the package, so it imports
nothing but pytest; what a call needs is loaded by the first test that makes one.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pipecat_hedge.tools.replay.call import Call
    from pipecat_hedge.tools.replay.conversation import HeardTurn

TURN = "heard_turn"
"""What turns are called in a test's ``user_properties``, in which they travel to the summary."""
NOT_SUMMED_UP = ("answer_text", "understood_text", "stages", "record", "waves")
UNNAMED = (
    "no voice bot is named: have a fixture voice_bot return a command, a function or an address, "
    'mark the test with @pytest.mark.voice_bot("python bot.py --port {port}"), or give such a '
    "command as --voice-bot or as voice_bot in pytest's configuration"
)
WITHOUT_ASYNCIO = (
    "the fixture caller needs pytest-asyncio: install it, and write async def test_...(caller)"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the bot."""
    told = 'the voice bot that tests call: a command such as "python bot.py --port {port}", or URL'
    parser.getgroup("voice bot").addoption("--voice-bot", metavar="BOT", help=told)
    parser.addini("voice_bot", told, default="")


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker, and have the fixture ``caller`` if there is an asyncio to run it."""
    config.addinivalue_line(
        "markers",
        "voice_bot(bot, *, greeting_secs=5.0, timeout_secs=15.0, start_secs=60.0, network=None): "
        "the bot that the fixture caller calls (see the fixture voice_bot), and how; write "
        "bot=... for a function, which pytest would take for a test that is marked",
    )
    asyncio_plugin = sys.modules.get("pytest_asyncio.plugin")
    if asyncio_plugin is not None and config.pluginmanager.is_registered(asyncio_plugin):
        from pipecat_hedge.tools.replay import pytest_caller

        config.pluginmanager.register(pytest_caller)
    else:
        config.pluginmanager.register(_WithoutAsyncio())


class _WithoutAsyncio:
    @pytest.fixture
    def caller(self) -> None:
        """A caller to a voice bot; needs pytest-asyncio."""
        pytest.fail(WITHOUT_ASYNCIO, pytrace=False)


@pytest.fixture
def voice_bot(pytestconfig: pytest.Config) -> Any:
    """The bot to call; override it to return what names yours.

    A command (a line or its words; ``{port}`` becomes a free port), ``async def bot(runner_args)``,
    an address, or a ``pipecat_hedge.tools.replay.bots.CommandBot`` with an environment of its own.
    """
    named = pytestconfig.getoption("--voice-bot") or pytestconfig.getini("voice_bot")
    if not named:
        pytest.fail(UNNAMED, pytrace=False)
    return named


@pytest.fixture
def _voice_call(request: pytest.FixtureRequest) -> Call:
    """The call that ``caller`` makes."""
    from pipecat_hedge.race.errors import ConfigurationError
    from pipecat_hedge.tools.replay.bots import as_bot
    from pipecat_hedge.tools.replay.call import Call

    test: pytest.Item = request.node
    marks = list(test.iter_markers("voice_bot"))  # the closest first

    def note(turn: HeardTurn) -> None:
        names = [field.name for field in fields(turn) if field.name not in NOT_SUMMED_UP]
        test.user_properties.append((TURN, {name: getattr(turn, name) for name in names}))

    try:
        options: dict[str, Any] = {}
        for mark in reversed(marks):
            if len(mark.args) > 1:
                raise ConfigurationError(f"the marker voice_bot takes one bot, got {mark.args!r}")
            if mark.args:
                options["bot"] = mark.args[0]
            options.update(mark.kwargs)
        if unknown := options.keys() - _OPTIONS:
            raise ConfigurationError(
                f"the marker voice_bot has no {', '.join(sorted(unknown))}: it has "
                f"{', '.join(_OPTIONS)}"
            )
        given = options.pop("bot") if "bot" in options else request.getfixturevalue("voice_bot")
        root, start_secs = request.config.rootpath, options.pop("start_secs", None)
        bot = as_bot(given, cwd=root, start_secs=start_secs)
        call = Call(bot, root=root, heard=note, **options)
    except ConfigurationError as e:
        pytest.fail(str(e), pytrace=False)
    test.stash[_CALL] = call
    return call


_OPTIONS = ("bot", "greeting_secs", "timeout_secs", "start_secs", "network")
_CALL = pytest.StashKey["Call"]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Have a test that failed show what its bot has said."""
    made, error = item.stash.get(_CALL, None), call.excinfo
    if made is not None and error is not None and not error.errisinstance(pytest.skip.Exception):
        made.bot.annotate(error.value)
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table of what was heard, if any turn was."""
    told = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "teardown"
        for name, value in report.user_properties
        if name == TURN
    ]
    if not told:
        return
    from rich.console import Console

    from pipecat_hedge.tools.replay.conversation import HeardTurn
    from pipecat_hedge.tools.replay.table import print_table

    text = io.StringIO()
    width = max(100, min(terminalreporter._tw.fullwidth, 110))  # recordings have long names
    print_table([HeardTurn(**turn) for turn in told], Console(file=text, width=width))
    terminalreporter.section("turns with voice bots")
    terminalreporter.write(text.getvalue())
