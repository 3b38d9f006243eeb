"""Speaks a filler while an answer is late: a processor between the LLM and the TTS."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EndFrame,
    Frame,
    FunctionCallCancelFrame,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    FunctionCallResultProperties,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    UserStartedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.services.tts_service import TTSService

from pipecat_hedge.policy.arguments import require, require_known
from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.race.events import FillerCause
from pipecat_hedge.race.reports import FillerReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.pipeline_search import downstream_of, upstream_of
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.voice.filler_playback import Earcon, FillerVoice
from pipecat_hedge.voice.filler_policy import FillerDecision, FillerPhrases, FillerRule

BEGIN_SECS = 0.05
"""How long after an answer its tools are announced: after their ``FunctionCallInProgressFrame``.

Behind the filler it would come after their cancellation, and the context would keep them as
running.
"""


class FillerProcessor(FrameProcessor):
    """Speaks a short phrase, or plays a sound, when an answer is late and will stay so.

    Place it between the LLM and the TTS, behind any LLM service. It learns the waits for the
    service's answers and for each tool (``ProviderStats``). Behind a ``HedgedLLMService`` it uses
    the running attempts, and the decision and its reason are in the ``TurnReport``. It speaks when
    the expected remaining wait is longer than the filler plus a margin; ``filler_policy.py`` has
    the rule. Fillers stay out of the context, and are withdrawn if the answer starts before they
    play.

    Event handlers available:

    - on_filler: Called with a ``FillerReport`` for each filler that is spoken.

    Example::

        Pipeline([..., user_aggregator, llm, FillerProcessor(), tts, transport.output(), ...])
    """

    def __init__(
        self,
        *,
        after_secs: float = 0.8,
        margin_secs: float = 0.4,
        per_turn: int = 1,
        every_secs: float = 15.0,
        not_before_turn: int = 2,
        phrases: Mapping[FillerCause, Sequence[str]] | None = None,
        earcon: str | Path | None = None,
        stats: ProviderStats | None = None,
        rng: random.Random | None = None,
        **kwargs: Any,
    ):
        """Configure the fillers.

        Args:
            after_secs: The earliest time of a filler, in seconds from the start of the wait; 0 or
                more.
            margin_secs: The least time by which the remaining wait must exceed the filler, in
                seconds.
            per_turn: The most fillers in a turn; at least 1.
            every_secs: The least time between two fillers of a call, in seconds.
            not_before_turn: The first turn that may have one, from 1; a greeting is a turn.
            phrases: Phrases by cause: ``slow``, ``tool`` (a tool runs), ``failing`` (every attempt
                so far failed). Defaults to a few English phrases. A cause without phrases has no
                filler.
            earcon: An audio file to play instead of phrases.
            stats: The wait statistics. Defaults to those of the hedged service upstream, or the
                process's own.
            rng: Draws the phrases.
            **kwargs: Further arguments of ``FrameProcessor``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        require_known(kwargs, owner=FillerProcessor, base=FrameProcessor)
        require("stats", stats, ProviderStats, "write ProviderStats()")
        require("rng", rng, random.Random, "write random.Random(1)")
        super().__init__(**kwargs)
        # What changes: the turn, what is waited for in it, the running tools, and until when the
        # bot speaks.
        self._rule = FillerRule(after_secs, margin_secs, per_turn, every_secs, not_before_turn)
        self._phrases = FillerPhrases(phrases, rng or random.Random())
        self._voice: FillerVoice | Earcon | None = None if earcon is None else Earcon(earcon)
        self._stats = stats
        self._llm: LLMService[Any] | None = None
        self._hedged: HedgedLLMService | None = None
        self._turn = _Turn()
        self._wait: _Wait | None = None
        self._scope = TaskScope()
        self._filling: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._calls: dict[str, _Call] = {}
        self._last_at = -math.inf
        self._quiet_at = 0.0
        """Until when the bot speaks, or a filler may begin to; infinite while it is heard."""
        self._register_event_handler("on_filler")

    async def cleanup(self) -> None:
        """Cancel a pending filler."""
        await self._scope.close()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Track the turn and push every frame on."""
        await super().process_frame(frame, direction)
        match frame:
            case StartFrame():
                self._attach()
            case LLMTextFrame():
                if self._wait is not None and frame.text.strip() and not frame.skip_tts:
                    await self._answered(self._wait)
            case LLMFullResponseEndFrame():
                self._response_ended()
            case FunctionCallsStartedFrame():
                # A system frame overtakes text: decide at the end of the response.
                for call in frame.function_calls:
                    self._calls[call.tool_call_id] = _Call(call.function_name, _now())
                    self._turn.called.add(call.tool_call_id)
            case FunctionCallInProgressFrame():
                behind = frame if _now() < self._quiet_at else None
                self._calls[frame.tool_call_id] = _Call(frame.function_name, _now(), behind)
            case FunctionCallResultFrame() | FunctionCallCancelFrame():
                await self._tool_ended(frame)
            case InterruptionFrame() | EndFrame():
                self._stop_waiting()
                self._turn.called.clear()
                if self._quiet_at < math.inf:  # what has not begun to play is dropped
                    self._quiet_at = _now()
            case UserStartedSpeakingFrame():  # may come without an interruption
                self._turn.called.clear()
            case BotStartedSpeakingFrame() | BotStoppedSpeakingFrame():
                is_speaking = isinstance(frame, BotStartedSpeakingFrame)
                self._quiet_at = math.inf if is_speaking else _now()
                self._changed.set()
            case _:
                pass
        await self.push_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame):  # a filler comes behind it
            self._response_started(is_spoken=not frame.skip_tts)

    def _attach(self) -> None:
        """Find the LLM and the TTS; warn if the place in the pipeline makes fillers impossible."""
        llm = next((p for p in upstream_of(self) if isinstance(p, LLMService)), None)
        tts = next((p for p in downstream_of(self) if isinstance(p, TTSService)), None)
        if self._voice is None and tts is not None:
            self._voice = FillerVoice(tts, self._phrases)
        if llm is None or self._voice is None:
            logger.warning(
                f"{self} needs an LLM service upstream, and a text-to-speech downstream or "
                "an earcon: put it between the LLM and the text-to-speech"
            )
        self._llm = llm
        if isinstance(llm, HedgedLLMService):
            self._hedged = llm
            llm.report_fillers(lambda: self._turn.report, self._changed.set)
        if self._stats is None:
            self._stats = shared_stats() if self._hedged is None else self._hedged.stats

    # ---- the turn

    def _response_started(self, *, is_spoken: bool) -> None:
        if not self._turn.called:
            self._turn = _Turn(self._turn.number + 1)
        self._turn.called.clear()
        self._stop_waiting()
        if is_spoken:
            self._start_waiting()

    def _response_ended(self) -> None:
        """Start to wait for the tools, if the response called any and said nothing."""
        wait = self._wait
        self._stop_waiting()
        if wait is not None:
            # Without tools it failed, or the caller has interrupted it.
            self._learn(self._backend, _now() - wait.began_at, censored=not self._turn.called)
            if running := self._turn.called & self._calls.keys():
                self._start_waiting(*(self._calls[call].name for call in running))

    async def _tool_ended(self, frame: FunctionCallResultFrame | FunctionCallCancelFrame) -> None:
        """Stop to wait when no tool of the answer runs: its result may ask for no answer."""
        call = self._calls.pop(frame.tool_call_id, None)
        if isinstance(frame, FunctionCallCancelFrame):
            if call is not None and call.behind is not None and _now() < self._quiet_at:
                # The cancellation overtakes it, and the context would keep the tool as running for
                # the rest of the call. A result stays behind it.
                await self.push_frame(_cancelled(call.behind, run_llm=frame.run_llm))
        elif call is not None:
            self._learn(_tool(call.name), _now() - call.began_at)
        is_for_tools = self._wait is not None and self._wait.tools
        if is_for_tools and not self._turn.called & self._calls.keys():
            self._stop_waiting()

    async def _answered(self, wait: _Wait) -> None:
        waited = _now() - wait.began_at
        self._learn(self._backend, waited)
        self._stop_waiting()
        if self._turn.fillers == 0:
            self._turn.add_reason(f"the answer started at {waited:.2f} s")
        elif self._voice is not None and await self._voice.cut():
            self._turn.add_reason("but the answer started", was_cut=True)
            self._last_at = -math.inf

    # ---- the filler

    def _start_waiting(self, *tools: str) -> None:
        self._wait = wait = _Wait(_now(), tools)
        self._filling = self._scope.start(self._fill(wait, self._plan(wait)), name="filler")

    def _stop_waiting(self) -> None:
        """End the wait; awaiting its task would hold a frame that an interruption then drops."""
        self._wait = None
        if self._filling is not None:
            TaskScope.cancel(self._filling)

    async def _fill(self, wait: _Wait, plan: _Plan) -> None:
        """Play fillers; plan again when an attempt is sent or the bot begins or ends to speak."""
        while True:
            if plan.at is not None and plan.at <= _now() + 1e-9:
                await self._play(wait, plan)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(plan.at):
                        await self._changed.wait()
                    self._changed.clear()
            plan = self._plan(wait)

    def _plan(self, wait: _Wait) -> _Plan:
        """Choose the filler that can be played soonest; among equals the drawn one."""
        cause: FillerCause = "tool" if wait.tools else "slow"
        if cause == "slow" and self._hedged is not None and self._hedged.is_failing:
            cause = "failing"
        rule = replace(self._rule, after_secs=BEGIN_SECS) if wait.tools else self._rule
        now = _now()
        decide = partial(
            rule.decide,
            self._expected(wait),
            turn=self._turn.number,
            waited_secs=now - wait.began_at,
            quiet_secs=self._quiet_at - wait.began_at,
            fillers=self._turn.fillers,
            since_filler_secs=now - self._last_at,
        )
        choices = [] if self._voice is None else self._voice.choices(cause)
        why = "no text-to-speech downstream" if self._voice is None else "no phrase for this cause"
        decision, text, secs = min(
            [(decide(filler_secs=secs), text, secs) for text, secs in choices],
            key=lambda plan: math.inf if plan[0].at_secs is None else plan[0].at_secs,
            default=(FillerDecision(None, why), "", 0.0),
        )
        report = FillerReport(cause, None, decision.reason)
        if self._turn.fillers == 0:
            self._turn.report = report
        at = None if decision.at_secs is None else wait.began_at + decision.at_secs
        return _Plan(at, text, secs, report)

    async def _play(self, wait: _Wait, plan: _Plan) -> None:
        assert self._voice is not None
        now, self._turn.fillers = _now(), self._turn.fillers + 1
        self._last_at = now
        self._quiet_at = now + plan.secs + self._voice.most_delay_secs
        report = replace(plan.report, spoken_secs=now - wait.began_at)
        self._turn.report = report
        await self.push_frame(self._voice.frame(plan.text))
        await self._call_event_handler("on_filler", report)

    # ---- wait statistics

    @property
    def _backend(self) -> Backend:
        """The key of what is learned; a vLLM's model is known after its first answer."""
        name, service = type(self._llm).__name__, self._llm
        if self._hedged is not None:
            name = "+".join(provider.name for provider in self._hedged.providers)
            service = self._hedged.providers[0].services[0]
        model = None if service is None else service.settings.model
        return Backend(name, model if isinstance(model, str) else None, measures="wait")

    def _expected(self, wait: _Wait) -> SurvivalCurve:
        """Return the wait for the slowest tool, of the running race, or as the service is known."""
        if wait.tools:
            # The LLM runs again only while the bot is silent, so a filler must end before the
            # tools do, or it delays the answer.
            tools = [self._known(_tool(name)) for name in wait.tools]
            return max(tools, key=lambda known: known.expected_remaining(0.0))
        race_wait = None if self._hedged is None else self._hedged.wait
        return self._known(self._backend) if race_wait is None else race_wait

    def _known(self, backend: Backend) -> SurvivalCurve:
        assert self._stats is not None
        return self._stats.estimates([backend], None, by_sentence=False)[
            backend.provider
        ].first_token

    def _learn(self, backend: Backend, waited_secs: float, *, censored: bool = False) -> None:
        assert self._stats is not None
        if self._hedged is not None and self._hedged.is_simulated:
            self._stats.mark_simulated(backend)
        self._stats.record_wait(backend, waited_secs, None, censored=censored)


