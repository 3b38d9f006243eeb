"""One LLM service in front of several: what reaches it reaches each of them.

Law: a member never differs from the others by what was said to all of them.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from loguru import logger
from pipecat.adapters.llm.schemas.direct_function import DirectFunction
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    LLMEnablePromptCachingFrame,
    StartFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings, ServiceSettings
from pipecat.utils.types import is_given

from pipecat_hedge.limits.loop_lag import is_real
from pipecat_hedge.race.errors import AttemptError, ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.admission import AdmissionSettings
from pipecat_hedge.service.conversation import context_of
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_pool import ProviderPool
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.service.retract import RetractTextFrame
from pipecat_hedge.service.service_adapter import ToolCalls
from pipecat_hedge.service.turn_learning import breaker_report
from pipecat_hedge.telemetry.race_span import RaceTracer

__all__ = ["FrontService"]

_HOSTS_OWN_SETTINGS = ("filter_incomplete_user_turns", "user_turn_completion_config")
"""Settings that the hedged service applies itself: the answer passes through it, not a member."""


class FrontService(LLMService):
    """Keeps its members' settings, instructions and tools as its own, and speaks for them."""

    def __init__(
        self,
        providers: Sequence[Provider],
        settings: LLMSettings | None,
        warm: bool,
        stats: ProviderStats,
        admission: AdmissionSettings,
        tracer: RaceTracer,
        **kwargs: Any,
    ):
        """Host the providers' services.

        Args:
            providers: Checked by ``as_providers``.
            settings: Settings that all members share, applied when the pipeline starts.
            warm: Whether to prepare the members for the first turn when the pipeline starts, and to
                keep their connections open between turns.
            stats: What is known of the providers.
            admission: How its requests are admitted.
            tracer: Makes the spans of the races.
            **kwargs: Further arguments of ``LLMService``.

        Raises:
            ConfigurationError: If the settings name a model.
        """
        if settings is not None and is_given(settings.model):
            raise ConfigurationError(
                "settings.model cannot be shared by several providers: set the model on each "
                "service where it is constructed"
            )
        super().__init__(settings=_no_settings(), **kwargs)
        self._shared_settings = settings
        self._members = ProviderPool(providers, stats.health)
        self._admission_settings = admission
        self._stats = stats
        self._tracer = tracer
        self._holds_stats = False
        self._advertising = False
        self._warms = warm
        self._warming = TaskScope()
        self._is_prepared = self._has_begun = False
        self._timed_first_text = False
        self._member_instruction: str | None = None

    # ---- life cycle

    @property
    def is_running(self) -> bool:
        """Whether it is part of a pipeline that has been set up, and not cleaned up."""
        return self._holds_stats

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set this service and its members up.

        Args:
            setup: The pipeline's configuration.
        """
        await super().setup(setup)
        await self._members.setup(self._tracer.setup(setup))
        if not self._holds_stats:
            self._stats.hold()
            self._holds_stats = True

    async def cleanup(self) -> None:
        """Release this service's and its members' resources."""
        await self._warming.close()
        await super().cleanup()
        await self._members.cleanup()
        if self._holds_stats:
            self._holds_stats = False
            await self._stats.release()

    async def start(self, frame: StartFrame) -> None:
        """Start the members, and prepare them for the first turn.

        Args:
            frame: The start frame.
        """
        await super().start(frame)
        await self._members.control(frame)
        if self._shared_settings is not None:
            await self._update_settings(self._shared_settings)
        if self._warms:
            await self._members.control(LLMEnablePromptCachingFrame(enable=True))
            self._prepare()
            if is_real(asyncio.get_running_loop()):  # timers would have a virtual one run ahead
                self._members.keep_connections()

    async def stop(self, frame: EndFrame) -> None:
        """Stop the members.

        Args:
            frame: The end frame.
        """
        await self._members.let_connections_go()
        await super().stop(frame)
        await self._members.control(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Stop the members at once.

        Args:
            frame: The cancel frame.
        """
        await self._members.let_connections_go()
        await super().cancel(frame)
        await self._members.control(frame)

    # ---- before the first turn

    def _prepare(self) -> None:
        self._members.offer(self.get_llm_adapter().builtin_tools)
        self._is_prepared = True
        self._warming.start(self.warm_up(), name=f"{self}: warms up")

    async def warm_up(self, context: LLMContext | None = None) -> None:
        """Prepare for a session's first turn, which otherwise pays for what later ones find done.

        Opens the connection to each provider, and has a vLLM read the beginning of the conversation
        (system prompt and tools), behind all other work. Done by itself when the session starts,
        with the context that the aggregator in front of this service holds then; call it where
        that is filled later. Returns when all of it is done. A turn does not wait for it.

        Args:
            context: The conversation so far; None for that of the aggregator.
        """
        await self._members.warm(
            context or context_of(self),
            self._admission_settings.tier,
            self._admission_settings.bounds,
            self._stats.loop_watch.refusal,
        )

    # ---- after a turn

    async def _learn(self, errors: Iterable[tuple[str, AttemptError]]) -> None:
        """Say once who is out for the session, and who is left alone or taken back."""
        for provider, error in errors:
            logger.debug(f"{self}: {provider}: {error.category}: {error.message}")
            if error.permanent and self._members.strike_out(provider):
                logger.warning(
                    f"{self}: {provider} rejected the request for good ({error.category}) and is "
                    "out of the race for this session. Check its key, model and settings; a "
                    "settings update brings it back"
                )
        for report in map(breaker_report, self._stats.health.take_changes()):
            level = "WARNING" if report.after == "open" else "INFO"
            logger.log(level, f"{report.provider} is {report.after}: {report.reason}")
            await self._call_event_handler("on_breaker_changed", report)

    # ---- a turn's mouth

    def _begin_answer(self) -> None:
        self._has_begun = True
        self._timed_first_text = False
        self._members.turn_began()

    async def say(self, text: str, *, wall_time: float) -> None:
        """Release a piece of the winner's text. Called by the turn.

        Args:
            text: The text.
            wall_time: When it came, in seconds since the epoch.
        """
        if not self._timed_first_text:
            self._timed_first_text = True
            await self.stop_ttfb_metrics(end_time=wall_time)
            await self.stop_ttfat_metrics(end_time=wall_time)
        await self._push_llm_text(text)

    async def retract(self, text: str) -> None:
        """Keep the last text from being spoken. Called by the turn.

        Args:
            text: The text, which a text-to-speech still holds.
        """
        await self.push_frame(RetractTextFrame(text))

    async def run_tools(self, calls: ToolCalls, *, wall_time: float) -> None:
        """Run the winner's tools. Called by the turn.

        Args:
            calls: The complete calls.
            wall_time: When they were complete, in seconds since the epoch.
        """
        await self.stop_ttfb_metrics(end_time=wall_time)
        await self.stop_ttfat_metrics(end_time=wall_time)
        await self.run_function_calls(calls.calls)

    async def pass_on(self, frame: Frame, *, wall_time: float) -> None:
        """Release any other frame of the winner's answer. Called by the turn.

        Args:
            frame: The frame, such as a thought.
            wall_time: When it came, in seconds since the epoch.
        """
        await self.stop_ttfb_metrics(end_time=wall_time)
        await self.push_frame(frame)

    # ---- what reaches every member

    async def _update_settings(self, delta: ServiceSettings) -> dict[str, Any]:
        """Apply a settings delta here and to every member; see ``LLMService``."""
        assert isinstance(delta, LLMSettings)
        if is_given(delta.model):
            logger.warning(
                f"{self}: a settings update for all providers cannot set model, left out. Address "
                "it to one member: LLMUpdateSettingsFrame(service=member, delta=...)"
            )
            delta = dataclasses.replace(delta, model=_no_change().model)
        changed = await super()._update_settings(delta)
        for_members = dataclasses.replace(
            delta, **{name: getattr(_no_change(), name) for name in _HOSTS_OWN_SETTINGS}
        )
        if for_members.given_fields():
            await self._members.update_settings(for_members)
        await self._instruct_members()
        return changed

    async def _instruct_members(self) -> None:
        """Have the members' prompts ask for the markers of turn completion while they are read."""
        wanted = None
        if self._filter_incomplete_user_turns:
            wanted = self._user_turn_completion_config.completion_instructions
        if wanted == self._member_instruction:
            return
        self._member_instruction = wanted
        self._members.instruct(wanted)
        if self._is_prepared and not self._has_begun:  # what was sent ahead is another now
            await self._warming.close()
            self._prepare()

    def append_system_instruction(self, instruction: str) -> None:
        """Append durable text to the system instruction of every member.

        Args:
            instruction: The text to append.
        """
        super().append_system_instruction(instruction)
        self._members.append_system_instruction(instruction)

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

        The handler runs here, once, for the winner. The members are told of it because a tool's
        options change what the model is told.
        """
        options: dict[str, Any] = {
            "cancel_on_interruption": cancel_on_interruption,
            "timeout_secs": timeout_secs,
            "cancellable_by_llm": cancellable_by_llm,
        }
        super().register_function(function_name, handler, **options)
        if not self._advertising:  # members read what a context advertises for themselves
            self._members.register_function(function_name, handler, **options)

    def unregister_function(self, function_name: str | None) -> None:
        """Remove a tool handler; see ``LLMService.unregister_function``."""
        super().unregister_function(function_name)
        self._members.unregister_function(function_name)

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
        self._members.register_direct_function(handler, **options)

    def _sync_registered_tool_handlers(self, tools: Any) -> None:
        self._advertising = True
        try:
            super()._sync_registered_tool_handlers(tools)
        finally:
            self._advertising = False


def _no_change() -> LLMSettings:
    return LLMSettings()


def _no_settings() -> LLMSettings:
    """Complete settings that say nothing: each member has its own."""
    settings = LLMSettings(filter_incomplete_user_turns=False, use_provider_thinking_default=False)
    for field in dataclasses.fields(settings):
        if not is_given(getattr(settings, field.name)):
            setattr(settings, field.name, None)
    return settings
