"""What a process's services are doing now, for whoever looks: ``pipecat-hedge top``, or a page.

Law: to look changes nothing, and there is nothing in it that was said. One answer to one question,
``snapshot(after)``: how things stand, and the turns that are new since. Who looks asks again and
again, so a reader that is slow, gone or many costs the bot nothing between two questions, and
nothing has to be closed when it ends.
"""

from __future__ import annotations

import dataclasses
import secrets
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from pipecat_hedge.race.reports import AttemptReport, ProviderState, TurnReport
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.live_format import LIVE_PATH, LIVE_VERSION
from pipecat_hedge.voice.turn_latency import TurnLatency, TurnLatencyObserver

__all__ = ["LIVE_PATH", "LiveFeed"]

KEPT_TURNS = 200


class LiveFeed:
    """The latest turns of a process, and how its providers, budgets and promises stand.

    Example::

        feed = LiveFeed()
        feed.watch(llm, latency)                # in each session

        @app.get(LIVE_PATH)                     # FastAPI; docs/slo.md has other servers
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
        """Begin with nobody to watch.

        Args:
            name: What the process is called on the screen; None is the machine's name.
            turns: How many turns are kept.
            clock: Tells the time in seconds since the epoch.
        """
        self.name = name or socket.gethostname()
        self._process = secrets.token_hex(4)
        self._clock = clock
        self._kept = turns
        self._changes = 0
        self._sessions = 0
        self._turns: dict[tuple[int, int], dict[str, Any]] = {}
        self._turns_since: float | None = None
        self._watched: WeakKeyDictionary[HedgedLLMService, int] = WeakKeyDictionary()
        self._stats: list[ProviderStats] = []
        self._states: dict[tuple[str, str | None], ProviderState] = {}
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def watch(self, llm: HedgedLLMService, latency: TurnLatencyObserver | None = None) -> None:
        """Tell of a session's turns from now on. It is not kept alive by that.

        Args:
            llm: The session's service.
            latency: Its observer, which knows when answers are heard; None if there is none.
        """
        self._sessions += 1
        session = self._watched[llm] = self._sessions
        if not any(llm.stats is stats for stats in self._stats):
            self._stats.append(llm.stats)

        async def on_turn_report(service: HedgedLLMService, report: TurnReport) -> None:
            self._take(session, report, service.policy.name)

        llm.add_event_handler("on_turn_report", on_turn_report)
        if latency is None:
            return

        async def on_turn_latency(_: TurnLatencyObserver, turn: TurnLatency) -> None:
            self._heard(session, turn)

        latency.add_event_handler("on_turn_latency", on_turn_latency)

    def snapshot(self, after: int = 0) -> dict[str, Any]:
        """How things stand, as plain values for JSON. Call it on an event loop.

        Args:
            after: Only turns that are new or have changed since: the ``next`` of the snapshot
                before; 0 is all that are kept.
        """
        running = [llm for llm in self._watched if llm.is_running]
        for llm in self._one_of_each(running or list(self._watched)):
            for state in llm.provider_states():
                self._states[state.provider, state.model] = state
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
            "budgets": [
                dataclasses.asdict(budget) for stats in self._stats for budget in stats.budgets()
            ],
            "slos": [
                dataclasses.asdict(status)
                for stats in self._stats
                for status in stats.slo_board.status()
            ],
        }

    @staticmethod
    def _one_of_each(services: list[HedgedLLMService]) -> list[HedgedLLMService]:
        """One service for each line-up: what is known of providers is the process's."""
        line_ups = {tuple(p.name for p in llm.providers): llm for llm in services}
        return list(line_ups.values())

    def _provider(self, state: ProviderState) -> dict[str, Any]:
        outcomes = self._outcomes[state.provider]
        told = dataclasses.asdict(state)
        return {
            **told,
            "requests": outcomes.total(),
            "won": outcomes["won"],
            "superseded": outcomes["superseded"],
            "failed": outcomes["failed"],
            "interrupted": outcomes["interrupted"],
        }

    def _take(self, session: int, report: TurnReport, policy: str) -> None:
        for attempt in report.attempts:
            self._outcomes[attempt.provider][attempt.outcome] += 1
        filler = report.filler
        self._put(
            session,
            report.turn,
            {
                "at": self._clock(),
                "session": session,
                "turn": report.turn,
                "tier": report.tier,
                "policy": policy,
                "outcome": report.outcome,
                "is_degraded": report.degraded_reason is not None,
                "winner": report.winner,
                "ttft_secs": report.ttft_secs,
                "ttfs_secs": report.ttfs_secs,
                "voice_to_voice_secs": None,
                "queued_secs": report.queued_secs,
                "filler_secs": None if filler is None else filler.spoken_secs,
                "attempts": [_attempt(attempt) for attempt in report.attempts],
            },
        )

    def _heard(self, session: int, turn: TurnLatency) -> None:
        if not turn.reports or turn.voice_to_voice_secs is None:
            return
        known = self._turns.get((session, turn.reports[-1].turn))
        if known is not None:
            heard = {**known, "voice_to_voice_secs": turn.voice_to_voice_secs}
            self._put(session, heard["turn"], heard)

    def _put(self, session: int, number: int, turn: dict[str, Any]) -> None:
        self._changes += 1
        self._turns.pop((session, number), None)
        self._turns[session, number] = {**turn, "number": self._changes}
        while len(self._turns) > self._kept:
            self._turns_since = self._turns.pop(next(iter(self._turns)))["at"]


def _attempt(attempt: AttemptReport) -> dict[str, Any]:
    return {
        "provider": attempt.provider,
        "launch_reason": attempt.launch_reason,
        "launched_secs": attempt.launched_secs,
        "ttft_secs": attempt.ttft_secs,
        "outcome": attempt.outcome,
        "error_category": attempt.error_category,
    }
