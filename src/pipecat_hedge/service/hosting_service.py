"""An LLM service that hosts others: its settings, instructions and tools reach each of them."""

from __future__ import annotations

import dataclasses
from typing import Any

from loguru import logger
from pipecat.adapters.llm.schemas.direct_function import DirectFunction, DirectFunctionWrapper
from pipecat.services.llm_service import FunctionCallRegistryItem, LLMService
from pipecat.services.settings import LLMSettings, ServiceSettings
from pipecat.utils.types import is_given

from pipecat_hedge.service.provider_pool import ProviderPool

_HOST_SETTINGS = ("filter_incomplete_user_turns", "user_turn_completion_config")
"""Settings that the host applies itself: the answer passes through it and not a member."""


class HostingLLMService(LLMService):
    """Mirrors settings and tools to the members of a pool. The host alone runs tools."""

    def __init__(self, pool: ProviderPool, **kwargs: Any):
        """Host services.

        Args:
            pool: The services.
            **kwargs: Further arguments of ``LLMService``.
        """
        super().__init__(settings=_no_settings(), **kwargs)
        self._pool = pool
        self._advertising = False
        self._instruction: str | None = None
        for item in pool.registered_functions():
            self._adopt(item)

    async def _members_changed(self, provider: str | None = None) -> None:
        """Called before a provider's settings change; None is every provider's."""

    async def _prompt_changed(self) -> None:
        """Called when the instructions of every member have changed."""

    # ---- settings

    async def _update_settings(self, delta: ServiceSettings) -> dict[str, Any]:
        """Apply a settings delta here and to every member; see ``LLMService``."""
        assert isinstance(delta, LLMSettings)
        if is_given(delta.model) and len(self._pool.members) > 1:
            logger.warning(
                f"{self}: a settings update for all providers cannot set model, ignored. Send "
                "it to one member: LLMUpdateSettingsFrame(service=member, delta=...)"
            )
            delta = dataclasses.replace(delta, model=LLMSettings().model)
        changed = await super()._update_settings(delta)
        unchanged = LLMSettings()
        for_members = dataclasses.replace(
            delta, **{name: getattr(unchanged, name) for name in _HOST_SETTINGS}
        )
        if for_members.given_fields():
            await self._members_changed()
            await self._pool.update_settings(for_members)
        await self._instruct_members()
        return changed

    async def _instruct_members(self) -> None:
        """Instruct the members to write turn-completion markers while they are needed."""
        wanted = None
        if self._filter_incomplete_user_turns:
            wanted = self._user_turn_completion_config.completion_instructions
        if wanted != self._instruction:
            self._instruction = wanted
            self._pool.instruct(wanted)
            await self._prompt_changed()

    def append_system_instruction(self, instruction: str) -> None:
        """Append permanent text to the system instruction of every member."""
        super().append_system_instruction(instruction)
        self._pool.append_system_instruction(instruction)

    # ---- tools

    def register_function(
        self,
        function_name: str | None,
        handler: Any,
        *,
        cancel_on_interruption: bool | None = None,
        timeout_secs: float | None = None,
        cancellable_by_llm: bool | None = None,
    ) -> None:
        """Register a tool handler; see ``LLMService.register_function``.

        The handler runs here, once, for the winner. The members get it too, because a tool's
        options change the prompt.
        """
        options: dict[str, Any] = {
            "cancel_on_interruption": cancel_on_interruption,
            "timeout_secs": timeout_secs,
            "cancellable_by_llm": cancellable_by_llm,
        }
        super().register_function(function_name, handler, **options)
        if not self._advertising:  # members read advertised tools themselves
            self._pool.register_function(function_name, handler, **options)

    def _adopt(self, item: FunctionCallRegistryItem) -> None:
        """Register a handler that a member had before it was hosted."""
        options: dict[str, Any] = {
            "cancel_on_interruption": item.cancel_on_interruption,
            "timeout_secs": item.timeout_secs,
        }
        if isinstance(item.handler, DirectFunctionWrapper):
            self.register_direct_function(item.handler.function, **options)
        else:
            options["cancellable_by_llm"] = item.cancellable_by_llm
            self.register_function(item.function_name, item.handler, **options)

    def unregister_function(self, function_name: str | None) -> None:
        """Remove a tool handler; see ``LLMService.unregister_function``."""
        super().unregister_function(function_name)
        self._pool.unregister_function(function_name)

    def register_direct_function(
        self,
        handler: DirectFunction,
        *,
        cancel_on_interruption: bool | None = None,
        timeout_secs: float | None = None,
    ) -> None:
        """Register a direct function; see ``LLMService.register_direct_function``."""
        options: dict[str, Any] = {
            "cancel_on_interruption": cancel_on_interruption,
            "timeout_secs": timeout_secs,
        }
        super().register_direct_function(handler, **options)
        self._pool.register_direct_function(handler, **options)

    def _sync_registered_tool_handlers(self, tools: Any) -> None:
        self._advertising = True
        try:
            super()._sync_registered_tool_handlers(tools)
        finally:
            self._advertising = False


def _no_settings() -> LLMSettings:
    """Complete settings without values: each member has its own."""
    settings = LLMSettings(filter_incomplete_user_turns=False, use_provider_thinking_default=False)
    for field in dataclasses.fields(settings):
        if not is_given(getattr(settings, field.name)):
            setattr(settings, field.name, None)
    return settings
