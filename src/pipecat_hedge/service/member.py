"""A provider within a race: its options, its instances, and the requests that it may get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol

from typing_extensions import TypeVar

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.planner import silent_secs
from pipecat_hedge.providers.backends import Backend, Measures, key_of
from pipecat_hedge.providers.latency import LatencyEstimate
from pipecat_hedge.providers.server_queue import load_rank, why_ineligible
from pipecat_hedge.race.events import Slot
from pipecat_hedge.race.reports import ServerLoad


class NamedProvider(Protocol):
    """A provider's name, price and patience; see ``Provider``."""

    name: str
    usd_per_mtok: tuple[float, float] | None
    stall_secs: float | Literal["policy"] | None
    timeout_secs: float | None


class Instance(Protocol):
    """One instance of a provider: carries one request at a time."""

    @property
    def model(self) -> str | None:
        """The model that it asks for."""
        ...

    @property
    def server_load(self) -> ServerLoad | None:
        """The load of its server; None without a recent reading."""
        ...

    @property
    def answers(self) -> int:
        """The number of answers that it has completed."""
        ...

    @property
    def retries(self) -> int:
        """How many times its client would repeat a failed request."""
        ...

    def run_on(self) -> None:
        """Let the current request, which has lost, run on without delaying the next one."""
        ...


A = TypeVar("A", bound=Instance, covariant=True, default=Instance)


@dataclass(frozen=True, slots=True)
class Member(Generic[A]):
    """A provider within a race.

    Parameters:
        provider: Its name and price.
        adapters: Its instances.
        name: The provider's name.
    """

    provider: NamedProvider
    adapters: tuple[A, ...]
    name: str = field(init=False)

    def __post_init__(self) -> None:
        """Read the name once."""
        object.__setattr__(self, "name", self.provider.name)

    @property
    def server_load(self) -> ServerLoad | None:
        """The load of its least busy server; None without a recent reading."""
        if len(self.adapters) == 1:
            return self.adapters[0].server_load
        return min((c.server_load for c in self.adapters), key=load_rank)

    def backend(self, measures: Measures = "first_token") -> Backend:
        """The keys of its record and of its latency statistics."""
        model = self.adapters[0].model
        return Backend(self.name, model, self.provider.usd_per_mtok, measures)

    @property
    def key(self) -> str:
        """The key of its record in the registry."""
        return key_of(self.name, self.adapters[0].model)


def take_best_instance(idle: list[A]) -> A:
    """Remove and return the idle instance whose server has the shortest queue.

    Among equal queues a session stays with the server that has answered most of its turns, and
    whose prefix cache holds them; then the least busy one comes first.

    Args:
        idle: The free instances of a provider, in order; at least one.
    """

    def rank(adapter: A) -> tuple[bool, int, int, int]:
        is_down, waiting, running = load_rank(adapter.server_load)
        return is_down, waiting, -adapter.answers, running

    chosen = min(idle, key=rank)
    idle.remove(chosen)
    return chosen


def ineligible_by_load(idle: Mapping[str, Sequence[A]], first: str | None = None) -> dict[str, str]:
    """The providers that may get no hedge now because of their servers' load, and why.

    Args:
        idle: The free instances of each provider.
        first: The provider of the turn's first request, which is about to take its best instance;
            or None.
    """
    reasons: dict[str, str] = {}
    for name, free in idle.items():
        loads = sorted((adapter.server_load for adapter in free), key=load_rank)
        left = loads[1:] if name == first else loads
        if left and (reason := why_ineligible(left[0])) is not None:
            reasons[name] = reason
    return reasons


def slots(
    candidates: Sequence[Member[A]],
    policy: HedgePolicy,
    estimates: Mapping[str, LatencyEstimate],
) -> list[Slot]:
    """The requests that a turn may make.

    Every provider once, in order, then those with a second instance, and so on.

    Args:
        candidates: The providers in order.
        policy: The user's policy.
        estimates: The latency estimate of each provider.
    """
    rounds = max((len(member.adapters) for member in candidates), default=0)
    return [
        _slot(member, number, policy, estimates[member.name])
        for number in range(rounds)
        for member in candidates
        if number < len(member.adapters)
    ]


def _slot(member: Member[A], number: int, policy: HedgePolicy, estimate: LatencyEstimate) -> Slot:
    provider, has_own = member.provider, member.provider.stall_secs != "policy"
    stall_secs = policy.stall_secs if provider.stall_secs == "policy" else provider.stall_secs
    silent = silent_secs(policy, estimate, stall_secs if has_own else 0.0)
    return Slot(
        provider.name,
        silent,
        stall_secs,
        provider.timeout_secs,
        estimate.answers.p95 if silent is None else min(estimate.answers.p95, silent),
        member.adapters[number].retries,
    )
