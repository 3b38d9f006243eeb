"""The hosted services of all providers, and which of them a turn may use."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipecat.adapters.llm.schemas.direct_function import DirectFunction
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import Frame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import FunctionCallRegistryItem
from pipecat.services.settings import LLMSettings

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.concurrency_limit import LimitBounds
from pipecat_hedge.limits.permit_queue import MAX_WAIT_SECS, Ticket
from pipecat_hedge.limits.permits import LoopLag, permit_for
from pipecat_hedge.limits.server_queue import hedge_refusal, is_last_resort, load_rank
from pipecat_hedge.policy.backends import Backend, key_of
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.events import Slot
from pipecat_hedge.race.reports import ServerLoad, Tier
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.service_adapter import ServiceAdapter

__all__ = [
    "Candidates",
    "ProviderMember",
    "ProviderPool",
    "hedge_refusals",
    "slots",
    "take_best_instance",
]


@dataclass(frozen=True, slots=True)
class ProviderMember:
    """A provider within a hedged service.

    Parameters:
        provider: Its name and price.
        adapters: Its hosted instances.
    """

    provider: Provider
    adapters: tuple[ServiceAdapter, ...]

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
class Candidates:
    """The providers that a turn may use.

    Parameters:
        entries: The providers in order; empty if none may be used.
        keys: The health key of each provider in this turn, by name.
        probe: The half-open provider that the turn has claimed to probe, or None. The turn must
            release the claim.
        reason: Why no provider may be used, if that is so.
        last: The names of those that come last, whatever the planned order.
        in_panic: Whether every breaker is open, so that ``entries`` is the final order.
    """

    entries: tuple[ProviderMember, ...]
    keys: Mapping[str, str]
    probe: ProviderMember | None = None
    reason: str = ""
    last: frozenset[str] = frozenset()
    in_panic: bool = False


class ProviderPool:
    """Every instance of every provider.

    Attributes:
        entries: The providers with their instances, in the given order.
        adapters: All instances.
    """

    def __init__(self, providers: Sequence[Provider], health: AdmissionController):
        """Host the providers' services.

        Args:
            providers: Checked by ``as_providers``.
            health: The process's registry.
        """
        self._health = health
        for provider in providers:
            if provider.breaker is not None:
                health.configure_breaker(provider.name, provider.breaker)
        is_alone = sum(len(provider.services) for provider in providers) == 1
        self.entries = tuple(
            ProviderMember(
                provider, tuple(ServiceAdapter(s, is_alone=is_alone) for s in provider.services)
            )
            for provider in providers
        )
        self.adapters = tuple(c for entry in self.entries for c in entry.adapters)
        for adapter in self.adapters:
            adapter.share_load(health.loads)
        self._excluded: set[str] = set()
        self._refreshes = TaskScope()

    def candidates(self, now: float, *, sheds: bool = False) -> Candidates:
        """The providers that a turn may use.

        Providers that rejected a request permanently and instances that Pipecat reports as unusable
        are left out, unless none would remain: the one request may have been at fault. A provider
        with a ``Retry-After`` comes last, and only if it ends soon or all others have one, too.

        An open breaker puts its provider last, without hedges. One half-open provider is a probe
        beside a healthy one. If every breaker is open, the turn is planned as if all were closed
        (panic mode) and the first choices of such turns are spread over the providers. Servers that
        report that they are down or overloaded come last.

        Args:
            now: The loop's time.
            sheds: Whether open breakers end the turn instead (``admission="shed"``).
        """
        usable = [
            entry
            if len(adapters) == len(entry.adapters)
            else ProviderMember(entry.provider, adapters)
            for entry in self.entries
            if (adapters := self._usable_adapters(entry))
        ]
        usable, health = usable or list(self.entries), self._health
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
        soon = [n for n in by_retry_after if available and 0 < retry_after_secs[n] <= MAX_WAIT_SECS]
        closed = [n for n in eligible if states[n] == "closed"]
        half_open = [n for n in available if states[n] == "half_open"]
        probe = next((n for n in half_open if health.claim_probe(keys[n], now)), None)
        has_closed = closed or any(states[n] == "closed" for n in soon)
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
            spread += soon
            return Candidates(tuple(usable[n] for n in spread), by_name, in_panic=True)
        last = {
            usable[n].provider.name
            for n in [*eligible, *soon]
            if n in soon or is_last_resort(loads[n]) or (states[n] != "closed" and n != probe)
        }
        found = [
            usable[n]
            for n in [*eligible, *soon]
            if not sheds or states[n] == "closed" or n == probe
        ]
        half_open_member = None if probe is None else usable[probe]
        return Candidates(tuple(found), by_name, half_open_member, last=frozenset(last))

    def is_excluded(self, entry: ProviderMember) -> bool:
        """Whether a provider gets no requests until settings change."""
        return not self._usable_adapters(entry)

    def _usable_adapters(self, entry: ProviderMember) -> tuple[ServiceAdapter, ...]:
        if entry.provider.name in self._excluded:
            return ()
        if len(entry.adapters) == 1:
            return entry.adapters if entry.adapters[0].service.is_usable else ()
        return tuple(c for c in entry.adapters if c.service.is_usable)

    def exclude(self, provider: str) -> bool:
        """Exclude a provider until settings change: it has rejected a request permanently.

        Returns:
            Whether it was included before.
        """
        is_new = provider not in self._excluded
        self._excluded.add(provider)
        return is_new

    def adapter_of(self, service: object) -> ServiceAdapter | None:
        """The adapter that hosts ``service``, or None."""
        return next((c for c in self.adapters if c.service is service), None)

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up all members concurrently."""
        await asyncio.gather(*(adapter.setup(setup) for adapter in self.adapters))

    async def warm(
        self, context: LLMContext | None, tier: Tier, bounds: LimitBounds, loop_lag: LoopLag
    ) -> None:
        """Prepare every member for the first turn, independently.

        A provider without a closed breaker is skipped. A prompt is warmed up if there is room for
        it; otherwise, and without a context, only the connection is opened.

        Args:
            context: The conversation so far; None if it is unknown.
            tier: The session's tier.
            bounds: Bounds of a provider's limit.
            loop_lag: Returns why the event loop is too far behind.
        """
        async with TaskScope() as scope:
            tasks = [
                scope.start(
                    self._warm(entry, adapter, context, tier, bounds, loop_lag),
                    name=f"warms up {adapter.service}",
                )
                for entry in self.entries
                for adapter in entry.adapters
            ]
            await asyncio.wait(tasks)

    async def _warm(
        self,
        entry: ProviderMember,
        adapter: ServiceAdapter,
        context: LLMContext | None,
        tier: Tier,
        bounds: LimitBounds,
        loop_lag: LoopLag,
    ) -> None:
        loop = asyncio.get_running_loop()
        if self._health.state(entry.key, loop.time()) != "closed":
            return

        @contextlib.asynccontextmanager
        async def acquire_permit() -> AsyncGenerator[None]:
            now = loop.time()
            ticket = Ticket(
                "warm_up", tier, now, (entry.key,), now, bounds=bounds, has_first_token=False
            )
            permit = await permit_for(self._health, ticket, loop_lag)
            try:
                yield
            finally:
                self._health.release(permit, "dropped", loop.time())

        await adapter.warm(context, acquire_permit)

    def keep_connections(self) -> None:
        """Keep every member's connection open between turns from now on."""
        for entry in self.entries:
            for adapter in entry.adapters:
                may_send = functools.partial(self._may_refresh, entry, adapter)
                adapter.connection.keep(self._refreshes, may_send)

    def _may_refresh(self, entry: ProviderMember, adapter: ServiceAdapter) -> bool:
        standing = self._health.breaker_states([entry.key], asyncio.get_running_loop().time())
        return standing == [("closed", 0.0)] and adapter in self._usable_adapters(entry)

    def turn_began(self) -> None:
        """Record that the session is active, so that its connections are kept open."""
        for adapter in self.adapters:
            adapter.connection.turn_began()

    async def stop_keeping_connections(self) -> None:
        """Stop to keep connections open and cancel what is on its way."""
        for adapter in self.adapters:
            adapter.connection.stop()
        await self._refreshes.close()

    async def control(self, frame: Frame) -> None:
        """Send every member a frame that is not a turn."""
        await asyncio.gather(*(adapter.control(frame) for adapter in self.adapters))

    async def update_settings(self, delta: LLMSettings) -> None:
        """Change every member's settings, and include excluded providers again."""
        self._excluded.clear()
        for adapter in self.adapters:
            await adapter.update_settings(delta)

    async def update_member(self, member: ServiceAdapter, delta: LLMSettings) -> None:
        """Change one member's settings, and include its provider again."""
        for entry in self.entries:
            if member in entry.adapters:
                self._excluded.discard(entry.provider.name)
        await member.update_settings(delta)

    def instruct(self, addition: str | None) -> None:
        """Append a text to every member's system instruction; None removes it."""
        for adapter in self.adapters:
            adapter.instruct(addition)

    def offer(self, tools: Mapping[str, FunctionSchema]) -> None:
        """Offer the host's built-in tools to every model; see ``ServiceAdapter.offer``."""
        for adapter in self.adapters:
            adapter.offer(tools)

    async def cleanup(self) -> None:
        """Release every member's resources."""
        await self.stop_keeping_connections()
        await asyncio.gather(*(adapter.cleanup() for adapter in self.adapters))

    def append_system_instruction(self, instruction: str) -> None:
        """Append permanent text to every member's system instruction."""
        for adapter in self.adapters:
            adapter.service.append_system_instruction(instruction)

    def registered_functions(self) -> list[FunctionCallRegistryItem]:
        """The handlers that members had before they were hosted; of one name, the first."""
        found: dict[str | None, FunctionCallRegistryItem] = {}
        for adapter in self.adapters:
            for name, item in adapter.registered_functions.items():
                found.setdefault(name, item)
        return list(found.values())

    def register_function(self, function_name: str | None, handler: Any, **options: Any) -> None:
        """Register a tool handler with every member; the members never run it."""
        for adapter in self.adapters:
            adapter.service.register_function(function_name, handler, **options)

    def register_direct_function(self, handler: DirectFunction, **options: Any) -> None:
        """Register a direct function with every member; the members never run it."""
        for adapter in self.adapters:
            adapter.service.register_direct_function(handler, **options)

    def unregister_function(self, function_name: str | None) -> None:
        """Unregister a tool handler from every member that has it."""
        for adapter in self.adapters:
            with contextlib.suppress(KeyError):  # a member sees advertised tools one turn later
                adapter.service.unregister_function(function_name)


