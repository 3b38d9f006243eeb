"""Makes calls: one in a test (`Call`), or many with the same recordings (`replay`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pipecat_hedge.race import ConfigurationError, TaskScope
from pipecat_hedge.tools.replay.audio import Utterance
from pipecat_hedge.tools.replay.bots import Bot
from pipecat_hedge.tools.replay.conversation import Conversation, TurnResult
from pipecat_hedge.tools.replay.peer import Caller, CallError, HungUp, Network, check_secs

__all__ = ["Call", "Replay", "replay"]

STAGGER_SECS = 0.7
"""From one caller's beginning to the next one's: callers do not all speak in the same instant."""


class Call:
    """One call in a test: speaks recordings to a bot, and fails where the bot does.

    Example::

        async with Call(CommandBot("python bot.py --port {port}")) as caller:
            turn = await caller.say("fixtures/audio/hours.wav")
            assert turn.voice_to_voice_secs < 1.5

    Attributes:
        bot: The bot that is called.
        conversation: The conversation with it, once the call is made; ``conversation.caller`` has
            the sound and all of the bot's messages.
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
        on_turn: Callable[[TurnResult], None] = lambda turn: None,
    ):
        """Prepare a call; it is made when it is entered.

        Args:
            bot: The bot to call. One that runs already goes on running.
            root: What the recordings' paths are relative to.
            greeting_secs: How long to wait for the bot to speak first; 0 does not wait.
            timeout_secs: A bot that is silent for so long does not answer.
            network: How bad the line is.
            on_turn: Called with each turn, answered or not.

        Raises:
            ConfigurationError: If an argument cannot work; the message names it.
        """
        check_secs("greeting_secs", greeting_secs, zero="does not wait")
        check_secs("timeout_secs", timeout_secs)
        if network is not None and not isinstance(network, Network):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                "network must be a pipecat_hedge.tools.replay.Network, such as "
                f"Network(loss=0.05, jitter_secs=0.03), got {network!r}"
            )
        self.bot = bot
        self._root = Path(root)
        self._greeting_secs = greeting_secs
        self._timeout_secs = timeout_secs
        self._network = network
        self._on_turn = on_turn

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
                    await self.conversation.wait_for_greeting(timeout_secs=self._greeting_secs)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._stack.__aexit__(type(error) if error else None, error, None)

    async def say(self, recording: Utterance | str | Path) -> TurnResult:
        """Speak a recording, and listen until the bot has finished.

        Args:
            recording: The recording, or a path to it.

        Raises:
            ConfigurationError: If it cannot be spoken.
            CallError: If the bot does not answer, hangs up or fails. Where silence is the right
                answer, ``conversation.say`` returns a turn with an ``error`` instead.
        """
        spoken = self._find(recording)
        async with self.bot.watched():
            turn = await self.conversation.say(spoken)
        self._on_turn(turn)
        return _answered(turn)

    async def say_and_interrupt(
        self, recording: Utterance | str | Path, by: Utterance | str | Path
    ) -> tuple[TurnResult, TurnResult]:
        """Speak a recording, and another one into its answer; then listen to the end.

        Args:
            recording: The recording, or a path to it.
            by: The one that interrupts, or a path to it.

        Returns:
            Both turns. ``silent_after_secs`` of the second says how long it took until the bot was
            silent; its ``error`` says if it was not answered.

        Raises:
            ConfigurationError: If one cannot be spoken.
            CallError: If the bot does not answer the first, hangs up or fails.
        """
        spoken, interruption = self._find(recording), self._find(by)
        async with self.bot.watched():
            first, second = await self.conversation.say_and_interrupt(spoken, interruption)
        self._on_turn(first)
        self._on_turn(second)
        return _answered(first), second

    def _find(self, recording: Utterance | str | Path) -> Utterance | Path:
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


def _answered(turn: TurnResult) -> TurnResult:
    if turn.error is not None:
        raise CallError(f"{turn.recording}: {turn.error}")
    return turn


