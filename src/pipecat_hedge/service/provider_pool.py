"""The hosted services of all providers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from pipecat.adapters.llm.schemas.direct_function import DirectFunction
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import Frame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import FunctionCallRegistryItem
from pipecat.services.settings import LLMSettings

from pipecat_hedge.providers.permits import NotSent, Terms
from pipecat_hedge.providers.registry import ProviderRegistry
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.candidates import TurnMembers
from pipecat_hedge.service.member import Member
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.rejections import Rejections
from pipecat_hedge.service.service_adapter import ServiceAdapter


class ProviderPool:
    """Every instance of every provider.

    Attributes:
        providers: The providers, in the given order.
        members: The providers with their instances, in the given order.
        adapters: All instances.
    """

    def __init__(self, providers: Sequence[Provider], stats: ProviderRegistry):
        """Host the providers' services.

        Args:
            providers: Checked by ``as_providers``.
            stats: The process's registry.
        """
        self._stats = stats
        self.providers = tuple(providers)
        for provider in providers:
            if provider.breaker is not None:
                stats.configure_breaker(provider.name, provider.breaker)
        is_alone = sum(len(provider.services) for provider in providers) == 1
        self.members = tuple(
            Member(
                provider,
                tuple(ServiceAdapter(s, provider, is_alone=is_alone) for s in provider.services),
            )
            for provider in providers
        )
        self.adapters = tuple(c for member in self.members for c in member.adapters)
        self._refreshes = TaskScope()

    def of_turn(
        self,
        now: float,
        order: Sequence[Member[ServiceAdapter]],
        rejections: Rejections,
        *,
        is_given: bool = False,
    ) -> TurnMembers[ServiceAdapter]:
        """The providers in one turn.

        Those that rejected a request, that Pipecat reports as unusable, or that still answer the
        turn before come last.

        Args:
            now: The loop's time.
            order: The providers in this turn's order.
            rejections: Those of the turns of this kind.
            is_given: Whether the user insists on the order.
        """
        last = dict.fromkeys(rejections.begin_turn(), "has rejected a request")
        members: list[Member[ServiceAdapter]] = []
        for member in order:
            usable = tuple(a for a in member.adapters if a.is_usable)
            if not usable:
                last[member.name] = "is unusable"
            elif all(a.is_thinking if is_given else a.is_observed for a in member.adapters):
                last[member.name] = "still answers the turn before"
            elif len(usable) < len(member.adapters):
                member = Member(member.provider, usable)
            members.append(member)
        return TurnMembers(members, last, rejections.to_try(now) if last else "")

    def comes_last(self, member: Member[ServiceAdapter], rejections: Rejections) -> bool:
        """Whether a provider comes last because of what it rejected, or as unusable."""
        is_usable = any(adapter.is_usable for adapter in member.adapters)
        return not is_usable or member.name in rejections.last

    def adapter_of(self, service: object) -> ServiceAdapter | None:
        """The adapter that hosts ``service``, or None."""
        return next((c for c in self.adapters if c.service is service), None)

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up all members concurrently."""
        await asyncio.gather(*(adapter.setup(setup) for adapter in self.adapters))

    async def warm(self, context: LLMContext | None, terms: Terms) -> None:
        """Prepare every member for the first turn, independently.

        A provider without a closed breaker is skipped. A prompt is warmed up if there is room for
        it; otherwise, and without a context, only the connection is opened.

        Args:
            context: The conversation so far; None if it is unknown.
            terms: The session's terms.
        """
        async with TaskScope() as scope:
            tasks = [
                scope.start(
                    self._warm(member, adapter, context, terms),
                    name=f"warms up {adapter.service}",
                )
                for member in self.members
                for adapter in member.adapters
            ]
            await asyncio.wait(tasks)

    async def _warm(
        self,
        member: Member[ServiceAdapter],
        adapter: ServiceAdapter,
        context: LLMContext | None,
        terms: Terms,
    ) -> None:
        loop = asyncio.get_running_loop()
        stats, key = self._stats, member.key
        (standing,) = stats.standing([key], "warm_up", terms, loop.time())
        if standing.breaker != "closed":
            return

        @contextlib.asynccontextmanager
        async def acquire_permit() -> AsyncGenerator[None]:
            now = loop.time()
            (standing,) = stats.standing([key], "warm_up", terms, now)
            if standing.full is not None:
                raise NotSent(standing.full)
            permit = stats.issue(key, "warm_up", terms, now)
            hold = stats.holds.add(lambda: stats.release(permit, "dropped", now))
            try:
                yield
            finally:
                if stats.holds.drop(hold):
                    stats.release(permit, "dropped", loop.time())

        await adapter.warm(context, acquire_permit)

    def keep_connections(self) -> None:
        """Keep every member's connection open between turns from now on."""
        for member in self.members:
            for adapter in member.adapters:
                may_send = functools.partial(self._may_refresh, member, adapter)
                adapter.connection.keep(self._refreshes, may_send)

    def _may_refresh(self, member: Member[ServiceAdapter], adapter: ServiceAdapter) -> bool:
        now = asyncio.get_running_loop().time()
        (standing,) = self._stats.standing([member.key], "warm_up", Terms(), now)
        return standing.is_well and adapter.is_usable

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
        """Change every member's settings."""
        for adapter in self.adapters:
            await adapter.update_settings(delta)

    def provider_of(self, adapter: ServiceAdapter) -> str:
        """The name of an instance's provider."""
        return next(m.name for m in self.members if adapter in m.adapters)

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