def take_best_instance(idle: list[ServiceAdapter]) -> ServiceAdapter:
    """Remove and return the idle instance whose server has the shortest queue.

    Among equal queues a session stays with the server that has answered most of its turns, and
    whose prefix cache holds them; then the least busy one comes first.

    Args:
        idle: The free instances of a provider, in order; at least one.
    """

    def rank(adapter: ServiceAdapter) -> tuple[bool, int, int, int]:
        is_down, waiting, running = load_rank(adapter.server_load)
        return is_down, waiting, -adapter.answers, running

    chosen = min(idle, key=rank)
    idle.remove(chosen)
    return chosen


def hedge_refusals(
    idle: Mapping[str, Sequence[ServiceAdapter]], first: str | None = None
) -> dict[str, str]:
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
    candidates: Sequence[ProviderMember], policy: HedgePolicy, slowest_secs: Mapping[str, float]
) -> list[Slot]:
    """The requests that a turn may make.

    Every provider once, in order, then those with a second instance, and so on.

    Args:
        candidates: The providers in order.
        policy: The default of ``stall_secs``.
        slowest_secs: By provider, how long its first token usually takes at most.
    """
    rounds = max((len(entry.adapters) for entry in candidates), default=0)
    return [
        _slot(entry, number, policy, slowest_secs.get(entry.provider.name, 0.0))
        for number in range(rounds)
        for entry in candidates
        if number < len(entry.adapters)
    ]


def _slot(entry: ProviderMember, number: int, policy: HedgePolicy, slowest_secs: float) -> Slot:
    provider, retries = entry.provider, entry.adapters[number].retries
    stall_secs = policy.stall_secs if provider.stall_secs == "policy" else provider.stall_secs
    return Slot(provider.name, stall_secs, provider.timeout_secs, slowest_secs, retries)