@dataclass(slots=True)
class _Turn:
    """A turn: its number, its fillers and the report of the latest, and the tools it called last.

    The answer after tools belongs to the same turn.
    """

    number: int = 0
    fillers: int = 0
    report: FillerReport | None = None
    called: set[str] = field(default_factory=set[str])

    def add_reason(self, reason: str, *, was_cut: bool = False) -> None:
        if self.report is not None:
            reason = f"{self.report.reason}; {reason}"
            self.report = replace(self.report, was_cut=was_cut, reason=reason)


@dataclass(frozen=True, slots=True)
class _Wait:
    """What the caller waits for: the tools of these names, or the LLM."""

    began_at: float
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """A filler, and when it is due on the loop's clock; None is never."""

    at: float | None
    text: str
    secs: float
    report: FillerReport


@dataclass(frozen=True, slots=True)
class _Call:
    """A running tool, and its frame if that is behind speech."""

    name: str
    began_at: float
    behind: FunctionCallInProgressFrame | None = None


def _cancelled(begun: FunctionCallInProgressFrame, *, run_llm: bool) -> FunctionCallResultFrame:
    return FunctionCallResultFrame(
        begun.function_name,
        begun.tool_call_id,
        begun.arguments,
        result="CANCELLED",
        properties=FunctionCallResultProperties(run_llm=run_llm),
    )


def _now() -> float:
    return asyncio.get_running_loop().time()


def _tool(name: str) -> Backend:
    return Backend(f"tool {name}", measures="wait")
