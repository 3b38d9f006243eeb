"""Which providers a turn may use, in which order, and with which instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol

from typing_extensions import TypeVar

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.server_queue import hedge_refusal, is_last_resort, load_rank
from pipecat_hedge.policy.backends import Backend, key_of
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.planner import silent_secs
from pipecat_hedge.policy.priced_delay import LatencyEstimate
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
class ProviderMember(Generic[A]):
    """A provider within a race.

    Parameters:
        provider: Its name and price.
        adapters: Its instances.
    """

    provider: NamedProvider
    adapters: tuple[A, ...]

    @property
    def server_load(self) -> ServerLoad | None:
        """The load of its least busy server; None without a recent reading."""
        if len(self.adapters) == 1:
            return self.adapters[0].server_load
        return min((c.server_load for c in self.adapters), key=load_rank)

    @property
    def backend(self) -> Backend:
        """The key of its statistics."""
        model = self.adapters[0].model
        return Backend(self.provider.name, model, self.provider.usd_per_mtok)

    @property
    def key(self) -> str:
        """The key of its health in the registry."""
        return key_of(self.provider.name, self.adapters[0].model)


@dataclass(frozen=True, slots=True)
class Candidates(Generic[A]):
    """The providers that a turn may use.

    Parameters:
        entries: The providers in order; empty if none may be used.
        keys: The health key of each provider in this turn, by name.
        probe: The half-open provider whose recovery request the turn has claimed, or None. The turn
            must release the claim.
        reason: Why no provider may be used, if that is so.
        last: Those that come last or not at all, whatever the planned order, and why; by name.
        rejecting: The name of one that rejected requests and is to be tried again; or empty.
        in_panic: Whether every breaker is open, so that ``entries`` is the final order.
    """

    entries: tuple[ProviderMember[A], ...]
    keys: Mapping[str, str]
    probe: ProviderMember[A] | None = None
    reason: str = ""
    last: Mapping[str, str] = field(default_factory=dict[str, str])
    rejecting: str = ""
    in_panic: bool = False


def choose_candidates(
    usable: Sequence[ProviderMember[A]],
    health: AdmissionController,
    now: float,
    *,
    sheds: bool = False,
) -> Candidates[A]:
    """The providers that a turn may use.

    Those with a ``Retry-After`` come last. An open breaker puts its provider last, without hedges.
    One half-open provider gets a recovery request beside a healthy one. If every breaker is open,
    the turn is planned as if all were closed (panic mode) and the first choices of such turns are
    spread over the providers. Servers that report that they are down or overloaded come last.

    Args:
        usable: The providers in the given order, with their usable instances.
        health: The process's registry.
        now: The loop's time.
        sheds: Whether open breakers end the turn instead (``admission="shed"``).
    """
    health.holds.settle()
    keys, loads = [entry.key for entry in usable], [entry.server_load for entry in usable]
    by_name = {entry.provider.name: key for entry, key in zip(usable, keys, strict=True)}
    if any(loads):
        for key, load in zip(keys, loads, strict=True):
            if load is not None and load.is_up:
                health.set_queue(key, load.running, load.waiting, now)
    if health.are_healthy(keys, now) and not any(map(is_last_resort, loads)):
        return Candidates(tuple(usable), by_name)  # the common case, kept fast
    states, retry_after_secs = zip(*health.breaker_states(keys, now), strict=True)
    by_retry_after = sorted(range(len(usable)), key=lambda n: retry_after_secs[n])
    available = [n for n in by_retry_after if not retry_after_secs[n]]
    eligible = available or by_retry_after
    later = by_retry_after[len(available) :] if available else []
    closed = [n for n in eligible if states[n] == "closed"]
    half_open = [n for n in available if states[n] == "half_open"]
    probe = next((n for n in half_open if health.claim_probe(keys[n], now)), None)
    has_closed = closed or any(states[n] == "closed" for n in later)
    if sheds and not has_closed:
        if probe is not None:
            return Candidates((usable[probe],), by_name, usable[probe])
        reasons = (f"{name} ({health.open_reason(key, now)})" for name, key in by_name.items())
        return Candidates((), by_name, reason=f"all breakers are open: {', '.join(reasons)}")
    if not closed and not sheds:
        if probe is not None:
            health.drop_probe(keys[probe], now)
        first = health.count_panic_turn() % len(eligible) if available else 0
        spread = [*eligible[first:], *eligible[:first]]
        spread.sort(key=lambda n: is_last_resort(loads[n]))
        spread += later
        return Candidates(tuple(usable[n] for n in spread), by_name, in_panic=True)
    last: dict[str, str] = {}
    for n in by_retry_after:
        if available and retry_after_secs[n]:
            last[usable[n].provider.name] = "has sent Retry-After"
        elif is_last_resort(loads[n]):
            last[usable[n].provider.name] = hedge_refusal(loads[n]) or "is overloaded"
        elif states[n] != "closed" and n != probe:
            last[usable[n].provider.name] = f"has an {states[n].replace('_', '-')} breaker"
    found = [
        usable[n] for n in [*eligible, *later] if not sheds or states[n] == "closed" or n == probe
    ]
    half_open_member = None if probe is None else usable[probe]
    return Candidates(tuple(found), by_name, half_open_member, last=last)


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


def hedge_refusals(idle: Mapping[str, Sequence[A]], first: str | None = None) -> dict[str, str]:
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
        if left and (reason := hedge_refusal(left[0])) is not None:
            reasons[name] = reason
    return reasons


def slots(
    candidates: Sequence[ProviderMember[A]],
    policy: HedgePolicy,
    known: Mapping[str, LatencyEstimate],
) -> list[Slot]:
    """The requests that a turn may make.

    Every provider once, in order, then those with a second instance, and so on.

    Args:
        candidates: The providers in order.
        policy: The user's policy.
        known: What is known of each provider.
    """
    rounds = max((len(entry.adapters) for entry in candidates), default=0)
    return [
        _slot(entry, number, policy, known[entry.provider.name])
        for number in range(rounds)
        for entry in candidates
        if number < len(entry.adapters)
    ]


def _slot(
    entry: ProviderMember[A], number: int, policy: HedgePolicy, known: LatencyEstimate
) -> Slot:
    provider, has_own = entry.provider, entry.provider.stall_secs != "policy"
    stall_secs = policy.stall_secs if provider.stall_secs == "policy" else provider.stall_secs
    silent = silent_secs(policy, known, stall_secs if has_own else 0.0)
    return Slot(
        provider.name,
        silent,
        stall_secs,
        provider.timeout_secs,
        known.answers.p95 if silent is None else min(known.answers.p95, silent),
        entry.adapters[number].retries,
    )
