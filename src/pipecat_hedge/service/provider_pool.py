"""The hosted services of all providers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from pipecat.adapters.llm.schemas.direct_function import DirectFunction
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.frames.frames import Frame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import FunctionCallRegistryItem
from pipecat.services.settings import LLMSettings

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.permits import Rejected, Terms
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.candidates import Candidates, ProviderMember, choose_candidates
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.rejections import Rejections
from pipecat_hedge.service.service_adapter import ServiceAdapter


class ProviderPool:
    """Every instance of every provider.

    Attributes:
        providers: The providers, in the given order.
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
        self.providers = tuple(providers)
        for provider in providers:
            if provider.breaker is not None:
                health.configure_breaker(provider.name, provider.breaker)
        is_alone = sum(len(provider.services) for provider in providers) == 1
        self.entries = tuple(
            ProviderMember(
                provider,
                tuple(ServiceAdapter(s, provider, is_alone=is_alone) for s in provider.services),
            )
            for provider in providers
        )
        self.adapters = tuple(c for entry in self.entries for c in entry.adapters)
        for adapter in self.adapters:
            adapter.share_load(health.loads)
        self._refreshes = TaskScope()

    def candidates(
        self,
        now: float,
        order: Sequence[ProviderMember[ServiceAdapter]],
        *,
        sheds: bool = False,
        rejections: Rejections,
        is_given: bool = False,
    ) -> Candidates[ServiceAdapter]:
        """The providers that a turn may use; see ``choose_candidates``.

        Those that rejected a request, that Pipecat reports as unusable, or that still answer the
        turn before come last.

        Args:
            now: The loop's time.
            order: The providers in this turn's order.
            sheds: Whether open breakers end the turn instead (``admission="shed"``).
            rejections: Those of the turns of this kind.
            is_given: Whether the user insists on the order.
        """
        last = dict.fromkeys(rejections.begin_turn(), "has rejected a request")
        members: list[ProviderMember[ServiceAdapter]] = []
        for member in order:
            usable = tuple(a for a in member.adapters if a.is_usable)
            if not usable:
                last[member.provider.name] = "is unusable"
            elif all(a.is_thinking if is_given else a.is_observed for a in member.adapters):
                last[member.provider.name] = "still answers the turn before"
            elif len(usable) < len(member.adapters):
                member = ProviderMember(member.provider, usable)
            members.append(member)
        found = choose_candidates(members, self._health, now, sheds=sheds)
        if not last:
            return found
        return dataclasses.replace(
            found, last={**found.last, **last}, rejecting=rejections.to_try(now)
        )

    def comes_last(self, member: ProviderMember[ServiceAdapter], rejections: Rejections) -> bool:
        """Whether a provider comes last because of what it rejected, or as unusable."""
        is_usable = any(adapter.is_usable for adapter in member.adapters)
        return not is_usable or member.provider.name in rejections.last

    def adapter_of(self, service: object) -> ServiceAdapter | None:
        """The adapter that hosts ``service``, or None."""
        return next((c for c in self.adapters if c.service is service), None)

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up all members concurrently."""
        await asyncio.gather(*(adapter.setup(setup) for adapter in self.adapters))

    async def warm(
        self, context: LLMContext | None, terms: Terms, refusal: Callable[[], str | None]
    ) -> None:
        """Prepare every member for the first turn, independently.

        A provider without a closed breaker is skipped. A prompt is warmed up if there is room for
        it; otherwise, and without a context, only the connection is opened.

        Args:
            context: The conversation so far; None if it is unknown.
            terms: The session's terms.
            refusal: Returns why the event loop is too far behind; None if it is not.
        """
        async with TaskScope() as scope:
            tasks = [
                scope.start(
                    self._warm(entry, adapter, context, terms, refusal),
                    name=f"warms up {adapter.service}",
                )
                for entry in self.entries
                for adapter in entry.adapters
            ]
            await asyncio.wait(tasks)

    async def _warm(
        self,
        entry: ProviderMember[ServiceAdapter],
        adapter: ServiceAdapter,
        context: LLMContext | None,
        terms: Terms,
        refusal: Callable[[], str | None],
    ) -> None:
        loop = asyncio.get_running_loop()
        if self._health.state(entry.key, loop.time()) != "closed":
            return

        @contextlib.asynccontextmanager
        async def acquire_permit() -> AsyncGenerator[None]:
            health, key, now = self._health, entry.key, loop.time()
            reason = refusal() or health.refusals([key], "warm_up", terms, now).get(key)
            if reason is not None:
                raise Rejected(reason)
            permit = health.issue(key, "warm_up", terms, now)
            hold = health.holds.add(lambda: health.release(permit, "dropped", now))
            try:
                yield
            finally:
                if health.holds.drop(hold):
                    health.release(permit, "dropped", loop.time())

        await adapter.warm(context, acquire_permit)

    def keep_connections(self) -> None:
        """Keep every member's connection open between turns from now on."""
        for entry in self.entries:
            for adapter in entry.adapters:
                may_send = functools.partial(self._may_refresh, entry, adapter)
                adapter.connection.keep(self._refreshes, may_send)

    def _may_refresh(self, entry: ProviderMember[ServiceAdapter], adapter: ServiceAdapter) -> bool:
        standing = self._health.breaker_states([entry.key], asyncio.get_running_loop().time())
        return standing == [("closed", 0.0)] and adapter.is_usable

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
        return next(e.provider.name for e in self.entries if adapter in e.adapters)

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
