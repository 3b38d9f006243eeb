"""Reads the live feeds of bots: validates answers, polls and reconnects, merges several bots.

What a bot reports is read into the dataclasses from which its feed was written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from pipecat_hedge.policy import BudgetState
from pipecat_hedge.race import (
    ConfigurationError,
    HedgeError,
    ProviderState,
    SpeechReport,
    TurnReport,
)
from pipecat_hedge.telemetry import LIVE_PATH, LIVE_VERSION, SloStatus

KEPT_TURNS = 1000
TIMEOUT_SECS = 5.0
MAX_BYTES = 4_000_000
"""The largest answer: about 2,000 turns. A feed keeps 200 by default."""


class FeedError(HedgeError):
    """The answer is not a feed, or one of another version."""


def printable(text: str) -> str:
    """Replace control characters, which could control the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(TurnReport):
    """One turn of a session; ``at`` is its end, in seconds since the epoch.

    ``spoken`` is what was spoken of its answer, once that has ended.
    """

    at: Annotated[float, Field(ge=0, le=1e11)]
    session: int
    voice_to_voice_secs: float | None = None
    spoken: SpeechReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider(ProviderState):
    """One provider's state, and its requests."""

    requests: int = 0
    won: int = 0
    superseded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One answer of a feed; ``docs/top.md`` describes it. Unknown fields are ignored."""

    version: Annotated[int, Field(ge=LIVE_VERSION, le=LIVE_VERSION)]
    process: str
    name: str
    next: int
    turns: tuple[Turn, ...]
    sessions: int = 0
    turns_since: float | None = None
    providers: tuple[Provider, ...] = ()
    budgets: tuple[BudgetState, ...] = ()
    slos: tuple[SloStatus, ...] = ()

    __pydantic_config__ = ConfigDict(strict=True, allow_inf_nan=False)


_SNAPSHOT = TypeAdapter(Snapshot)
T = TypeVar("T")


def _grouped(parts: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    groups: dict[object, list[T]] = {}
    for part in parts:
        groups.setdefault(key(part), []).append(part)
    return list(groups.values())


def _sums(parts: Sequence[object], *names: str) -> dict[str, Any]:
    return {name: sum(getattr(part, name) for part in parts) for name in names}


def _merge_providers(parts: Sequence[Provider]) -> Provider:
    """Merge several bots' views of a provider: counts are summed, the worst state is kept."""
    worst = ("p50_secs", "p95_secs", "retry_after_secs", "is_last")
    return replace(
        parts[0],
        **_sums(parts, "in_flight", "limit", "requests", "won", "superseded", "failed"),
        **{name: max(getattr(part, name) for part in parts) for name in worst},
        breaker=max((part.breaker for part in parts), key=("closed", "half_open", "open").index),
    )


def _merge_slos(parts: Sequence[SloStatus]) -> SloStatus:
    """Count the turns of several bots together."""
    windows = zip(*(part.windows for part in parts), strict=True)
    summed = tuple(replace(same[0], **_sums(same, "turns", "bad")) for same in windows)
    return replace(parts[0], windows=summed)


@dataclass(eq=False)
class Bot:
    """The state of one bot.

    Parameters:
        url: The address of its feed.
        number: Its number on the screen, from 1.
        snapshot: Its latest answer; None before the first.
        turns: Its turns by session and number, latest last.
        after: The feed position to read from next.
        away_since: Since when it does not answer; None while it does.
        error: Why it does not answer.
        complete_since: The time since which no turn is missing.
    """

    url: str
    number: int = 1
    snapshot: Snapshot | None = None
    turns: dict[tuple[int, int], Turn] = field(default_factory=dict[tuple[int, int], Turn])
    after: int = 0
    away_since: float | None = None
    error: str = ""
    complete_since: float = 0.0

    @property
    def is_answering(self) -> bool:
        """Whether its latest request was answered."""
        return self.snapshot is not None and self.away_since is None

    def take(self, body: bytes | str) -> list[Turn]:
        """Process an answer.

        Returns:
            The new turns.

        Raises:
            FeedError: If it is not a feed's answer; the bot is unchanged.
        """
        try:
            snapshot = _SNAPSHOT.validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            if where == "version" and first["type"] != "missing":
                raise FeedError(
                    f"its feed does not have version {LIVE_VERSION}: use the same release"
                ) from None
            message = f"no feed of turns ({where or 'body'}: {first['msg']}): see docs/top.md"
            raise FeedError(message) from None
        is_new_process = self.snapshot is not None and self.snapshot.process != snapshot.process
        if is_new_process:  # it counts from 1 again
            self.turns.clear()
            self.complete_since = 0.0
        latest = max((turn.at for turn in self.turns.values()), default=-1.0)
        if snapshot.turns_since is not None and snapshot.turns_since > latest:
            self.complete_since = snapshot.turns_since  # turns were dropped between two answers
        new = [turn for turn in snapshot.turns if (turn.session, turn.turn) not in self.turns]
        for turn in snapshot.turns:
            self.turns.pop((turn.session, turn.turn), None)
            self.turns[turn.session, turn.turn] = turn
        while len(self.turns) > KEPT_TURNS:
            dropped = self.turns.pop(next(iter(self.turns)))
            self.complete_since = max(self.complete_since, dropped.at)
        self.after = 0 if is_new_process and self.after else snapshot.next
        self.snapshot, self.away_since, self.error = snapshot, None, ""
        return new

    def lose(self, error: str, now: float) -> bool:
        """Record that it does not answer.

        Returns:
            Whether that, or the reason, is new.
        """
        is_new = self.away_since is None or error != self.error
        self.away_since = now if self.away_since is None else self.away_since
        self.error, self.after = error, 0  # it may return as another process
        return is_new


