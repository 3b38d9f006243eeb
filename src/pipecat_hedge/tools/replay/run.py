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

STAGGER_SECS = 0.7
"""Between the starts of two callers, so that they do not speak simultaneously."""


class Call:
    """One call in a test: plays recordings to a bot, and fails if the bot does.

    Example::

        async with Call(CommandBot("python bot.py --port {port}")) as caller:
            turn = await caller.say("fixtures/audio/hours.wav")
            assert turn.voice_to_voice_secs < 1.5

    Attributes:
        bot: The bot.
        conversation: The conversation, once connected; ``conversation.caller`` has the audio and
            all of the bot's messages.
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
        """Prepare a call; it is made when entered.

        Args:
            bot: The bot to call. A running bot is not stopped.
            root: The folder of relative recording paths.
            greeting_secs: The longest wait for the bot's greeting, in seconds; 0 does not wait.
            timeout_secs: The longest silence before a turn counts as unanswered, in seconds.
            network: Loss and jitter.
            on_turn: Called with each turn, answered or not.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it.
        """
        check_secs("greeting_secs", greeting_secs, zero="does not wait")
        check_secs("timeout_secs", timeout_secs)
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
        """Play a recording, and wait for its end.

        Args:
            recording: The recording, or a path to it.

        Raises:
            ConfigurationError: If it cannot be played.
            CallError: If the bot does not answer, hangs up or fails. If silence is the correct
                answer, use ``conversation.say``, which returns a turn with an ``error`` instead.
        """
        spoken = self._find(recording)
        async with self.bot.watched():
            turn = await self.conversation.say(spoken)
        self._on_turn(turn)
        return _answered(turn)

    async def say_and_interrupt(
        self, recording: Utterance | str | Path, by: Utterance | str | Path
    ) -> tuple[TurnResult, TurnResult]:
        """Play a recording, interrupt its answer with another one, and wait for its end.

        Args:
            recording: The recording, or a path to it.
            by: The interrupting recording, or a path to it.

        Returns:
            Both turns. ``silent_after_secs`` of the second is the time until the bot was silent;
            its ``error`` says if it was not answered.

        Raises:
            ConfigurationError: If one cannot be played.
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
                "the test runs on another event loop than the call: use the same loop_scope for "
                "tests and fixtures (asyncio_default_fixture_loop_scope of pytest-asyncio)"
            )
        if isinstance(recording, Utterance):
            return recording
        path = self._root / recording
        if not path.is_file():
            raise ConfigurationError(
                f"there is no recording {str(recording)!r}: {path.absolute()} is not a file; "
                "record one (WAV, FLAC, ...), or correct the path"
            )
        return path


def _answered(turn: TurnResult) -> TurnResult:
    if turn.error is not None:
        raise CallError(f"{turn.recording}: {turn.error}")
    return turn


@dataclass(frozen=True, slots=True)
class Replay:
    """The options of a replay.

    Parameters:
        url: The bot's address.
        script: The recordings, in order. One that interrupts is played into the answer to the
            previous one.
        runs: Consecutive calls per caller.
        callers: Concurrent callers.
        network: Loss and jitter.
        timeout_secs: The longest silence before a turn counts as unanswered.
        greeting_secs: The longest wait for the bot's greeting; 0 does not wait.
        interrupt_with: A recording that interrupts every answer.

    Raises:
        ConfigurationError: If a field is invalid; the message names it.
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
            raise ConfigurationError("script is empty: name a recording")
        for name in ("runs", "callers"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        check_secs("greeting_secs", self.greeting_secs, zero="does not wait")
        check_secs("timeout_secs", self.timeout_secs)

    @property
    def turns(self) -> int:
        """The number of turns."""
        return self.runs * self.callers * sum(map(len, self.exchanges))

    @property
    def exchanges(self) -> list[tuple[Utterance, ...]]:
        """The recordings of a call, each with the one that interrupts its answer, if any."""
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
    """Replay recordings into a bot: each run is a call with a complete conversation.

    Args:
        wanted: The options.
        on_turn: Called with each turn at its end.

    Returns:
        The turns, in the order of caller, run and script. An unanswered one has an error.

    Raises:
        CallError: If the first call failed.
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
    wanted: Replay, run: int, number: int, add: Callable[..., None], connected: asyncio.Event
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
            raise  # the first call failed: the bot is not reachable
        error = "the bot hung up" if isinstance(e, HungUp) else str(e)
        for spoken in exchanges[done:]:
            add(*(TurnResult(u.name, run, number, error=error) for u in spoken))
