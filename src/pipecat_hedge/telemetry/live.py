"""The live feed: a process's latest turns and current state, for ``pipecat-hedge top``.

Readers poll ``snapshot(after)``, so a slow reader costs the bot nothing and no connection stays
open. A snapshot contains no prompt, answer or key.
"""

from __future__ import annotations

import dataclasses
import secrets
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self
from weakref import WeakKeyDictionary

from aiohttp import web

from pipecat_hedge.policy.arguments import require, require_number
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import ProviderState, SpeechReport, TurnReport
from pipecat_hedge.telemetry.origins import AllowedOrigins, is_loopback

if TYPE_CHECKING:
    from pipecat_hedge.policy.hedge_policy import HedgePolicy
    from pipecat_hedge.service.events import EventHub
    from pipecat_hedge.service.provider_stats import ProviderStats
    from pipecat_hedge.voice.turn_latency import TurnLatencyObserver
    from pipecat_hedge.voice.turn_timeline import TurnLatency

LIVE_PATH = "/hedge/live"
"""The feed's default path."""
LIVE_VERSION = 1
"""The version of the snapshot format (see ``docs/top.md``)."""
KEPT_TURNS = 200
KEPT_SECS = 3600.0
"""A provider is forgotten when no session has had it for this long, and no turn has asked it."""
_OUTCOMES = ("won", "superseded", "failed", "interrupted")


class _Named(Protocol):
    @property
    def name(self) -> str: ...


class _Watched(Protocol):
    """What races: a ``HedgedLLMService``, or a model of the proxy."""

    events: EventHub

    @property
    def stats(self) -> ProviderStats: ...
    @property
    def policy(self) -> HedgePolicy: ...
    @property
    def providers(self) -> Sequence[_Named]: ...
    @property
    def is_running(self) -> bool: ...
    def provider_states(self) -> Sequence[ProviderState]: ...