class Fleet:
    """Several bots as one. Of a bot that does not answer only its turns count."""

    def __init__(self, urls: Sequence[str]):
        self.bots = [Bot(url, number) for number, url in enumerate(urls, 1)]

    @property
    def snapshots(self) -> list[Snapshot]:
        """The latest answers of the bots that answer."""
        return [bot.snapshot for bot in self.bots if bot.snapshot and bot.is_answering]

    def turns(self) -> list[tuple[Bot, Turn]]:
        """Return all turns, latest first."""
        found = [(bot, turn) for bot in self.bots for turn in bot.turns.values()]
        return sorted(found, key=lambda each: each[1].at, reverse=True)

    def providers(self) -> list[Provider]:
        """Return each provider and model once."""
        parts = (provider for snapshot in self.snapshots for provider in snapshot.providers)
        return [_merge_providers(same) for same in _grouped(parts, lambda p: (p.provider, p.model))]

    def budgets(self) -> list[BudgetState]:
        """Return the budgets; equal ones are summed."""
        parts = (budget for snapshot in self.snapshots for budget in snapshot.budgets)
        equal = _grouped(parts, lambda budget: budget.budget)
        return [replace(same[0], **_sums(same, "balance", "most_credit")) for same in equal]

    def slos(self) -> list[SloStatus]:
        """Return the SLOs; equal ones are counted together."""

        def key(slo: SloStatus) -> object:
            lengths = tuple(window.window_secs for window in slo.windows)
            return slo.tier, slo.objective, slo.within_secs, slo.share, lengths

        parts = (slo for snapshot in self.snapshots for slo in snapshot.slos)
        return [_merge_slos(same) for same in _grouped(parts, key)]


def feed_url(address: str) -> str:
    """Return the URL of a feed; ``127.0.0.1:7860`` is enough.

    Args:
        address: A URL, with a path unless it is the default.

    Raises:
        ConfigurationError: If it is not an address.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    try:
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        is_url = False
    if not is_url:
        raise ConfigurationError(f"{address} is not an address: write http://127.0.0.1:7860")
    path = parts.path if parts.path not in ("", "/") else LIVE_PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


async def poll(
    fleet: Fleet,
    every_secs: float,
    *,
    on_turns: Callable[[Bot, list[Turn]], None] = lambda bot, turns: None,
    on_away: Callable[[Bot], None] = lambda bot: None,
) -> None:
    """Poll the feeds of all bots; never returns.

    Args:
        fleet: The bots.
        every_secs: The pause between an answer and the next request.
        on_turns: Called with a bot's new turns after each of its answers.
        on_away: Called when a bot stops answering, and when the reason changes.
    """

    async def follow(session: aiohttp.ClientSession, bot: Bot) -> None:
        while True:
            try:
                on_turns(bot, bot.take(await _read(session, bot)))
            except (FeedError, aiohttp.ClientError, TimeoutError) as error:
                if bot.lose(_reason(error), time.time()):
                    on_away(bot)
            await asyncio.sleep(every_secs)

    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        await asyncio.gather(*(follow(session, bot) for bot in fleet.bots))


async def _read(session: aiohttp.ClientSession, bot: Bot) -> bytes:
    async with session.get(bot.url, params={"after": str(bot.after)}) as response:
        if response.status != 200:
            raise FeedError(f"status {response.status}, no feed at this path: see docs/top.md")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_BYTES:
                raise FeedError(f"its answer is larger than {MAX_BYTES:,} bytes: see docs/top.md")
        return bytes(body)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {TIMEOUT_SECS:g} s"
    cause = getattr(error, "os_error", error)
    text = str(getattr(cause, "strerror", None) or error) or type(error).__name__
    return printable(text.splitlines()[0])
