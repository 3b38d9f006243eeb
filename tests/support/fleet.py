"""A fleet of processes in virtual time: callers in a closed loop, and providers that queue.

The processes' registries are real, and know nothing of each other; providers and callers are played
by events on a heap. Nothing is hedged, but to try a provider again that was left
alone: what is seen is what breakers, limits and permits do.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pipecat_hedge.providers.permits import Permit, Terms
from pipecat_hedge.providers.priority import WorkClass
from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.providers.standing import first_choice
from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.race import Tier
from pipecat_hedge.service import AdmissionMode
from pipecat_hedge.service.admission_terms import admission_terms
from tests.support.standing import standing
from tests.support.virtual import VirtualTime

NAMES = ("a", "b", "c")
STREAM_SECS = 0.4
SILENT_SECS = 3.0
"""How long a request is waited for that was sent to a provider that hangs."""
REFUSED_SECS = 0.05
BUSY = "busy"


@dataclass(eq=False)
class Turn:
    """One turn's way through the fleet.

    Parameters:
        process: The process that it belongs to.
        tier: Whose turn it is.
        asked_at: When the caller began to wait.
        session: Whose it is.
        left: The providers that may still be asked.
        is_recovery: Whether it only tries a provider; its caller is answered by another request.
    """

    process: int
    tier: Tier
    asked_at: float
    session: int
    left: tuple[str, ...] = NAMES
    is_recovery: bool = False


@dataclass(frozen=True)
class Told:
    """A turn that is over.

    Parameters:
        asked_at: When the caller began to wait.
        tier: Whose turn it was.
        secs: Until the first token, or until it failed.
        is_answered: Which of them it was.
    """

    asked_at: float
    tier: Tier
    secs: float
    is_answered: bool


@dataclass
class Server:
    """A provider that serves so many at once, and has the rest wait.

    Parameters:
        capacity: So many.
        queues: So many wait at most; further ones are refused.
        slow: How many times as long as usual each takes.
        hangs: Whether what is sent to it now is never answered.
        busy: How many it serves.
        queue: What waits.
        asked_at: When each request was sent.
    """

    capacity: int
    queues: float = math.inf
    slow: float = 1.0
    hangs: bool = False
    busy: int = 0
    queue: deque[tuple[Turn, Permit]] = field(default_factory=deque[tuple[Turn, Permit]])
    asked_at: list[float] = field(default_factory=list[float])

    def rate(self, begin: float, end: float) -> float:
        """How many requests a second it was sent in between."""
        return sum(begin <= at < end for at in self.asked_at) / (end - begin)


class Fleet(VirtualTime):
    """Eight processes of forty callers, as in the drills; one caller in ten is a premium one.

    Attributes:
        told: Every turn that is over.
        servers: The providers.
        processes: Each process's registry.
    """

    def __init__(
        self,
        *,
        mode: AdmissionMode = "open",
        processes: int = 8,
        sessions: int = 40,
        capacity: int = 57,
        stream_secs: float = STREAM_SECS,
        seed: int = 1,
    ):
        self._rng = random.Random(seed)
        self._mode: AdmissionMode = mode
        super().__init__()
        self._stream_secs = stream_secs
        self.told: list[Told] = []
        self.servers = {name: Server(capacity) for name in NAMES}
        self.processes = [ProviderRegistry(random.Random(n)) for n in range(processes)]
        for number, process in itertools.product(range(sessions), range(processes)):
            tier: Tier = "standard" if number % 10 else "premium"
            self._at(self._rng.uniform(0.0, 6.0), partial(self._ask, process, tier, number))

    def turns(self, begin: float, end: float, tier: Tier | None = None) -> list[Told]:
        """The turns that began in between."""
        return [t for t in self.told if begin <= t.asked_at < end and tier in (None, t.tier)]

    # ---- a turn

    def _ask(self, process: int, tier: Tier, session: int) -> None:
        self._admit(Turn(process, tier, self.now, session), "primary")
        health = self.processes[process]
        for name in NAMES:
            if health.claim_recovery(name, self.now):
                turn = Turn(process, tier, self.now, session, is_recovery=True)
                terms = self._terms(turn)
                self._send(turn, health.issue(name, "hedge", terms, self.now, is_recovery=True))

    def _terms(self, turn: Turn) -> Terms:
        terms = replace(admission_terms(self._mode, turn.tier, None, None), session=turn.session)
        if terms.sheds:
            most = max(terms.bounds.ceiling // len(self.processes), terms.bounds.floor)
            return replace(terms, bounds=replace(terms.bounds, ceiling=most))
        registry = self.processes[turn.process]
        states = {standing(registry, name, self.now).breaker for name in NAMES}
        return replace(terms, ignores_breakers="closed" not in states)

    def _admit(self, turn: Turn, work: WorkClass) -> None:
        health, terms = self.processes[turn.process], self._terms(turn)
        health.begin_turn(terms, self.now)
        name = first(health, turn.left, work, terms, self.now)
        if name is None:
            self._fail(turn)
        else:
            self._send(turn, health.issue(name, work, terms, self.now))

    def _send(self, turn: Turn, permit: Permit) -> None:
        turn.left = tuple(name for name in turn.left if name != permit.key)
        server = self.servers[permit.key]
        server.asked_at.append(self.now)
        if server.hangs:
            self._at(self.now + SILENT_SECS, partial(self._lose, turn, permit, "silent"))
        elif server.busy >= server.capacity and len(server.queue) >= server.queues:
            self._at(self.now + REFUSED_SECS, partial(self._lose, turn, permit, BUSY))
        else:
            server.queue.append((turn, permit))
            self._serve(permit.key)

    def _lose(self, turn: Turn, permit: Permit, verdict: Verdict) -> None:
        self.processes[turn.process].release(permit, verdict, self.now)
        if not turn.is_recovery:
            self._admit(turn, "rescue")

    def _fail(self, turn: Turn) -> None:
        self._tell(turn, self.now, is_answered=False)

    def _serve(self, name: str) -> None:
        server = self.servers[name]
        while server.queue and server.busy < server.capacity:
            turn, permit = server.queue.popleft()
            server.busy += 1
            first_at = self.now + self._rng.lognormvariate(-0.62, 0.5) * server.slow
            self._at(first_at, partial(self._first, turn, permit))
            self._at(first_at + self._stream_secs, partial(self._end, turn, permit, first_at))

    def _first(self, turn: Turn, permit: Permit) -> None:
        self.processes[turn.process].record_first_token(permit, self.now)

    def _end(self, turn: Turn, permit: Permit, first_at: float) -> None:
        self.servers[permit.key].busy -= 1
        self.processes[turn.process].release(permit, "answered", self.now, has_begun=True)
        if not turn.is_recovery:
            self._tell(turn, first_at, is_answered=True)
        self._serve(permit.key)

    def _tell(self, turn: Turn, at: float, *, is_answered: bool) -> None:
        secs = at - turn.asked_at
        self.told.append(Told(turn.asked_at, turn.tier, secs, is_answered))
        think_secs = self._rng.uniform(3.0, 9.0)
        again = partial(self._ask, turn.process, turn.tier, turn.session)
        self._at(self.now + think_secs, again)


def first(
    registry: ProviderRegistry, keys: Sequence[str], work: WorkClass, terms: Terms, now: float
) -> str | None:
    """The provider of a turn's next request; None if it sheds, or all were asked."""
    standings = registry.standing(keys, work, terms, now)
    if not standings or (terms.sheds and all(each.full is not None for each in standings)):
        return None
    return keys[first_choice(standings)]


def p95(turns: Sequence[Told]) -> float:
    """Of the answered turns' waits, in seconds."""
    waits = sorted(turn.secs for turn in turns if turn.is_answered)
    return waits[int(0.95 * len(waits))]


def lost(turns: Sequence[Told]) -> float:
    """The share of turns that were not answered."""
    return sum(not turn.is_answered for turn in turns) / len(turns)
