"""A fleet of processes in virtual time: callers in a closed loop, and providers that queue.

The processes' registries are real; providers, callers and what the processes tell each other once a
second are played by events on a heap. Nobody hedges, but to try a provider again that was left
alone: what is seen is what breakers, limits and permits do.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pipecat_hedge.ending import ANSWERED, DROPPED, SILENT, Ending
from pipecat_hedge.health import Health
from pipecat_hedge.policies.fleet import Finding, advise
from pipecat_hedge.policies.permit_queue import MOST_WAIT_SECS, Ticket
from pipecat_hedge.profiles import LatencyProfile
from pipecat_hedge.provider_health import Permit
from pipecat_hedge.work import Tier

NAMES = ("a", "b", "c")
STREAM_SECS = 0.4
SILENT_SECS = 3.0
"""How long a request is waited for that was sent to a provider that hangs."""
LEARNED = 40
"""First tokens of each provider that every process has seen before."""


@dataclass(eq=False)
class Request:
    """One turn's way through the fleet.

    Parameters:
        process: The process that it belongs to.
        tier: Whose turn it is.
        asked_at: When the caller began to wait.
        permit: Leave to send it, once there is.
        is_gone: Whether it was recalled from a provider's queue.
        first_at: When its first token came.
        is_probe: Whether it only tries a provider; its caller is answered by another request.
    """

    process: int
    tier: Tier
    asked_at: float
    permit: Permit | None = None
    is_gone: bool = False
    first_at: float | None = None
    is_probe: bool = False


@dataclass
class Told:
    """A turn that is over.

    Parameters:
        asked_at: When the caller began to wait.
        tier: Whose turn it was.
        waited_secs: Until the first token, or the degraded answer.
        is_answered: Which of them it was.
    """

    asked_at: float
    tier: Tier
    waited_secs: float
    is_answered: bool


@dataclass
class Server:
    """A provider that serves so many at once, and has the rest wait.

    Parameters:
        capacity: So many.
        slow: How many times as long as usual each takes.
        hangs: Whether what is sent to it now is never answered.
        busy: How many it serves.
        queue: Who waits.
        asked_at: When each request was sent.
    """

    capacity: int
    slow: float = 1.0
    hangs: bool = False
    busy: int = 0
    queue: deque[Request] = field(default_factory=deque[Request])
    asked_at: list[float] = field(default_factory=list[float])

    def rate(self, begin: float, end: float) -> float:
        """How many requests a second it was sent in between."""
        return sum(begin <= at < end for at in self.asked_at) / (end - begin)


class Fleet:
    """Eight processes of forty callers, as in the drills.

    Attributes:
        told: Every turn that is over.
        servers: The providers.
        profile: Whose times to first token they have; None is some usual ones.
        hangs: The share of requests that are never answered.
    """

    def __init__(
        self,
        *,
        processes: int = 8,
        sessions: int = 40,
        capacity: int = 57,
        stream_secs: float = STREAM_SECS,
        seed: int = 1,
        profile: LatencyProfile | None = None,
        hangs: float = 0.0,
    ):
        self._dice = random.Random(seed)
        self.profile, self.hangs = profile, hangs
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._told_before: list[dict[str, Finding]] = []
        self._stream_secs = stream_secs
        self.now = 0.0
        self.told: list[Told] = []
        self.servers = {name: Server(capacity) for name in NAMES}
        self.processes = [Health(random.Random(n)) for n in range(processes)]
        for health in self.processes:
            for name, _ in itertools.product(NAMES, range(LEARNED)):
                health.of(name).limit.heard(self._ttft_secs(), 0.0)
        for number, process in itertools.product(range(sessions), range(processes)):
            tier: Tier = "standard" if number % 10 else "premium"
            self.at(self._dice.uniform(0.0, 6.0), partial(self._ask, process, tier))
        self.at(1.0, self._share)

    def at(self, secs: float, act: Callable[[], None]) -> None:
        """Have something happen at a time."""
        heapq.heappush(self._events, (secs, next(self._numbers), act))

    def run(self, until: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()

    def turns(self, begin: float, end: float, tier: Tier | None = None) -> list[Told]:
        """The turns that began in between."""
        return [t for t in self.told if begin <= t.asked_at < end and tier in (None, t.tier)]

    def _ttft_secs(self) -> float:
        if self.profile is not None:
            return self.profile.sample(self._dice)
        return self._dice.lognormvariate(-0.62, 0.5)

    def _think(self, request: Request) -> None:
        think_secs = self._dice.uniform(3.0, 9.0)
        self.at(self.now + think_secs, partial(self._ask, request.process, request.tier))

    def _ask(self, process: int, tier: Tier) -> None:
        self._admit(Request(process, tier, self.now))
        health = self.processes[process]
        for name in NAMES:
            if health.claim_probe(name, self.now):
                ticket = Ticket("hedge", tier, self.now, (name,), self.now)
                permit = health.take(ticket, self.now, probe=name)
                if permit is None:
                    health.drop_probe(name, self.now)
                else:
                    self._send(Request(process, tier, self.now, is_probe=True), permit)

    def _admit(self, request: Request) -> None:
        health = self.processes[request.process]
        deadline = max(request.asked_at + MOST_WAIT_SECS, self.now + 0.5)
        ticket = Ticket("primary", request.tier, deadline, NAMES, self.now)
        if (permit := health.take(ticket, self.now)) is not None:
            self._send(request, permit)
            return
        given: list[Permit | None] = []

        def grant(permit: Permit | None) -> None:
            given.append(permit)
            act = partial(self._degrade, request) if permit is None else None
            self.at(self.now, act or partial(self._send, request, permit))  # type: ignore[arg-type]

        def expire() -> None:
            if not given:
                health.leave(ticket)
                self._degrade(request)

        if health.wait(ticket, grant, self.now) is not None:
            self._degrade(request)
        else:
            self.at(deadline, expire)

    def _degrade(self, request: Request) -> None:
        waited_secs = self.now - request.asked_at
        self.told.append(Told(request.asked_at, request.tier, waited_secs, is_answered=False))
        self._think(request)

    def _send(self, request: Request, permit: Permit) -> None:
        request.permit = permit
        permit.recall = partial(self._recall_soon, request)
        server = self.servers[permit.key]
        server.asked_at.append(self.now)
        if server.hangs or self._dice.random() < self.hangs:
            self.at(self.now + SILENT_SECS, partial(self._recall, request, SILENT))
            return
        server.queue.append(request)
        self._serve(permit.key)

    def _recall_soon(self, request: Request) -> None:
        self.at(self.now, partial(self._recall, request))

    def _recall(self, request: Request, ending: Ending = DROPPED) -> None:
        permit = request.permit
        if permit is None or not permit.is_out or request.first_at is not None or request.is_gone:
            return
        request.is_gone = True
        server = self.servers[permit.key]
        if request in server.queue:
            server.queue.remove(request)
        self.processes[request.process].give_back(permit, ending, self.now, was_unheard=True)
        if not request.is_probe:
            self._admit(Request(request.process, request.tier, request.asked_at))

    def _serve(self, name: str) -> None:
        server = self.servers[name]
        while server.queue and server.busy < server.capacity:
            request = server.queue.popleft()
            server.busy += 1
            first_at = self.now + self._ttft_secs() * server.slow
            self.at(first_at, partial(self._first, request))
            self.at(first_at + self._stream_secs * server.slow, partial(self._end, name, request))

    def _first(self, request: Request) -> None:
        if not request.is_gone:
            assert request.permit is not None
            request.first_at = self.now
            self.processes[request.process].heard(request.permit, self.now)

    def _end(self, name: str, request: Request) -> None:
        self.servers[name].busy -= 1
        permit, first_at = request.permit, request.first_at
        if permit is not None and first_at is not None:
            ttft_secs = first_at - permit.taken_at
            health = self.processes[request.process]
            health.give_back(permit, ANSWERED, self.now, ttft_secs=ttft_secs)
            if not request.is_probe:
                waited_secs = first_at - request.asked_at
                told = Told(request.asked_at, request.tier, waited_secs, is_answered=True)
                self.told.append(told)
                self._think(request)
        self._serve(name)

    def _share(self) -> None:
        """Tell each process what the others have found, as through Redis."""
        told = [
            {name: health.of(name).finding(self.now) for name in NAMES} for health in self.processes
        ]
        for number, health in enumerate(self.processes):
            before, others = (
                {str(n): each for n, each in enumerate(findings) if n != number}
                for findings in (self._told_before, told)
            )
            for name, advice in advise(told[number], before, others).items():
                health.of(name).follow(advice, self.now)
        self._told_before = told
        self.at(self.now + 1.0, self._share)


def p95(turns: Sequence[Told]) -> float:
    """Of the answered turns' waits, in seconds."""
    waits = sorted(turn.waited_secs for turn in turns if turn.is_answered)
    return waits[int(0.95 * len(waits))]


def degraded(turns: Sequence[Any]) -> float:
    """The share of turns that were not answered."""
    return sum(not turn.is_answered for turn in turns) / len(turns)