class LiveFeed:
    """The latest turns of a process, and the state of its providers, budgets and SLOs.

    Example::

        feed = LiveFeed()
        feed.watch(llm, latency)                # in each session

        @app.get(LIVE_PATH)                     # FastAPI; docs/top.md shows other servers
        async def live(after: int = 0):
            return feed.snapshot(after)
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        turns: int = KEPT_TURNS,
        clock: Callable[[], float] = time.time,
    ):
        """Create an empty feed.

        Args:
            name: The name that ``top`` shows; None takes the host name.
            turns: The number of turns to keep.
            clock: Returns seconds since the epoch.
        """
        require("name", name, str, "give the name that top shows, or None")
        what, remedy = "a whole number, at least 1", f"{KEPT_TURNS} is the default"
        require_number("turns", turns, what, remedy, lambda x: x >= 1, kind=int)
        self.name = name or socket.gethostname()
        self._process = secrets.token_hex(4)
        self._clock = clock
        self._kept = turns
        self._changes = 0
        self._sessions = 0
        self._turns: dict[tuple[int, int], dict[str, Any]] = {}
        self._turns_since: float | None = None
        self._watched: WeakKeyDictionary[_Watched, int] = WeakKeyDictionary()
        self._stats: list[ProviderStats] = []
        self._states: dict[tuple[str, str | None], ProviderState] = {}
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seen_at: dict[tuple[str, str | None], float] = {}

    def watch(self, llm: _Watched, latency: TurnLatencyObserver | None = None) -> None:
        """Add a session; the feed holds no reference that keeps it alive.

        Args:
            llm: The session's service.
            latency: The session's observer; without one the feed has no voice-to-voice times.
        """
        self._sessions += 1
        session = self._watched[llm] = self._sessions
        if llm.stats not in self._stats:
            self._stats.append(llm.stats)
        for state in llm.provider_states():
            self._seen_at[state.provider, state.model] = self._clock()

        policy = llm.policy.name
        llm.events.subscribe(TurnReport, lambda report: self._add(session, report, policy))
        llm.events.subscribe(SpeechReport, lambda report: self._add_spoken(session, report))

        async def on_turn_latency(_: TurnLatencyObserver, turn: TurnLatency) -> None:
            self._add_voice_to_voice(session, turn)

        if latency is not None:
            latency.add_event_handler("on_turn_latency", on_turn_latency)

    def snapshot(self, after: int = 0) -> dict[str, Any]:
        """Return the current state as JSON values. Call it on the event loop.

        Args:
            after: The ``next`` of the previous snapshot: the result has only turns that are new or
                changed since. 0 returns all kept turns.
        """
        running = [llm for llm in self._watched if llm.is_running]
        # Services with the same providers share their states: one service per set is enough.
        services = {tuple(p.name for p in llm.providers): llm for llm in running or self._watched}
        for llm in services.values():
            for state in llm.provider_states():
                key = state.provider, state.model
                if llm.is_running:
                    self._seen_at[key] = self._clock()
                if key in self._seen_at:
                    self._states[key] = state
        self._forget()
        trackers = [stats.slo_tracker for stats in self._stats]
        budgets = [budget for stats in self._stats for budget in stats.budgets()]
        return {
            "version": LIVE_VERSION,
            "process": self._process,
            "name": self.name,
            "at": self._clock(),
            "next": self._changes,
            "sessions": len(running),
            "turns_since": self._turns_since,
            "turns": [turn for turn in self._turns.values() if turn["number"] > after],
            "providers": [self._provider(state) for state in self._states.values()],
            "budgets": [dataclasses.asdict(budget) for budget in budgets],
            "slos": [dataclasses.asdict(slo) for tracker in trackers for slo in tracker.status()],
        }

    def _provider(self, state: ProviderState) -> dict[str, Any]:
        outcomes = self._outcomes[state.provider]
        counts = {outcome: outcomes[outcome] for outcome in _OUTCOMES}
        return {**dataclasses.asdict(state), "requests": outcomes.total(), **counts}

    def _forget(self) -> None:
        """Forget the providers that were not seen for ``KEPT_SECS``, with their counts."""
        since = self._clock() - KEPT_SECS
        for key in [key for key, at in self._seen_at.items() if at < since]:
            del self._seen_at[key]
            self._states.pop(key, None)
        for provider in self._outcomes.keys() - {provider for provider, _ in self._seen_at}:
            del self._outcomes[provider]

    def _add(self, session: int, report: TurnReport, policy: str) -> None:
        for attempt in report.attempts:
            self._outcomes[attempt.provider][attempt.outcome] += 1
            self._seen_at[attempt.provider, attempt.model] = self._clock()
        self._forget()
        turn = {"at": self._clock(), "session": session, "policy": policy}
        later = {"voice_to_voice_secs": None, "spoken": None}
        self._put({**turn, **later, **dataclasses.asdict(report)})
        for spoken in report.speech:  # of an interrupted answer it comes before the turn's report
            if spoken.turn == report.turn:
                self._add_spoken(session, spoken)

    def _add_voice_to_voice(self, session: int, turn: TurnLatency) -> None:
        if not turn.reports or turn.voice_to_voice_secs is None:
            return
        known = self._turns.get((session, turn.reports[-1].turn))
        if known is not None:
            self._put({**known, "voice_to_voice_secs": turn.voice_to_voice_secs})

    def _add_spoken(self, session: int, report: SpeechReport) -> None:
        known = None if report.turn is None else self._turns.get((session, report.turn))
        if known is not None:
            self._put({**known, "spoken": dataclasses.asdict(report)})

    def _put(self, turn: dict[str, Any]) -> None:
        key = (turn["session"], turn["turn"])
        self._changes += 1
        self._turns.pop(key, None)
        self._turns[key] = {**turn, "number": self._changes}
        while len(self._turns) > self._kept:
            self._turns_since = self._turns.pop(next(iter(self._turns)))["at"]


def routes(feed: LiveFeed, path: str = LIVE_PATH, *, is_local: bool = False) -> list[web.RouteDef]:
    """Return the feed's route for an aiohttp application: ``app.add_routes(routes(feed))``.

    Cross-origin requests of web pages are forbidden.

    Args:
        feed: The feed.
        path: The route's path.
        is_local: Whether the server is bound to loopback. If so, ``Host`` must be a loopback name.
    """
    allowed = AllowedOrigins()

    async def live(request: web.Request) -> web.Response:
        hosts = request.headers.getall("Host", []) if is_local else None
        forbidden = allowed.why_forbidden(request.headers.getall("Origin", []), hosts)
        if forbidden is not None:
            raise web.HTTPForbidden(text=forbidden)
        after = request.query.get("after", "0")
        if not after.isdecimal():
            raise web.HTTPBadRequest(text="after must be a whole number: the next of a snapshot")
        return web.json_response(feed.snapshot(int(after)), headers={"Cache-Control": "no-store"})

    return [web.get(path, live)]


class LiveServer:
    """Serves a feed over HTTP, for bots without a web server of their own.

    Example::

        async with LiveServer(feed, port=7870):
            await runner.run()          # pipecat-hedge top http://127.0.0.1:7870

    Attributes:
        url: The server's address, once it listens.
    """

    def __init__(self, feed: LiveFeed, *, port: int = 0, host: str = "127.0.0.1"):
        """Prepare a server; it listens once entered.

        Args:
            feed: The feed.
            port: The port; 0 picks a free one.
            host: The address. There is no password: use loopback or a private network.

        Raises:
            ConfigurationError: If ``port`` is not a port number.
        """
        what = "a number from 0 to 65535"
        require_number("port", port, what, "0 is any", lambda x: 0 <= x <= 65535, kind=int)
        require("host", host, str, "write 127.0.0.1", may_be_none=False)
        self._port, self._host = port, host
        self._app = web.Application()
        self._app.add_routes(routes(feed, is_local=is_loopback(host)))
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        self._runner = web.AppRunner(self._app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            reason = error.strerror or type(error).__name__
            raise ConfigurationError(
                f"port {self._port} on {self._host} cannot be used ({reason}): choose another, or 0"
            ) from None
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()
