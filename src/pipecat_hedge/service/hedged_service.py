"""The hedged LLM service: one processor in the pipeline, several providers behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EagerEndOfTurnCancelFrame,
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
    UserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.policy.arguments import require, require_flag, require_known
from pipecat_hedge.policy.hedge_policy import HedgePolicy, slo_of
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.providers.loop_lag import is_real
from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.race.errors import AllProvidersFailed, AttemptError, ConfigurationError
from pipecat_hedge.race.reports import (
    DrainedAnswer,
    FillerReport,
    ProviderState,
    SpeechReport,
    Tier,
    TranscriptReport,
    TurnReport,
)
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service import composition
from pipecat_hedge.service.admission_terms import AdmissionMode, admission_terms
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.hosting_service import HostingLLMService
from pipecat_hedge.service.inference import WHOLE_ANSWER_SECS, Inference
from pipecat_hedge.service.known_answers import AnswerSources, HeldAnswer, KnownAnswers, Question
from pipecat_hedge.service.metrics import HedgeMetricsData
from pipecat_hedge.service.pipeline_search import context_of, find_output
from pipecat_hedge.service.planned_turn import TurnSpec
from pipecat_hedge.service.preparation import Preparation
from pipecat_hedge.service.provider import Provider, as_providers
from pipecat_hedge.service.provider_pool import ProviderPool
from pipecat_hedge.service.provider_race import ProviderRace
from pipecat_hedge.service.provider_states import breaker_report, states_of
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.service.rejections import Rejections
from pipecat_hedge.service.retract import RetractText, RetractTextFrame
from pipecat_hedge.service.service_adapter import ServiceAdapter, ToolCalls
from pipecat_hedge.service.session_options import (
    SessionOptions,
    check_policy_arguments,
    check_residency,
    check_settings,
    check_tier,
)
from pipecat_hedge.service.token_budget import TokenBudget, budget_of
from pipecat_hedge.service.tokens import estimate_tokens
from pipecat_hedge.service.turn import AnswerOptions, Turn
from pipecat_hedge.service.turn_order import TurnOrder

MOST_REPORTS = 20
"""Utterances, and spoken answers, in one turn's report."""


@dataclass(slots=True)
class VoiceHooks:
    """What processors beside the service have to do with its turns.

    Parameters:
        filler: Called at the end of each turn; returns its filler report.
        attempt_sent: Called whenever a request is sent, which changes the expected wait.
        transcripts: The caller's utterances since the last report.
        speech: What was spoken since then.
    """

    filler: Callable[[], FillerReport | None] = lambda: None
    attempt_sent: Callable[[], None] = lambda: None
    transcripts: deque[TranscriptReport] = field(
        default_factory=lambda: deque[TranscriptReport](maxlen=MOST_REPORTS)
    )
    speech: deque[SpeechReport] = field(
        default_factory=lambda: deque[SpeechReport](maxlen=MOST_REPORTS)
    )

    def add_to(self, report: TurnReport) -> TurnReport:
        """Add what was said since the last report."""
        transcripts, speech = tuple(self.transcripts), tuple(self.speech)
        self.transcripts.clear()
        self.speech.clear()
        return dataclasses.replace(report, transcripts=transcripts, speech=speech)


