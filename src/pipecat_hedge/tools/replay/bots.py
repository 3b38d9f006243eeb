"""What a bot can be given as: a command, a function, or an address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay.bot import Bot, BotFailed
from pipecat_hedge.tools.replay.callable_bot import CallableBot
from pipecat_hedge.tools.replay.command_bot import START_SECS, CommandBot

__all__ = ["Bot", "BotFailed", "BotLike", "CallableBot", "CommandBot", "as_bot"]

BotLike: TypeAlias = Bot | str | Sequence[str] | Callable[[Any], Awaitable[object]]


def as_bot(
    given: BotLike, *, cwd: str | Path | None = None, start_secs: float | None = None
) -> Bot:
    """Make a bot of whatever names one.

    Args:
        given: A bot, which is returned as it is; an address (``http://...``); a command, as a line
            or its words; or ``async def bot(runner_args)``.
        cwd: Where a command runs; here if None.
        start_secs: How long a command may take to start; the usual time if None.

    Raises:
        ConfigurationError: If it names none, or only a command can have what is given besides.
    """
    is_command = not isinstance(given, Bot) and not callable(given) and not _is_address(given)
    if start_secs is not None and not is_command:
        raise ConfigurationError(
            f"start_secs is for a bot that is given as a command, not for {given!r}: leave it out"
        )
    if isinstance(given, Bot):
        return given
    if callable(given):
        return CallableBot(given)
    if isinstance(given, str) and _is_address(given):
        return Bot(given)
    if isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)):  # pyright: ignore[reportUnnecessaryIsInstance]
        secs = START_SECS if start_secs is None else start_secs
        return CommandBot(given, cwd=cwd, start_secs=secs)
    raise ConfigurationError(
        "a bot is an address such as http://127.0.0.1:7860, a command such as "
        f'"python bot.py --port {{port}}", or async def bot(runner_args); got {given!r}'
    )


def _is_address(given: object) -> bool:
    return isinstance(given, str) and given.startswith(("http://", "https://"))
