"""Reads the live feeds of bots: validates answers, polls and reconnects, merges several bots."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipecat_hedge.race import ConfigurationError, HedgeError
from pipecat_hedge.telemetry import LIVE_PATH, LIVE_VERSION

KEPT_TURNS = 1000
TIMEOUT_SECS = 5.0
MAX_BYTES = 4_000_000
"""The largest answer: about 6,000 turns. A feed keeps 200 by default."""


class FeedError(HedgeError):
    """The answer is not a feed, or one of another version."""


def _printable(text: str) -> str:
    """Replace control characters, which could control the terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


_Text = Annotated[str, AfterValidator(_printable)]
_Number = Annotated[float, Field(ge=-1e11, le=1e11, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, le=1e11, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, le=10**11)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class Attempt(_Part):
    """One request of a turn."""

    provider: _Text
    launch_reason: _Text
    launched_secs: _Number
    outcome: _Text
    error_category: _Text | None


class Turn(_Part):
    """One turn of a session."""

    at: Annotated[_Number, Field(ge=0)]
    session: _Count
    turn: _Count
    tier: _Text
    outcome: _Text
    is_degraded: bool
    winner: _Text | None
    ttft_secs: _Number | None
    ttfs_secs: _Number | None
    voice_to_voice_secs: _Number | None
    attempts: list[Attempt]


def _summed(one: BaseModel, other: BaseModel, *names: str) -> dict[str, Any]:
    return {name: getattr(one, name) + getattr(other, name) for name in names}


class Server(_Part):
    """The load of a vLLM server."""

    is_up: bool
    waiting: _Count


class Provider(_Part):
    """One provider's state, limits and requests."""

    provider: _Text
    model: _Text | None
    p50_secs: _Number
    p95_secs: _Number
    retry_after_secs: _Number
    is_last: bool
    server: Server | None
    breaker: Literal["closed", "half_open", "open"]
    in_flight: _Count
    limit: _Count
    requests: _Count
    won: _Count
    superseded: _Count
    failed: _Count

    @property
    def key(self) -> object:
        """What equal providers of several bots have in common."""
        return self.provider, self.model

    def merged(self, other: Provider) -> Provider:
        """Merge two bots' views: counts are summed, the worst state is kept."""
        worst = ("p50_secs", "p95_secs", "retry_after_secs", "is_last")
        order = ("closed", "half_open", "open")
        return self.model_copy(
            update={
                **_summed(self, other, "in_flight", "limit", "requests"),
                **_summed(self, other, "won", "superseded", "failed"),
                **{name: max(getattr(self, name), getattr(other, name)) for name in worst},
                "breaker": max(self.breaker, other.breaker, key=order.index),
            }
        )


class Budget(_Part):
    """The hedge budget, in requests; a negative balance is debt."""

    budget: _Number
    balance: _Number
    most_credit: _Number

    @property
    def key(self) -> object:
        """What equal budgets of several bots have in common."""
        return self.budget

    def merged(self, other: Budget) -> Budget:
        """Add up two bots' budgets."""
        return self.model_copy(update=_summed(self, other, "balance", "most_credit"))


class Window(_Part):
    """The turns of one sliding window, and those that missed the SLO."""

    window_secs: _Positive
    turns: _Count
    bad: _Count


class Slo(_Part):
    """One SLO, counted over sliding windows, shortest first."""

    tier: _Text
    objective: Literal["ttft", "ttfs", "voice_to_voice"]
    within_secs: _Positive
    share: Annotated[float, Field(ge=0, lt=1)]
    windows: Annotated[tuple[Window, ...], Field(min_length=1, strict=False)]

    @property
    def key(self) -> object:
        """What equal SLOs of several bots have in common."""
        lengths = tuple(window.window_secs for window in self.windows)
        return self.tier, self.objective, self.within_secs, self.share, lengths

    def merged(self, other: Slo) -> Slo:
        """Count the turns of two bots together."""
        pairs = zip(self.windows, other.windows, strict=True)
        windows = tuple(a.model_copy(update=_summed(a, b, "turns", "bad")) for a, b in pairs)
        return self.model_copy(update={"windows": windows})

    @property
    def attainment(self) -> float | None:
        """The share of good turns in the longest window; None without turns."""
        last = self.windows[-1]
        return 1 - last.bad / last.turns if last.turns else None

    @property
    def burns(self) -> list[float | None]:
        """Each window's burn rate: the bad share over the allowed share.

        After the Site Reliability Workbook, chapter 5.
        """
        return [w.bad / w.turns / (1 - self.share) if w.turns else None for w in self.windows]

    @property
    def budget_left(self) -> float:
        """The remaining part of the longest window's error budget; negative if overspent."""
        return 1 - (self.burns[-1] or 0.0)


class Snapshot(_Part):
    """One answer of a feed; ``docs/slo.md`` describes it."""

    version: Annotated[int, Field(ge=LIVE_VERSION, le=LIVE_VERSION)]
    process: _Text
    name: _Text
    next: _Count
    sessions: _Count
    turns_since: _Number | None
    turns: list[Turn]
    providers: list[Provider]
    budgets: list[Budget]
    slos: list[Slo]


P = TypeVar("P", Provider, Budget, Slo)


def _merged(parts: Iterable[P]) -> list[P]:
    found: dict[object, P] = {}
    for part in parts:
        found[part.key] = found[part.key].merged(part) if part.key in found else part
    return list(found.values())


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
            snapshot = Snapshot.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            if where == "version" and first["type"] != "missing":
                raise FeedError(
                    f"its feed does not have version {LIVE_VERSION}: use the same release"
                ) from None
            message = f"no feed of turns ({where or 'body'}: {first['msg']}): see docs/slo.md"
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
        return _merged(p for snapshot in self.snapshots for p in snapshot.providers)

    def budgets(self) -> list[Budget]:
        """Return the budgets; equal ones are summed."""
        return _merged(b for snapshot in self.snapshots for b in snapshot.budgets)

    def slos(self) -> list[Slo]:
        """Return the SLOs; equal ones are counted together."""
        return _merged(s for snapshot in self.snapshots for s in snapshot.slos)


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
            raise FeedError(f"status {response.status}, no feed at this path: see docs/slo.md")
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_BYTES:
                raise FeedError(f"its answer is larger than {MAX_BYTES:,} bytes: see docs/slo.md")
        return bytes(body)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {TIMEOUT_SECS:g} s"
    cause = getattr(error, "os_error", error)
    text = str(getattr(cause, "strerror", None) or error) or type(error).__name__
    return _printable(text.splitlines()[0])
