"""The hedged LLM service: one processor in the pipeline, several providers behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.adapters.llm.schemas.direct_function import DirectFunction, DirectFunctionWrapper
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMEnablePromptCachingFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMUpdateSettingsFrame,
    MetricsFrame,
    StartFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.llm_service import FunctionCallRegistryItem, LLMService
from pipecat.services.settings import LLMSettings, ServiceSettings
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.types import is_given

from pipecat_hedge.limits.loop_lag import is_real
from pipecat_hedge.limits.permit_queue import MAX_WAIT_SECS
from pipecat_hedge.limits.priority import TIERS, Tier
from pipecat_hedge.policy.arguments import refuse_unknown
from pipecat_hedge.policy.hedge_policy import HedgePolicy, slo_of
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.errors import AllProvidersFailed, AttemptError, ConfigurationError
from pipecat_hedge.race.reports import DrainedAnswer, FillerReport, ProviderState, TurnReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service import composition
from pipecat_hedge.service.admission import Admission, AdmissionMode, as_settings
from pipecat_hedge.service.conversation import context_of
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.inference import Inference
from pipecat_hedge.service.metrics import HedgeMetricsData
from pipecat_hedge.service.provider import Provider, as_providers
from pipecat_hedge.service.provider_pool import Candidates, ProviderPool
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.service.retract import RetractText, RetractTextFrame
from pipecat_hedge.service.service_adapter import ToolCalls
from pipecat_hedge.service.tts_output import find_output
from pipecat_hedge.service.turn import Turn
from pipecat_hedge.service.turn_planner import TurnPlanner, breaker_report, state_of

__all__ = ["HedgedLLMService"]

_HOST_SETTINGS = ("filter_incomplete_user_turns", "user_turn_completion_config")
"""Settings that this service applies itself: the answer passes through it, not a member."""

BACKGROUND_WAIT_SECS = 30.0
"""How long a one-shot inference may wait where every provider refuses: its host is patient."""


class HedgedLLMService(LLMService):
    """Races several LLM services and streams the first usable answer.

    Stands in a pipeline where an LLM service stands. For each context frame it asks one or more
    of its providers, as the policy says, releases the answer that is usable first, and closes the
    other requests. A provider that fails is replaced at once and is never heard. Settings,
    instructions and tools that reach this service reach each of its members.

    Event handlers available, besides those of ``LLMService``:

    - on_turn_report: Called with a ``TurnReport`` after each turn, whatever came of it.
    - on_loser_drained: Called with a ``DrainedAnswer`` for each loser that was let run on, when
      the policy says ``losers="drain"``.
    - on_breaker_changed: Called with a ``BreakerReport`` when a provider's circuit breaker opens,
      is tested or closes. Of all services of the process, one is told.

    Example::

        llm = HedgedLLMService(
            llms=[AnthropicLLMService(api_key=...), OpenAILLMService(api_key=...)],
            policy=HedgePolicy.after(0.8),
        )

        @llm.event_handler("on_turn_report")
        async def on_turn_report(service, report):
            print(report.winner, report.ttft_secs)
    """

    def __init__(
        self,
        llms: Sequence[Provider | LLMService[Any]],
        *,
        policy: HedgePolicy | None = None,
        settings: LLMSettings | None = None,
        stats: ProviderStats | None = None,
        turn_log: str | Path | None = None,
        drained_log: str | Path | None = None,
        warm: bool = True,
        tier: Tier = "standard",
        admission: AdmissionMode = "open",
        min_in_flight: int | None = None,
        max_in_flight: int | None = None,
        slo: Slo | None = None,
        own_spans: bool = False,
        **kwargs: Any,
    ):
        """Take charge of the services to race.

        Args:
            llms: Whom to ask, in order: any Pipecat request/response LLM services, bare or as
                named ``Provider``s. Each instance belongs to this service alone.
            policy: When to ask the next one. Defaults to ``HedgePolicy.adaptive()``.
            settings: Settings that all members share, such as ``system_instruction`` and
                ``temperature``; applied to each when the pipeline starts.
            stats: What is known of the providers' latencies. Defaults to the process's own, which
                is shared by all services and kept between runs (``PIPECAT_HEDGE_STATS`` names a
                file, or a Redis that machines share, or is ``off``).
            turn_log: A file to which every ``TurnReport`` is appended as a line of JSON, for
                ``pipecat-hedge whatif`` and ``report``. It holds times and counts, the policy's
                settings and a ``session`` drawn by lot for each service; nothing that was said.
            drained_log: A file to which every ``DrainedAnswer`` is appended as a line of JSON. It
                holds what the models said.
            warm: Whether to prepare for the first turn when the session starts, see ``warm_up``,
                to keep connections open between turns, and to have Anthropic cache the prompt.
            tier: Whose turns go first when there is not room for all: ``premium``, ``standard`` or
                ``economy``.
            admission: ``open`` turns no caller away: limits and breakers choose among providers,
                and bound hedges. ``shed`` is for a platform that is over its capacity: a turn for
                which no provider has room within 3 s, or whose providers all have open breakers,
                ends with ``fallback_text``.
            min_in_flight: Requests in flight to a provider, of this process, below which nothing
                that is inferred from its latency limits them. Defaults to 10, with ``shed`` to 1.
            max_in_flight: The most with which hedges and prompts sent ahead are sent, and with
                ``shed`` callers' requests too. Defaults to 1000; with ``shed`` to 200, which the
                processes of a fleet divide among themselves.
            slo: What callers of this tier are promised; how it is kept, ``slo_status`` tells.
                None is what the policy was told, if anything.
            own_spans: Whether to make OpenTelemetry spans of the races where Pipecat's own tracing
                is off. Where that is on, the races are part of its traces in any case.
            **kwargs: Further arguments of ``LLMService``.

        Raises:
            ConfigurationError: If an argument cannot work; the message says which, and the remedy.
        """
        providers = as_providers(llms)
        if any(isinstance(s, HedgedLLMService) for p in providers for s in p.services):
            raise ConfigurationError(
                "llms contains a HedgedLLMService: put its providers into the outer one"
            )
        if policy is not None and not isinstance(policy, HedgePolicy):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f"policy must be a HedgePolicy, got {policy!r}: write HedgePolicy.adaptive()"
            )
        refuse_unknown(kwargs, owner=HedgedLLMService, base=LLMService)
        if tier not in TIERS:
            raise ConfigurationError(
                f"tier is not known, got {tier!r}: write {', '.join(repr(t) for t in TIERS)}"
            )
        tracer = composition.race_tracer(own_spans=own_spans)
        admitted = as_settings(admission, tier, min_in_flight, max_in_flight)
        if settings is not None and is_given(settings.model):
            raise ConfigurationError(
                "settings.model cannot be shared by several providers: set the model on each "
                "service where it is constructed"
            )
        super().__init__(settings=_no_settings(), **kwargs)
        self._policy = policy or HedgePolicy.adaptive()
        self._stats = stats or shared_stats()
        self._shared_settings = settings
        self._members = ProviderPool(providers, self._stats.health)
        self._admission_settings = admitted
        self._tracer = tracer
        self._holds_stats = self._advertising = False
        self._warms = warm
        self._warming = TaskScope()
        self._is_prepared = self._has_begun = False
        self._timed_first_text = False
        self._member_instruction: str | None = None
        self.events = EventHub(self._stats.events)
        self._slo = slo_of(slo, self._policy)
        composition.track_slo(self.events, self._slo, tier, self._stats)
        composition.write_logs(self.events, self._policy, turn_log, drained_log)
        self._turns = 0
        self._drains = TaskScope()
        self._late_reports = TaskScope()
        self._retractor = RetractText()
        self._turn: Turn | None = None
        self._filler: Callable[[], FillerReport | None] = lambda: None
        self._on_attempt_sent: Callable[[], None] = lambda: None
        self._register_event_handler("on_turn_report")
        self._register_event_handler("on_loser_drained")
        self._register_event_handler("on_breaker_changed")
        for item in self._members.registered_functions():
            self._adopt(item)

    @property
    def providers(self) -> tuple[Provider, ...]:
        """The providers, in the order in which they are asked."""
        return tuple(entry.provider for entry in self._members.entries)

    def provider_states(self) -> tuple[ProviderState, ...]:
        """What is known of each provider now, in the given order; call it on the loop."""
        now, is_excluded = asyncio.get_running_loop().time(), self._members.is_excluded
        stats, bounds = self._stats, self._admission_settings.bounds
        return tuple(
            state_of(entry, stats, now, is_excluded=is_excluded(entry), bounds=bounds)
            for entry in self._members.entries
        )

    @property
    def tier(self) -> Tier:
        """Whose turns these are."""
        return self._admission_settings.tier

    @property
    def slo(self) -> Slo | None:
        """What the callers are promised."""
        return self._slo

    def slo_status(self) -> tuple[composition.SloStatus, ...]:
        """How that is kept by all sessions of the process that promise it to this tier.

        What other tiers are promised is in ``stats.slo_board``.
        """
        if self._slo is None:
            return ()
        return self._stats.slo_board.status(self.tier, self._slo)

    @property
    def may_wait(self) -> bool:
        """Whether an answer may be that the caller has not finished, and is waited for."""
        return self._filter_incomplete_user_turns

    @property
    def stats(self) -> ProviderStats:
        """What is known of the providers' latencies."""
        return self._stats

    @property
    def policy(self) -> HedgePolicy:
        """When the next provider is asked."""
        return self._policy

    @property
    def is_failing(self) -> bool:
        """Whether a turn is running in which nobody has answered, and somebody has failed."""
        return self._turn is not None and self._turn.is_failing

    @property
    def wait(self) -> SurvivalCurve | None:
        """How long the turn that is running waits for its answer, by who is asked and when.

        From the turn's beginning, with those who have been asked and the next one as it is planned;
        None if no turn is waiting, or for one provider alone.
        """
        return None if self._turn is None else self._turn.wait

    def report_fillers(
        self,
        filler: Callable[[], FillerReport | None],
        on_attempt_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Have turns' reports say what was done about the silence.

        Args:
            filler: Asked at the end of each turn, by whoever speaks the fillers.
            on_attempt_sent: Called whenever somebody is on_attempt_sent: what is left to wait is another then.
        """
        self._filler, self._on_attempt_sent = filler, on_attempt_sent

    def can_generate_metrics(self) -> bool:
        """Whether this service reports metrics: it does, under its own name."""
        return True

    # ---- life cycle

    @property
    def is_running(self) -> bool:
        """Whether it is part of a pipeline that has been set up, and not cleaned up."""
        return self._holds_stats

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set this service and its members up."""
        await super().setup(setup)
        hosted = [service for provider in self.providers for service in provider.services]
        await self._members.setup(self._tracer.setup(setup, hosted))
        if not self._holds_stats:
            self._stats.hold()
            self._holds_stats = True

    async def cleanup(self) -> None:
        """Release this service's and its members' resources."""
        try:
            await self._drains.close()
            await self._late_reports.join()
            await asyncio.to_thread(self._stats.save)
        finally:
            await self._warming.close()
            await super().cleanup()
            await self._members.cleanup()
            if self._holds_stats:
                self._holds_stats = False
                await self._stats.release()

    async def start(self, frame: StartFrame) -> None:
        """Start the members, and prepare them for the first turn."""
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
        """Report what has not been reported, and stop the members."""
        await self._end_probes()
        await self._members.stop_keeping_connections()
        await super().stop(frame)
        await self._members.control(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Report what has not been reported, and stop the members at once."""
        await self._end_probes()
        await self._members.stop_keeping_connections()
        await super().cancel(frame)
        await self._members.control(frame)

    # ---- frames

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Run a turn for a context frame; pass everything else on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            await self._drains.close()
        if isinstance(frame, LLMContextFrame):
            await self._run_turn(frame.context)
        elif isinstance(frame, LLMUpdateSettingsFrame) and frame.service is not None:
            # The base class has applied it, or passed it on for another service.
            if (member := self._members.adapter_of(frame.service)) is not None:
                if isinstance(frame.delta, LLMSettings):
                    await self._members.update_member(member, frame.delta)
                else:
                    await member.control(frame)
        elif isinstance(frame, LLMEnablePromptCachingFrame):
            await self._members.control(frame)
        else:
            await self.push_frame(frame, direction)

    # ---- the turn

    async def _run_turn(self, context: LLMContext) -> None:
        if self._policy.losers == "drain":
            await self._drains.close()  # an instance carries one request at a time
        self._turns += 1
        self._begin_answer()
        output = find_output(self)
        if output.collector is not None:
            self._retractor.attach(output.collector)
        candidates = self._candidates(now := asyncio.get_running_loop().time())
        admission = self._admission(candidates, MAX_WAIT_SECS)
        try:
            planner = TurnPlanner(
                self._policy, candidates, context, self._stats, output.commit_on, now=now
            )
            trace = self._tracer.begin(self._turns, self._policy.name, self.tier)
            turn = Turn(
                self._turns, context, planner, admission, self, output, trace, self.may_wait
            )
        except BaseException:
            admission.close()  # a claim to a probe comes back, whatever happens
            raise
        self._turn = turn
        ended = False

        async def end() -> None:
            nonlocal ended
            ended = True
            if turn.failure is not None:
                await self._report_failure(turn.failure)
                if self._policy.fallback_text and not turn.has_answered:
                    await self.push_frame(LLMTextFrame(self._policy.fallback_text))
            if (usage := turn.winner_usage) is not None:
                await self.start_llm_usage_metrics(usage)
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

        try:
            await self.push_frame(LLMFullResponseStartFrame())
            await self.start_processing_metrics()
            await self.start_ttfb_metrics()
            await turn.run(self._drains, end)
        finally:
            admission.close()
            try:  # whatever goes wrong here, the turn is counted and its spans end
                try:
                    if not ended:
                        await end()
                finally:
                    self._turn = None
                    await self._learn(turn.errors)
            finally:
                filler = self._filler()
                if turn.has_probe:
                    name = f"{self.name} reports a turn"
                    self._late_reports.start(self._report_when_complete(turn, filler), name=name)
                else:
                    await self._report_turn(turn, filler)
        if self._stats.is_due:
            await asyncio.to_thread(self._stats.save)

    def _admission(
        self, candidates: Candidates, wait_secs: float, *, has_first_token: bool = True
    ) -> Admission:
        end_secs = self._policy.deadline_secs
        settings = self._admission_settings
        if settings.mode == "shed" and self._stats.fleet is not None:
            settings = settings.divided(self._stats.fleet.processes)
        stats = self._stats
        return Admission(
            stats.health,
            candidates,
            settings,
            stats.loop_watch,
            wait_secs,
            end_secs=math.inf if end_secs is None else end_secs,
            has_first_token=has_first_token,
        )

    def _candidates(self, now: float) -> Candidates:
        self._members.offer(self.get_llm_adapter().builtin_tools)
        return self._members.candidates(now, sheds=self._admission_settings.mode == "shed")

    async def _report_failure(self, failure: AllProvidersFailed) -> None:
        await self.cancel_ttfb_metrics()
        categories = {error.category for _, error in failure.causes}
        known = {category.value for category in ErrorCategory}
        only = categories.pop() if len(categories) == 1 else None
        category = ErrorCategory(only) if only in known else ErrorCategory.UNKNOWN
        await self.push_error(str(failure), exception=failure, category=category)

    async def _end_probes(self) -> None:
        if self._policy.losers == "cancel":
            await self._drains.close()
            await self._late_reports.join()

    async def _report_when_complete(self, turn: Turn, filler: FillerReport | None) -> None:
        try:
            await turn.wait_for_probe()
        finally:
            await self._report_turn(turn, filler)

    async def _report_turn(self, turn: Turn, filler: FillerReport | None) -> None:
        report = dataclasses.replace(turn.report(), filler=filler)
        self.events.publish(report)
        turn.trace.end(report)
        _log_connections(report)
        await self._call_event_handler("on_turn_report", report)
        if self.metrics_enabled:
            model = next((a.model for a in report.attempts if a.outcome == "won"), None)
            data = HedgeMetricsData(processor=self.name, model=model, report=report)
            await self.push_frame(MetricsFrame(data=[data]))

    async def drained(self, answer: DrainedAnswer) -> None:
        """Publish the answer of a loser that ran to its end; see ``ResponseSink``."""
        self.events.publish(answer)
        await self._call_event_handler("on_loser_drained", answer)

    # ---- out of the pipeline

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Race a one-shot inference, as for a context summary; see ``LLMService.run_inference``.

        Raises:
            AllProvidersFailed: If nobody answered or, with ``admission="shed"``, nobody had room.
        """
        candidates = self._candidates(now := asyncio.get_running_loop().time())
        admission = self._admission(candidates, BACKGROUND_WAIT_SECS, has_first_token=False)
        options = {
            "max_tokens": max_tokens,
            "system_instruction": system_instruction,
            "response_schema": response_schema,
        }
        try:
            planner = TurnPlanner(
                self._policy,
                candidates,
                context,
                self._stats,
                "first_token",
                whole_answers=True,
                now=now,
            )
            inference = Inference(context, planner, admission, options)
            try:
                return await inference.run()
            finally:
                await self._learn(inference.errors)
        finally:
            admission.close()

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
            if error.permanent and self._members.exclude(provider):
                logger.warning(
                    f"{self}: {provider} rejected the request for good ({error.category}) and is "
                    "excluded for this session. Check its key, model and settings; a "
                    "settings update brings it back"
                )
        for report in map(breaker_report, self._stats.health.take_changes()):
            level = "WARNING" if report.after == "open" else "INFO"
            logger.log(level, f"{report.provider} is {report.after}: {report.reason}")
            self.events.publish(report)
            await self._call_event_handler("on_breaker_changed", report)

    # ---- the response sink

    def _begin_answer(self) -> None:
        self._has_begun = True
        self._timed_first_text = False
        self._members.turn_began()

    async def say(self, text: str, *, at: float | None = None) -> None:
        """Release a piece of the winner's text; see ``ResponseSink``."""
        if not self._timed_first_text:
            self._timed_first_text = True
            age_secs = 0.0 if at is None else asyncio.get_running_loop().time() - at
            wall_time = time.time() - age_secs
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

    def attempt_sent(self) -> None:
        """Take note that a request was sent; see ``ResponseSink``."""
        self._on_attempt_sent()

    def committed(self, model: str | None) -> None:
        """Report metrics under the winner's model; see ``ResponseSink``."""
        self.set_core_metrics_data(MetricsData(processor=self.name, model=model or ""))

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
                f"{self}: a settings update for all providers cannot set model, ignored. Send "
                "it to one member: LLMUpdateSettingsFrame(service=member, delta=...)"
            )
            delta = dataclasses.replace(delta, model=_no_change().model)
        changed = await super()._update_settings(delta)
        for_members = dataclasses.replace(
            delta, **{name: getattr(_no_change(), name) for name in _HOST_SETTINGS}
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
        """Append durable text to the system instruction of every member."""
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

    def _adopt(self, item: FunctionCallRegistryItem) -> None:
        """Take over a handler that was registered with a member before."""
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


def _log_connections(report: TurnReport) -> None:
    """Log each connection that was opened while the caller waited."""
    for attempt in report.attempts:
        stages = attempt.stages
        if stages is not None and stages.new_connection:
            secs = (stages.tcp_secs or 0.0) + (stages.tls_secs or 0.0)
            logger.debug(
                f"turn {report.turn}: a connection to {attempt.provider} was opened, {secs:.3f} s"
            )


def _no_change() -> LLMSettings:
    return LLMSettings()


def _no_settings() -> LLMSettings:
    """Complete settings that say nothing: each member has its own."""
    settings = LLMSettings(filter_incomplete_user_turns=False, use_provider_thinking_default=False)
    for field in dataclasses.fields(settings):
        if not is_given(getattr(settings, field.name)):
            setattr(settings, field.name, None)
    return settings
