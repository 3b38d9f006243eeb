"""Replays recordings into a bot: so many runs, so many callers at once, one call each.

A run is a whole conversation: every recording in a row. Callers at once begin one after the other
within a few seconds, as callers do, so that they do not all speak in the same instant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.tools.replay.caller import Caller, CallError, HungUp
from pipecat_hedge.tools.replay.conversation import Conversation, HeardTurn
from pipecat_hedge.tools.replay.network import Network
from pipecat_hedge.tools.replay.sound import Utterance, one_utterance, utterances
from pipecat_hedge.tools.replay.waits import check_waits

__all__ = ["Replay", "replay"]

STAGGER_SECS = 0.7
"""From one caller's beginning to the next one's."""


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
        greeting_secs: How long the bot is waited for to speak first; 0 does not wait.
        interrupt_with: Spoken into every answer, if given.
    """

    url: str
    script: tuple[Utterance, ...]
    runs: int = 1
    callers: int = 1
    network: Network = field(default_factory=Network)
    timeout_secs: float = 15.0
    greeting_secs: float = 5.0
    interrupt_with: Utterance | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigurationError: If a field cannot work; the message names it.
        """
        if not self.script:
            raise ConfigurationError("script: there is nothing to say; name a recording")
        for name in ("runs", "callers"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        check_waits(self.greeting_secs, self.timeout_secs)

    @classmethod
    def of(cls, url: str, paths: Sequence[str | Path], **others: object) -> Replay:
        """Replay files; see ``sound.utterances``.

        Args:
            url: The bot's address.
            paths: Audio files, manifests, or folders of either.
            others: Further fields; ``interrupt_with`` may be the path of one recording.

        Raises:
            ConfigurationError: If a field cannot work, or there is nothing to speak.
        """
        script = tuple(utterances([Path(path) for path in paths]))
        by = others.get("interrupt_with")
        if isinstance(by, (str, Path)):
            spoken = one_utterance(Path(by))
            is_asked_too = any(utterance.name == spoken.name for utterance in script)
            name = f"{spoken.name} (interrupting)" if is_asked_too else spoken.name
            others["interrupt_with"] = replace(spoken, name=name)
        return cls(url, script, **others)  # type: ignore[arg-type]

    @property
    def turns(self) -> int:
        """How many turns there will be."""
        a_call = len(self.script) * (1 if self.interrupt_with is None else 2)
        return a_call * self.runs * self.callers


async def replay(
    wanted: Replay, *, progress: Callable[[HeardTurn], None] = lambda turn: None
) -> list[HeardTurn]:
    """Replay recordings into a bot.

    Args:
        wanted: What is to be replayed.
        progress: Told of each turn when it is over.

    Returns:
        The turns, in the order of caller, run and script. One that was not answered has an error.

    Raises:
        CallError: If not even the first call could be made.
    """
    calls: list[list[HeardTurn]] = [[] for _ in range(wanted.callers)]
    connected = asyncio.Event()

    async def one(number: int) -> None:
        if number:
            await connected.wait()
            await asyncio.sleep(STAGGER_SECS * number)
        for run in range(1, wanted.runs + 1):
            await _call(wanted, run, number + 1, calls[number], progress, connected)

    async with TaskScope() as scope:
        numbers = range(wanted.callers)
        await asyncio.gather(
            *(scope.start(one(number), name=f"caller {number + 1}") for number in numbers)
        )
    return [turn for call in calls for turn in call]


async def _call(
    wanted: Replay,
    run: int,
    number: int,
    turns: list[HeardTurn],
    progress: Callable[[HeardTurn], None],
    connected: asyncio.Event,
) -> None:
    """Make one call, and append its turns, whatever becomes of it."""

    def append(*heard: HeardTurn) -> None:
        for turn in heard:
            turns.append(turn)
            progress(turn)

    script = _script(wanted)
    network = replace(wanted.network, seed=wanted.network.seed + 1000 * number + run)
    said = 0
    try:
        async with Caller(wanted.url, network=network) as caller:
            connected.set()
            conversation = Conversation(
                caller, timeout_secs=wanted.timeout_secs, run=run, number=number
            )
            if wanted.greeting_secs:
                await conversation.hear_greeting(timeout_secs=wanted.greeting_secs)
            for group in script:
                if len(group) == 1:
                    append(await conversation.say(group[0]))
                else:
                    append(*await conversation.say_and_interrupt(group[0], group[1]))
                said += 1
    except CallError as e:
        if not connected.is_set():
            raise  # who cannot be called once cannot be called at all
        told = str(e) if not isinstance(e, HungUp) else "the bot hung up"
        for group in script[said:]:
            append(*(HeardTurn(u.name, run, number, error=told) for u in group))


def _script(wanted: Replay) -> list[tuple[Utterance, ...]]:
    """What is said, each with what interrupts its answer."""
    if wanted.interrupt_with is not None:
        return [(utterance, wanted.interrupt_with) for utterance in wanted.script]
    groups: list[tuple[Utterance, ...]] = []
    for utterance in wanted.script:
        if utterance.interrupts and groups and len(groups[-1]) == 1:
            groups[-1] = (*groups[-1], utterance)
        else:
            groups.append((utterance,))
    return groups