class HedgedLLMService(HostingLLMService):
    """Races several LLM services and streams the first usable answer.

    Replaces an LLM service in a pipeline. For each context frame it sends requests to one or more
    providers, as the policy decides, releases the answer that is usable first, and closes the other
    requests. A provider that fails is replaced at once; its output is never released. Settings,
    instructions and tools that reach this service reach each of its members.

    Event handlers available, besides those of ``LLMService``:

    - on_turn_report: Called with a ``TurnReport`` after each turn, whatever its outcome.
    - on_loser_drained: Called with a ``DrainedAnswer`` for each loser that finished, with
      ``losers="drain"``.
    - on_breaker_changed: Called with a ``BreakerReport`` when a provider's circuit breaker opens,
      becomes half-open or closes. One service of the process receives each change.

    Example::

        llm = HedgedLLMService(
            llms=[AnthropicLLMService(api_key=...), OpenAILLMService(api_key=...)],
            policy=HedgePolicy.after(0.8),
        )

        @llm.event_handler("on_turn_report")
        async def on_turn_report(service, report):
            print(report.winner, report.ttft_secs)
    """

    Settings = LLMSettings

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
        residency: str | None = None,
        token_budget: TokenBudget | Mapping[Tier, TokenBudget] | None = None,
        answers: Sequence[KnownAnswers] = (),
        **kwargs: Any,
    ):
        """Host the services to race.

        Args:
            llms: The services in order: any Pipecat request/response LLM services, bare or as named
                ``Provider``s. Each instance belongs to this service alone.
            policy: When to send further requests. Defaults to ``HedgePolicy.adaptive()``.
            settings: Settings that all members share, such as
                ``HedgedLLMService.Settings(system_instruction=..., temperature=0.3)``; applied to
                each when the pipeline starts.
            stats: The providers' statistics. Defaults to the process's own, which all services
                share and which is saved between runs (``PIPECAT_HEDGE_STATS`` names a file, or a
                Redis that machines share, or is ``off``).
            turn_log: A file to which every ``TurnReport`` is appended as a line of JSON, for
                ``pipecat-hedge whatif`` and ``report``. It contains times and counts, the policy's
                settings and a random ``session`` per service, and no text of the conversation.
            drained_log: A file to which every ``DrainedAnswer`` is appended as a line of JSON. It
                contains the callers' questions and the models' answers.
            warm: Whether to prepare the first turn when the session starts (see ``warm_up``), to
                keep connections open between turns, and to have Anthropic cache the prompt.
            tier: The priority of this service's turns if there is not room for all: ``premium``,
                ``standard`` or ``economy``.
            admission: ``open`` rejects no caller: limits and breakers choose among providers, and
                bound hedges. ``shed`` is for a platform beyond its capacity: a turn for which no
                provider has room, or whose providers all have open breakers, ends with
                ``fallback_text`` at once.
            min_in_flight: The requests in flight to a provider, from this process, below which no
                limit is inferred from its latency. Defaults to 10, with ``shed`` to 1.
            max_in_flight: The most requests in flight with which hedges and warm-up prompts are
                sent, and with ``shed`` callers' requests, in each process. Defaults to 1000; with
                ``shed`` to 200.
            slo: The SLO of this tier's callers; ``slo_status`` returns how it is met. Defaults to
                the policy's, if it has one.
            own_spans: Whether to create OpenTelemetry spans of the races if Pipecat's own tracing
                is off. If that is on, the races are part of its traces in any case.
            residency: The jurisdiction that no request may leave, such as ``eu``: the ``residency``
                that every provider must have.
            token_budget: The most tokens of a turn's prompt and answer; or one for each tier.
            answers: Sources of answers without a provider, in the order in which they are asked:
                ``ExactAnswers``, ``FaqAnswers``, or objects of a class of your own.
            **kwargs: Further arguments of ``LLMService``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        providers = as_providers(llms)
        if any(isinstance(s, HedgedLLMService) for p in providers for s in p.services):
            raise ConfigurationError(
                "llms contains a HedgedLLMService: put its providers into the outer one"
            )
        require("policy", policy, HedgePolicy, "write HedgePolicy.adaptive()")
        require("stats", stats, ProviderStats, "write ProviderStats()")
        require("settings", settings, LLMSettings, "write HedgedLLMService.Settings(...)")
        require_flag("warm", warm)
        require_flag("own_spans", own_spans)
        check_residency(providers, residency)
        check_policy_arguments(kwargs)
        require_known(kwargs, owner=HedgedLLMService, base=LLMService)
        check_tier(tier)
        check_settings(settings)
        policy = policy or HedgePolicy.adaptive()
        self._options = SessionOptions(
            policy,
            admission_terms(admission, tier, min_in_flight, max_in_flight),
            slo_of(slo, policy),
            budget_of(token_budget, tier),
            settings,
            warm,
        )
        self._answers = AnswerSources(answers)
        self._tracer = composition.race_tracer(own_spans=own_spans)
        self._stats = stats or shared_stats()
        super().__init__(ProviderPool(providers, self._stats), **kwargs)
        self._rejections = {"turns": Rejections(), "inferences": Rejections()}
        self._session_loop: asyncio.AbstractEventLoop | None = None
        self._preparation = Preparation(f"{self}: warms up", self.warm_up)
        self._timed_first_text = False
        self.events = EventHub(self._stats.events)
        if (service_slo := self._options.slo) is not None:
            composition.track_slo(self.events, service_slo, tier, self._stats.slo_tracker)
        composition.write_logs(self.events, policy, turn_log, drained_log)
        if drained_log is not None and policy.losers == "cancel":
            logger.warning(
                f"{self}: drained_log stays empty, because the policy closes losers: "
                'write HedgePolicy.adaptive(losers="drain")'
            )
        self._turns = 0
        regions = {provider.name: provider.region for provider in providers}
        self._order = TurnOrder(self._pool.members, regions, policy.route)
        self._drains = TaskScope()
        self._late_reports = TaskScope()
        self._retractor = RetractText()
        self._turn: Turn | HeldAnswer | None = None
        self._voice = VoiceHooks()
        self.events.subscribe(TranscriptReport, self._voice.transcripts.append)
        self.events.subscribe(SpeechReport, self._voice.speech.append)
        self._register_event_handler("on_turn_report")
        self._register_event_handler("on_loser_drained")
        self._register_event_handler("on_breaker_changed")

    @property
    def providers(self) -> tuple[Provider, ...]:
        """The providers, in the given order."""
        return self._pool.providers

    def provider_states(self) -> tuple[ProviderState, ...]:
        """The state of each provider now, in the given order."""
        try:
            now = asyncio.get_running_loop().time()
        except RuntimeError:  # outside of a loop: the clock of asyncio's own loops
            now = time.monotonic()
        pool, rejections = self._pool, self._rejections["turns"]
        states = states_of(pool.members, self._stats, self._options.terms, now)
        return tuple(
            dataclasses.replace(state, is_last=pool.comes_last(member, rejections))
            for member, state in zip(pool.members, states, strict=True)
        )

    @property
    def tier(self) -> Tier:
        """The priority of this service's turns."""
        return self._options.terms.tier

    @property
    def slo(self) -> Slo | None:
        """The SLO of this service's callers, or None."""
        return self._options.slo

    def slo_status(self) -> tuple[composition.SloStatus, ...]:
        """How the SLO is met by all sessions of the process with this SLO and tier.

        ``stats.slo_tracker`` has the SLOs of other tiers.
        """
        slo = self._options.slo
        return () if slo is None else self._stats.slo_tracker.status(self.tier, slo)

    @property
    def turn_number(self) -> int:
        """The number of the latest turn, as in its report; 0 before the first."""
        return self._turns

    @property
    def may_wait(self) -> bool:
        """Whether an "incomplete turn" marker counts as an answer."""
        return self._filter_incomplete_user_turns

    @property
    def stats(self) -> ProviderStats:
        """The providers' statistics."""
        return self._stats

    @property
    def is_simulated(self) -> bool:
        """Whether a simulator answers for one of the providers."""
        return any(self._stats.is_simulated(member.backend()) for member in self._pool.members)

    @property
    def policy(self) -> HedgePolicy:
        """The hedging policy."""
        return self._options.policy

    @property
    def is_failing(self) -> bool:
        """Whether the current turn has a failed attempt and none that has answered."""
        return isinstance(self._turn, Turn) and self._turn.is_failing

    @property
    def wait(self) -> SurvivalCurve | None:
        """The distribution of the current turn's wait for its answer, from the turn's start.

        It includes the attempts so far and the next planned one. None if no turn is waiting, or
        with only one attempt.
        """
        return self._turn.wait if isinstance(self._turn, Turn) else None

    def report_fillers(
        self,
        filler: Callable[[], FillerReport | None],
        on_attempt_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Add a filler report to turn reports.

        Args:
            filler: Called at the end of each turn; returns its filler report.
            on_attempt_sent: Called whenever a request is sent, which changes the expected wait.
        """
        self._voice.filler, self._voice.attempt_sent = filler, on_attempt_sent

    def can_generate_metrics(self) -> bool:
        """Whether this service reports metrics, under its own name; always True."""
        return True

    # ---- life cycle

    @property
    def is_running(self) -> bool:
        """Whether its pipeline has been set up and not cleaned up, and its loop is not closed."""
        return self._session_loop is not None and not self._session_loop.is_closed()

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up this service and its members."""
        await super().setup(setup)
        self._tracer.setup(setup)
        await self._pool.setup(setup)
        if self._session_loop is None:
            self._stats.begin_session([member.backend() for member in self._pool.members])
            self._session_loop = asyncio.get_running_loop()

    async def cleanup(self) -> None:
        """Release this service's and its members' resources."""
        try:
            await self._drains.close()
            await self._late_reports.join()
            await asyncio.to_thread(self._stats.save)
        finally:
            await self._preparation.close()
            await super().cleanup()
            await self._pool.cleanup()
            if self._session_loop is not None:
                self._session_loop = None
                await self._stats.end_session()

    async def start(self, frame: StartFrame) -> None:
        """Start the members and prepare them for the first turn."""
        await super().start(frame)
        await self._pool.control(frame)
        if self._options.settings is not None:
            await self._update_settings(self._options.settings)
        for adapter in self._pool.adapters:
            await adapter.limit(self._options.token_budget)
        if self._options.warm:
            await self._pool.control(LLMEnablePromptCachingFrame(enable=True))
            self._preparation.start()
            if is_real(asyncio.get_running_loop()):  # timers would make a virtual loop run ahead
                self._pool.keep_connections()

    async def stop(self, frame: EndFrame) -> None:
        """Publish pending reports and stop the members."""
        await self._publish_pending()
        await self._pool.stop_keeping_connections()
        await super().stop(frame)
        await self._pool.control(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """Publish pending reports and stop the members at once."""
        await self._publish_pending()
        await self._pool.stop_keeping_connections()
        await super().cancel(frame)
        await self._pool.control(frame)

    # ---- frames

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Run a turn for a context frame; forward other frames."""
        is_void = isinstance(frame, (InterruptionFrame, EagerEndOfTurnCancelFrame))
        if is_void and self._turn is not None:
            self._turn.end_speculation(is_confirmed=False)
        await super().process_frame(frame, direction)
        if isinstance(frame, InterruptionFrame):
            await self._drains.close()
        elif isinstance(frame, UserStoppedSpeakingFrame) and self._turn is not None:
            self._turn.end_speculation(is_confirmed=True)
        if isinstance(frame, LLMContextFrame):
            await self._run_turn(frame.context)
        elif isinstance(frame, LLMUpdateSettingsFrame) and frame.service is not None:
            # The base class has applied it, or forwarded it to another service.
            if (member := self._pool.adapter_of(frame.service)) is not None:
                if isinstance(frame.delta, LLMSettings):
                    await self._members_changed(self._pool.provider_of(member))
                    await member.update_settings(frame.delta)
                else:
                    await member.control(frame)
        elif isinstance(frame, LLMEnablePromptCachingFrame):
            await self._pool.control(frame)
        else:
            await self.push_frame(frame, direction)

    # ---- the turn

    async def _run_turn(self, context: LLMContext) -> None:
        if self.policy.losers == "drain":
            await self._drains.close()  # an instance carries one request at a time
        self._turns += 1
        self._begin_answer()
        self._end_speculation()
        began = asyncio.get_running_loop().time()
        question = self._question(context) if self._answers else None
        if question is not None and (known := await self._answers.find(question)) is not None:
            await self._say_known(*known, began)
            return
        output = find_output(self)
        if output.collector is not None:
            self._retractor.attach(output.collector)
        choice = self._order.route(context)
        prompt_tokens = estimate_tokens(context)
        if (most := self._options.token_budget.prompt) is not None:
            prompt_tokens = min(prompt_tokens, most)
        spec = TurnSpec(
            "tool_follow_up" if _answers_tool(context) else "primary",
            self.policy.commits_on(output.commit_on),
            prompt_tokens,
            has_tools=bool(context.tools),
            choice=choice,
        )
        race = self._race(spec, self._rejections["turns"])
        turn = Turn(
            self._turns,
            context,
            race,
            self,
            AnswerOptions(output, self.may_wait, self._options.token_budget.answer),
            self._tracer.begin(self._turns, self.policy.name, self.tier),
            is_speculative=self._speculation_gate.is_speculating,
        )
        self._turn = turn
        ended = False

        async def end() -> None:
            nonlocal ended
            ended = True
            if turn.failure is not None:
                await self._report_failure(turn.failure)
                if self.policy.fallback_text and not turn.has_answered:
                    await self.push_frame(LLMTextFrame(self.policy.fallback_text))
            if (winner := race.winner) is not None and winner.stats.usage is not None:
                await self.start_llm_usage_metrics(winner.stats.usage)
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

        try:
            await self.push_frame(LLMFullResponseStartFrame())
            await self.start_processing_metrics()
            await self.start_ttfb_metrics()
            await turn.run(self._drains, end)
        finally:
            try:  # in any case the turn is reported and its spans end
                try:
                    if not ended:
                        await end()
                finally:
                    await self._note_failures(self._rejections["turns"], race.errors, race.answered)
            finally:
                filler = self._voice.filler()
                if question is not None and turn.whole_answer:
                    name = f"{self.name} keeps an answer"
                    self._late_reports.start(self._keep(question, turn), name=name)
                if not turn.is_complete:
                    name = f"{self.name} reports a turn"
                    self._late_reports.start(self._report_when_complete(turn, filler), name=name)
                else:
                    await self._report_turn(turn, filler)
        if self._stats.is_due:
            await asyncio.to_thread(self._stats.save)

    def _question(self, context: LLMContext) -> Question:
        services = [service for provider in self.providers for service in provider.services]
        return Question.of(context, services)

    async def _say_known(self, source: str, text: str, began: float) -> None:
        loop = asyncio.get_running_loop()
        await self.push_frame(LLMFullResponseStartFrame())
        try:
            await self.start_processing_metrics()
            await self.start_ttfb_metrics()
            secs = loop.time() - began
            for piece in re.findall(r"\S+\s*", text):
                await self.say(piece)
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())
        report = TurnReport(
            turn=self._turns,
            winner=None,
            outcome="answered",
            ttft_secs=secs,
            ttfs_secs=secs,
            duration_secs=loop.time() - began,
            attempts=(),
            tier=self.tier,
            known_answer=source,
        )
        if not self._speculation_gate.is_speculating:
            await self._publish(report)
            return
        self._turn = held = HeldAnswer()

        async def publish() -> None:
            await self._publish(await held.report(report, began))

        self._late_reports.start(publish(), name=f"{self.name} reports a turn")

    async def _keep(self, question: Question, turn: Turn) -> None:
        await turn.wait_until_complete()
        if (answer := turn.whole_answer) is None:  # the caller spoke on
            return
        await self._answers.learn(question, answer)

    def _race(self, spec: TurnSpec, rejections: Rejections) -> ProviderRace[Any, ServiceAdapter]:
        self._pool.offer(self.get_llm_adapter().builtin_tools)
        members = self._pool.of_turn(
            asyncio.get_running_loop().time(),
            self._order.of(spec.choice.first),
            rejections,
            is_given=bool(spec.choice.first) or self.policy.has_given_order,
        )
        terms = dataclasses.replace(self._options.terms, has_first_token=not spec.whole_answers)
        return ProviderRace(self._stats, self.policy, spec, members, terms)

    async def _report_failure(self, failure: AllProvidersFailed) -> None:
        await self.cancel_ttfb_metrics()
        categories = {error.category for _, error in failure.causes}
        known = {category.value for category in ErrorCategory}
        only = categories.pop() if len(categories) == 1 else None
        category = ErrorCategory(only) if only in known else ErrorCategory.UNKNOWN
        await self.push_error(str(failure), exception=failure, category=category)

    def _end_speculation(self) -> None:
        """Withdraw a turn whose end was never confirmed."""
        if self._turn is not None:
            self._turn.end_speculation(is_confirmed=False)
            self._turn = None

    async def _publish_pending(self) -> None:
        self._end_speculation()
        if self.policy.losers == "cancel":
            await self._drains.close()
            await self._late_reports.join()

    async def _report_when_complete(self, turn: Turn, filler: FillerReport | None) -> None:
        try:
            await turn.wait_until_complete()
        finally:
            await self._report_turn(turn, filler)

    async def _report_turn(self, turn: Turn, filler: FillerReport | None) -> None:
        report = turn.report(filler)
        turn.trace.end(report)
        await self._publish(report)

    async def _publish(self, report: TurnReport) -> None:
        report = self._voice.add_to(report)
        self.events.publish(report)
        _log(f"{self}: {self.policy.name}", report)
        await self._call_event_handler("on_turn_report", report)
        if self.metrics_enabled:
            model = next((a.model for a in report.attempts if a.outcome == "won"), None)
            data = HedgeMetricsData(processor=self.name, model=model, report=report)
            await self.push_frame(MetricsFrame(data=[data]))

    async def drained(self, answer: DrainedAnswer) -> None:
        """Publish the answer of a loser that finished; see ``ResponseSink``."""
        self.events.publish(answer)
        await self._call_event_handler("on_loser_drained", answer)

    # ---- outside the pipeline

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Race a one-shot inference, such as a context summary; see ``LLMService.run_inference``.

        Raises:
            AllProvidersFailed: If no provider answered or, with ``admission="shed"``, none had
                room.
        """
        options = {
            "max_tokens": max_tokens,
            "system_instruction": system_instruction,
            "response_schema": response_schema,
        }
        spec = TurnSpec(
            "background",
            self.policy.commits_on("first_token"),
            estimate_tokens(context),
            has_tools=bool(context.tools),
            measures="whole_answer",
            stall_secs=WHOLE_ANSWER_SECS,
        )
        rejections = self._rejections["inferences"]
        race = self._race(spec, rejections)
        try:
            return await Inference(context, options).run(race)
        finally:
            await self._note_failures(rejections, race.errors, race.answered)

    # ---- before the first turn

    async def warm_up(self, context: LLMContext | None = None) -> None:
        """Prepare the session's first turn.

        Opens the connection to each provider, has a vLLM process the beginning of the conversation
        (system prompt and tools) at the lowest priority, and lets what knows answers prepare. Runs
        when the session starts, with the context of the aggregator in front of this service; call
        it if that is filled later. Returns when everything is done. A turn does not wait for it.

        Args:
            context: The conversation so far; None for that of the aggregator.
        """
        self._pool.offer(self.get_llm_adapter().builtin_tools)
        members = self._pool.warm(
            context or context_of(self),
            dataclasses.replace(self._options.terms, has_first_token=False),
        )
        await asyncio.gather(members, self._answers.prepare())

    # ---- after a turn

    async def _note_failures(
        self,
        rejections: Rejections,
        errors: Sequence[tuple[str, AttemptError]],
        answered: Iterable[str],
    ) -> None:
        """Record which providers come last, and report changes of breakers, once each."""
        for provider, error in errors:
            logger.debug(f"{self}: {provider}: {error.category}: {error.message}")
        now = asyncio.get_running_loop().time()
        for provider, error in rejections.end_turn(errors, answered, now):
            logger.warning(
                f"{self}: {provider} rejected a request ({error.category}) and comes last until it "
                "answers one. Check its key, model and settings"
            )
        for report in map(breaker_report, self._stats.take_changes()):
            level = "WARNING" if report.after == "open" else "INFO"
            logger.log(level, f"{report.provider} is {report.after}: {report.reason}")
            self.events.publish(report)
            await self._call_event_handler("on_breaker_changed", report)

    # ---- the response sink

    def _begin_answer(self) -> None:
        self._preparation.turn_began()
        self._timed_first_text = False
        self._pool.turn_began()

    async def say(
        self, text: str, *, at: float | None = None, frame: LLMTextFrame | None = None
    ) -> None:
        """Release a piece of the winner's text; see ``ResponseSink``."""
        if not self._timed_first_text:
            self._timed_first_text = True
            age_secs = 0.0 if at is None else asyncio.get_running_loop().time() - at
            wall_time = time.time() - age_secs
            await self.stop_ttfb_metrics(end_time=wall_time)
            await self.stop_ttfat_metrics(end_time=wall_time)
        if frame is None or self._filter_incomplete_user_turns:
            await self._push_llm_text(text)
        else:
            await self.push_frame(frame)

    async def retract(self, text: str) -> None:
        """Prevent the last text from being spoken; see ``ResponseSink``."""
        await self.push_frame(RetractTextFrame(text))

    async def run_tools(self, calls: ToolCalls, *, wall_time: float) -> None:
        """Run the winner's tools; see ``ResponseSink``."""
        await self.stop_ttfb_metrics(end_time=wall_time)
        await self.stop_ttfat_metrics(end_time=wall_time)
        if self._turn is not None and self._speculation_gate.is_speculating:
            # Pipecat withdraws it: no tool runs early.
            self._turn.end_speculation(is_confirmed=False)
        await self.run_function_calls(calls.calls)

    def attempt_sent(self, model: str | None, *, is_first: bool) -> None:
        """Report metrics under the first request's model until one wins; see ``ResponseSink``."""
        if is_first:
            self.committed(model)
        self._voice.attempt_sent()

    def committed(self, model: str | None) -> None:
        """Report metrics under the winner's model; see ``ResponseSink``."""
        self.set_core_metrics_data(MetricsData(processor=self.name, model=model or ""))

    async def pass_on(self, frame: Frame, *, wall_time: float) -> None:
        """Release any other frame of the winner's answer; see ``ResponseSink``."""
        await self.stop_ttfb_metrics(end_time=wall_time)
        await self.push_frame(frame)

    # ---- changes of the members

    async def _members_changed(self, provider: str | None = None) -> None:
        for rejections in self._rejections.values():
            rejections.forget(provider)

    async def _prompt_changed(self) -> None:
        await self._preparation.restart()


def _log(name: str, report: TurnReport) -> None:
    """Log a race in one line, and each connection that was opened during the turn."""
    ttft = "no token" if report.ttft_secs is None else f"TTFT {report.ttft_secs:.3f} s"
    attempts = ", ".join(f"{a.provider} {a.outcome}" for a in report.attempts) or "no attempt"
    logger.debug(f"{name}: turn {report.turn}: {report.outcome}, {ttft}: {attempts}")
    for attempt in report.attempts:
        stages = attempt.stages
        if stages is not None and stages.new_connection:
            secs = (stages.tcp_secs or 0.0) + (stages.tls_secs or 0.0)
            logger.debug(
                f"turn {report.turn}: a connection to {attempt.provider} was opened, {secs:.3f} s"
            )


def _answers_tool(context: LLMContext) -> bool:
    last = context.messages[-1] if context.messages else None
    return isinstance(last, dict) and last.get("role") == "tool"
