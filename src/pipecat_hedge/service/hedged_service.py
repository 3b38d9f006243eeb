"""The hedged LLM service: one processor in the pipeline, several providers behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loguru import logger
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
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.limits.permit_queue import MOST_WAIT_SECS
from pipecat_hedge.limits.priority import TIERS, Tier
from pipecat_hedge.policy.arguments import refuse_unknown
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.errors import AllProvidersFailed, ConfigurationError
from pipecat_hedge.race.reports import DrainedAnswer, FillerReport, ProviderState, TurnReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.admission import Admission, AdmissionMode, as_settings
from pipecat_hedge.service.front import FrontService
from pipecat_hedge.service.inference import race_inference
from pipecat_hedge.service.line_log import LineLog
from pipecat_hedge.service.metrics import HedgeMetricsData
from pipecat_hedge.service.provider import Provider, as_providers
from pipecat_hedge.service.provider_pool import Candidates
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.service.retract import RetractText
from pipecat_hedge.service.tts_output import Output, find_output
from pipecat_hedge.service.turn import Turn
from pipecat_hedge.service.turn_learning import Learning, state_of
from pipecat_hedge.service.turn_log import TurnLines
from pipecat_hedge.telemetry.race_span import RaceTracer
from pipecat_hedge.telemetry.slo_attainment import SloStatus
from pipecat_hedge.telemetry.slo_tracker import SloTracker
from pipecat_hedge.voice.turn_timeline import TurnLatency

__all__ = ["HedgedLLMService"]

BACKGROUND_WAIT_SECS = 30.0
"""How long a one-shot inference may wait where every provider refuses: its host is patient."""


class HedgedLLMService(FrontService):
    """Races several LLM services and streams the first usable answer.

    Stands in a pipeline where an LLM service stands. For each context frame it asks one or more
    of its providers, as the policy says, releases the answer that is usable first, and closes the
    other requests. A provider that fails is replaced at once and is never heard.

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
        tracer = RaceTracer(own_spans=own_spans)
        admitted = as_settings(admission, tier, min_in_flight, max_in_flight)
        super().__init__(
            providers, settings, warm, stats or shared_stats(), admitted, tracer, **kwargs
        )
        self._policy = policy or HedgePolicy.adaptive()
        self._promise = SloTracker(slo, self._policy, tier, self._stats.slo_board)
        self._turns = 0
        self._drains = TaskScope()
        self._late_reports = TaskScope()
        self._take_back = RetractText()
        self._turn_log = LineLog("turn_log", turn_log)
        self._lines = TurnLines(self._policy)
        self._drained_log = LineLog("drained_log", drained_log)
        self._turn: Turn | None = None
        self._filler: Callable[[], FillerReport | None] = lambda: None
        self._asked: Callable[[], None] = lambda: None
        self._register_event_handler("on_turn_report")
        self._register_event_handler("on_loser_drained")
        self._register_event_handler("on_breaker_changed")

    @property
    def providers(self) -> tuple[Provider, ...]:
        """The providers, in the order in which they are asked."""
        return tuple(entry.provider for entry in self._members.entries)

    def provider_states(self) -> tuple[ProviderState, ...]:
        """What is known of each provider now, in the given order; call it on the loop."""
        now, out = asyncio.get_running_loop().time(), self._members.is_excluded
        stats, bounds = self._stats, self._admission_settings.bounds
        return tuple(
            state_of(entry, stats, now, is_excluded=out(entry), bounds=bounds)
            for entry in self._members.entries
        )

    @property
    def tier(self) -> Tier:
        """Whose turns these are."""
        return self._admission_settings.tier

    @property
    def slo(self) -> Slo | None:
        """What the callers are promised."""
        return self._promise.slo

    def slo_status(self) -> tuple[SloStatus, ...]:
        """How that is kept by all sessions of the process that promise it to this tier.

        What other tiers are promised is in ``stats.slo_board``.
        """
        return self._promise.status()

    @property
    def may_wait(self) -> bool:
        """Whether an answer may be that the caller has not finished, and is waited for."""
        return self._filter_incomplete_user_turns

    def take_heard(self, turn: TurnLatency) -> None:
        """Take note of when an answer was heard. ``TurnLatencyObserver`` calls it for each turn.

        Args:
            turn: The turn, as the caller lived it.
        """
        self._promise.heard(turn)

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
        self, filler: Callable[[], FillerReport | None], asked: Callable[[], None] = lambda: None
    ) -> None:
        """Have turns' reports say what was done about the silence.

        Args:
            filler: Asked at the end of each turn, by whoever speaks the fillers.
            asked: Called whenever somebody is asked: what is left to wait is another then.
        """
        self._filler, self._asked = filler, asked

    def can_generate_metrics(self) -> bool:
        """Whether this service reports metrics: it does, under its own name."""
        return True

    async def stop(self, frame: EndFrame) -> None:
        """Report what has not been reported, and stop the members.

        Args:
            frame: The end frame.
        """
        await self._end_probes()
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Report what has not been reported, and stop the members at once.

        Args:
            frame: The cancel frame.
        """
        await self._end_probes()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        """Release this service's and its members' resources."""
        try:
            await self._drains.close()
            await self._late_reports.join()
            await asyncio.to_thread(self._stats.save)
        finally:
            await super().cleanup()

    # ---- frames

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Run a turn for a context frame; pass everything else on.

        Args:
            frame: The frame to process.
            direction: Which way it travels.
        """
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            await self._drains.close()
        if isinstance(frame, LLMContextFrame):
            await self._run_turn(frame.context)
        elif isinstance(frame, LLMUpdateSettingsFrame) and frame.service is not None:
            # The base class has applied it, or passed it on for another service.
            if (member := self._members.hosting(frame.service)) is not None:
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
            self._take_back.teach(output.collector)
        line_up = self._line_up(now := asyncio.get_running_loop().time())
        admission = self._admission(line_up, MOST_WAIT_SECS)
        try:
            turn = self._new_turn(context, line_up, admission, output, now)
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

    def _new_turn(
        self,
        context: LLMContext,
        line_up: Candidates,
        admission: Admission,
        output: Output,
        now: float,
    ) -> Turn:
        learning = Learning(self._policy, line_up, context, self._stats, output.commit_on, now=now)
        return Turn(
            number=self._turns,
            context=context,
            policy=self._policy,
            learning=learning,
            admission=admission,
            mouth=self,
            output=output,
            span=self._tracer.begin(self._turns, self._policy.name, self.tier),
            committed=self._credit,
            drained=self._report_drained,
            asked=lambda: self._asked(),
            may_wait=self.may_wait,
        )

    def _admission(
        self, line_up: Candidates, wait_secs: float, *, has_first_token: bool = True
    ) -> Admission:
        end_secs = self._policy.deadline_secs
        settings = self._admission_settings
        if settings.mode == "shed" and self._stats.fleet is not None:
            settings = settings.divided(self._stats.fleet.processes)
        stats = self._stats
        return Admission(
            stats.health,
            line_up,
            settings,
            stats.loop_watch,
            wait_secs,
            end_secs=math.inf if end_secs is None else end_secs,
            has_first_token=has_first_token,
        )

    def _line_up(self, now: float) -> Candidates:
        self._members.offer(self.get_llm_adapter().builtin_tools)
        return self._members.line_up(now, sheds=self._admission_settings.mode == "shed")

    def _credit(self, model: str | None) -> None:
        self.set_core_metrics_data(MetricsData(processor=self.name, model=model or ""))

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
        self._stats.turn_hooks.tell(report)
        self._promise.ended(report)
        self._tracer.end(turn.span, report)
        _tell_cold(report)
        await self._call_event_handler("on_turn_report", report)
        if self._turn_log:
            self._turn_log.append(json.dumps(self._lines.line(report, time.time())))
        if self.metrics_enabled:
            model = next((a.model for a in report.attempts if a.outcome == "won"), None)
            data = HedgeMetricsData(processor=self.name, model=model, report=report)
            await self.push_frame(MetricsFrame(data=[data]))

    async def _report_drained(self, answer: DrainedAnswer) -> None:
        await self._call_event_handler("on_loser_drained", answer)
        if self._drained_log:
            told = json.dumps(dataclasses.asdict(answer), ensure_ascii=False)
            self._drained_log.append(told)

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
        line_up = self._line_up(asyncio.get_running_loop().time())
        admission = self._admission(line_up, BACKGROUND_WAIT_SECS, has_first_token=False)
        options = {
            "max_tokens": max_tokens,
            "system_instruction": system_instruction,
            "response_schema": response_schema,
        }
        try:
            answers, errors, reason = await race_inference(
                line_up, self._policy, self._stats, admission, context, options
            )
        finally:
            admission.close()
        await self._learn(errors)
        if not answers:
            raise AllProvidersFailed(errors, reason=reason)
        return answers[0]


def _tell_cold(report: TurnReport) -> None:
    """Say whose request had to open a connection while the caller waited."""
    for attempt in report.attempts:
        stages = attempt.stages
        if stages is not None and stages.new_connection:
            secs = (stages.tcp_secs or 0.0) + (stages.tls_secs or 0.0)
            logger.debug(
                f"turn {report.turn}: a connection to {attempt.provider} was opened, {secs:.3f} s"
            )