@dataclass(frozen=True, slots=True)
class Replay:
    """What is to be replayed.

    Parameters:
        url: The bot's address.
        script: What is said, in this order. One that interrupts is spoken into the answer to the
            one before it.
        runs: How many times, each in a call of its own.
        callers: How many callers at once.
        network: How bad the callers' lines are.
        timeout_secs: A bot that is silent for so long does not answer.
        greeting_secs: How long to wait for the bot to speak first; 0 does not wait.
        interrupt_with: Spoken into every answer, if given.

    Raises:
        ConfigurationError: If a field cannot work; the message names it.
    """

    url: str
    script: Sequence[Utterance]
    runs: int = 1
    callers: int = 1
    network: Network = field(default_factory=Network)
    timeout_secs: float = 15.0
    greeting_secs: float = 5.0
    interrupt_with: Utterance | None = None

    def __post_init__(self) -> None:
        if not self.script:
            raise ConfigurationError("script: there is nothing to say; name a recording")
        for name in ("runs", "callers"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        check_secs("greeting_secs", self.greeting_secs, zero="does not wait")
        check_secs("timeout_secs", self.timeout_secs)

    @property
    def turns(self) -> int:
        """How many turns there will be."""
        return self.runs * self.callers * sum(map(len, self.exchanges))

    @property
    def exchanges(self) -> list[tuple[Utterance, ...]]:
        """What is said in a call, each with what interrupts its answer, if anything does."""
        if self.interrupt_with is not None:
            return [(utterance, self.interrupt_with) for utterance in self.script]
        exchanges: list[tuple[Utterance, ...]] = []
        for utterance in self.script:
            if utterance.interrupts and exchanges and len(exchanges[-1]) == 1:
                exchanges[-1] = (*exchanges[-1], utterance)
            else:
                exchanges.append((utterance,))
        return exchanges


async def replay(
    wanted: Replay, *, on_turn: Callable[[TurnResult], None] = lambda turn: None
) -> list[TurnResult]:
    """Replay recordings into a bot: each run is a call, and a whole conversation.

    Args:
        wanted: What is to be replayed.
        on_turn: Called with each turn when it is over.

    Returns:
        The turns, in the order of caller, run and script. One that was not answered has an error.

    Raises:
        CallError: If not even the first call could be made.
    """
    turns: list[list[TurnResult]] = [[] for _ in range(wanted.callers)]
    connected = asyncio.Event()

    async def one_caller(number: int) -> None:
        def add(*results: TurnResult) -> None:
            for turn in results:
                turns[number - 1].append(turn)
                on_turn(turn)

        if number > 1:
            await connected.wait()
            await asyncio.sleep(STAGGER_SECS * (number - 1))
        for run in range(1, wanted.runs + 1):
            await _one_call(wanted, run, number, add, connected)

    async with TaskScope() as scope:
        numbers = range(1, wanted.callers + 1)
        await asyncio.gather(
            *(scope.start(one_caller(number), name=f"caller {number}") for number in numbers)
        )
    return [turn for of_caller in turns for turn in of_caller]


async def _one_call(
    wanted: Replay,
    run: int,
    number: int,
    add: Callable[..., None],
    connected: asyncio.Event,
) -> None:
    """Make one call, and add all of its turns even if it ends early."""
    network = replace(wanted.network, seed=wanted.network.seed + 1000 * number + run)
    exchanges = wanted.exchanges
    done = 0
    try:
        async with Caller(wanted.url, network=network) as caller:
            connected.set()
            conversation = Conversation(
                caller, timeout_secs=wanted.timeout_secs, run=run, number=number
            )
            if wanted.greeting_secs:
                await conversation.wait_for_greeting(timeout_secs=wanted.greeting_secs)
            for spoken in exchanges:
                if len(spoken) == 1:
                    add(await conversation.say(spoken[0]))
                else:
                    add(*await conversation.say_and_interrupt(spoken[0], spoken[1]))
                done += 1
    except CallError as e:
        if not connected.is_set():
            raise  # a bot that cannot be called once cannot be called at all
        error = "the bot hung up" if isinstance(e, HungUp) else str(e)
        for spoken in exchanges[done:]:
            add(*(TurnResult(u.name, run, number, error=error) for u in spoken))
