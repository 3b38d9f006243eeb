"""A call to a bot in a test: the bot is started, called, spoken to, hung up on and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay.bot import Bot
from pipecat_hedge.tools.replay.caller import Caller, CallError
from pipecat_hedge.tools.replay.conversation import Conversation, HeardTurn
from pipecat_hedge.tools.replay.network import Network, check_network
from pipecat_hedge.tools.replay.sound import Utterance
from pipecat_hedge.tools.replay.waits import check_waits

__all__ = ["Call"]


class Call:
    """Speaks recordings to a bot, and fails where the bot does.

    Example::

        async with Call(CommandBot("python bot.py --port {port}")) as caller:
            turn = await caller.say("fixtures/audio/hours.wav")
            assert turn.voice_to_voice_secs < 1.5

    Attributes:
        bot: The bot that is called.
        conversation: What is held with it, once the call is made; ``conversation.caller`` has what
            was heard and all of the bot's messages.
    """

    conversation: Conversation

    def __init__(
        self,
        bot: Bot,
        *,
        root: str | Path = "",
        greeting_secs: float = 5.0,
        timeout_secs: float = 15.0,
        network: Network | None = None,
        heard: Callable[[HeardTurn], None] = lambda turn: None,
    ):
        """Prepare a call; it is made when it is entered.

        Args:
            bot: Whom to call. One that runs already goes on running.
            root: What the recordings' paths are relative to.
            greeting_secs: How long the bot is waited for to speak first; 0 does not wait.
            timeout_secs: A bot that is silent for so long does not answer.
            network: How bad the line is.
            heard: Told of each turn, answered or not.

        Raises:
            ConfigurationError: If an argument cannot work; the message names it.
        """
        check_waits(greeting_secs, timeout_secs)
        check_network(network)
        self.bot = bot
        self._root = Path(root)
        self._greeting_secs = greeting_secs
        self._timeout_secs = timeout_secs
        self._network = network
        self._note = heard

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            if not self.bot.is_running:
                await stack.enter_async_context(self.bot)
            async with self.bot.watched():
                caller = Caller(self.bot.url, network=self._network)
                await stack.enter_async_context(caller)
                self.conversation = Conversation(caller, timeout_secs=self._timeout_secs)
                if self._greeting_secs:
                    await self.conversation.hear_greeting(timeout_secs=self._greeting_secs)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(kind, error, traceback)

    async def say(self, recording: Utterance | str | Path) -> HeardTurn:
        """Speak a recording, and listen until the bot has finished.

        Args:
            recording: The recording, or a path to it.

        Raises:
            ConfigurationError: If it cannot be spoken.
            CallError: If the bot does not answer, hangs up or fails. Where silence is the right
                answer, ``conversation.say`` returns a turn with an ``error`` instead.
        """
        spoken = self._found(recording)
        async with self.bot.watched():
            turn = await self.conversation.say(spoken)
        self._note(turn)
        return _answered(turn)

    async def say_and_interrupt(
        self, recording: Utterance | str | Path, by: Utterance | str | Path
    ) -> tuple[HeardTurn, HeardTurn]:
        """Speak a recording, and another one into its answer; then listen to the end.

        Args:
            recording: The recording, or a path to it.
            by: The one that interrupts, or a path to it.

        Returns:
            Both turns. ``silent_after_secs`` of the second says how long it took until the bot was
            silent; whether it was answered as well, its ``error`` tells.

        Raises:
            ConfigurationError: If one cannot be spoken.
            CallError: If the bot does not answer the first, hangs up or fails.
        """
        spoken, interruption = self._found(recording), self._found(by)
        async with self.bot.watched():
            first, second = await self.conversation.say_and_interrupt(spoken, interruption)
        self._note(first)
        self._note(second)
        return _answered(first), second

    def _found(self, recording: Utterance | str | Path) -> Utterance | Path:
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigurationError(
                "the test runs on another event loop than the call was made on: give tests and "
                "fixtures one loop_scope (asyncio_default_fixture_loop_scope of pytest-asyncio)"
            )
        if isinstance(recording, Utterance):
            return recording
        path = self._root / recording
        if not path.is_file():
            raise ConfigurationError(
                f"there is no recording {str(recording)!r}: {path.absolute()} is no file; record "
                "one (WAV, FLAC, ...), or correct the path"
            )
        return path


def _answered(turn: HeardTurn) -> HeardTurn:
    if turn.error is not None:
        raise CallError(f"{turn.recording}: {turn.error}")
    return turn
