"""Speaks a filler while an answer is late: a processor between the LLM and the TTS."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
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
    OutputAudioRawFrame,
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
from pipecat_hedge.voice.filler_playback import EARCON_RATE, FillerVoice, read_earcon
from pipecat_hedge.voice.filler_policy import FillerDecision, FillerPhrases, FillerRule

BEGIN_SECS = 0.05
"""How long after an answer its tools are announced: after their ``FunctionCallInProgressFrame``.

Behind the filler it would come after their cancellation, and the context would keep them as
running.
"""
MOST_DELAY_SECS = 5.0
"""How long after a filler was sent it may begin to play: a slow text-to-speech takes 1 to 3 s."""


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
        self._rule = FillerRule(after_secs, margin_secs, per_turn, every_secs, not_before_turn)
        self._phrases = FillerPhrases(phrases)
        self._earcon = None if earcon is None else read_earcon(earcon)
        self._stats = stats
        self._rng = rng or random.Random()
        self._scope = TaskScope()
        self._filling: asyncio.Task[None] | None = None
        self._llm: LLMService[Any] | None = None
        self._hedged: HedgedLLMService | None = None
        self._voice: FillerVoice | None = None
        self._backend = Backend("", measures="wait")
        self._turn = 0
        self._waiting: _Wait | None = None
        self._began_at = 0.0  # start of the current or latest wait
        self._has_answered = False
        self._called: dict[str, str] = {}
        self._running: set[str] = set()
        self._behind: dict[str, FunctionCallInProgressFrame] = {}
        self._after_tools = False
        self._fillers = 0
        self._last_at: float | None = None
        self._last_secs = 0.0
        self._is_speaking = False
        self._quiet_at = 0.0
        self._tools: dict[str, tuple[str, float]] = {}
        self._changed = asyncio.Event()
        self._report: FillerReport | None = None
        self._register_event_handler("on_filler")

    async def cleanup(self) -> None:
        """Cancel a pending filler."""
        await self._scope.close()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Track the turn and push every frame on."""
        await super().process_frame(frame, direction)
        if isinstance(frame, StartFrame):
            self._attach()
        if direction is FrameDirection.DOWNSTREAM:
            if isinstance(frame, LLMTextFrame):
                if self._waiting is not None and frame.text.strip() and not frame.skip_tts:
                    await self._answered()
            elif isinstance(frame, InterruptionFrame):
                await self._interrupted()
            elif isinstance(frame, LLMFullResponseEndFrame):
                await self._response_ended(is_spoken=not frame.skip_tts)
            elif isinstance(frame, FunctionCallsStartedFrame):
                # A system frame overtakes text: decide at the end of the response.
                self._called |= {c.tool_call_id: c.function_name for c in frame.function_calls}
                self._running.update(self._called)
            elif isinstance(frame, FunctionCallInProgressFrame):
                self._tools[frame.tool_call_id] = (frame.function_name, _now())
                if self._is_unheard:
                    self._behind[frame.tool_call_id] = frame
            elif isinstance(frame, FunctionCallResultFrame):
                if (called := self._tools.pop(frame.tool_call_id, None)) is not None:
                    self._learn(_tool(called[0]), _now() - called[1])
                self._tool_ended(frame.tool_call_id)
            elif isinstance(frame, FunctionCallCancelFrame):
                self._tools.pop(frame.tool_call_id, None)
                await self._tool_cancelled(frame)
                self._tool_ended(frame.tool_call_id)
            elif isinstance(frame, UserStartedSpeakingFrame):
                self._after_tools = False
            elif isinstance(frame, (EndFrame, CancelFrame)):
                await self._scope.close()
        elif isinstance(frame, (BotStartedSpeakingFrame, BotStoppedSpeakingFrame)):
            self._is_speaking = isinstance(frame, BotStartedSpeakingFrame)
            self._quiet_at = _now()
            self._changed.set()
        await self.push_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame) and direction is FrameDirection.DOWNSTREAM:
            await self._response_started(is_spoken=not frame.skip_tts)

    def _attach(self) -> None:
        """Find the LLM and the TTS; warn if the place in the pipeline makes fillers impossible."""
        llm = next((p for p in upstream_of(self) if isinstance(p, LLMService)), None)
        tts = next((p for p in downstream_of(self) if isinstance(p, TTSService)), None)
        if llm is None:
            logger.warning(f"{self} has no LLM service upstream: put it after the LLM")
        if tts is not None:
            self._voice = FillerVoice(tts)
        elif self._earcon is None:
            logger.warning(
                f"{self} has no text-to-speech downstream and no earcon, and stays silent: put it "
                "between the LLM and the text-to-speech"
            )
        self._llm = llm
        if isinstance(llm, HedgedLLMService):
            self._hedged = llm
            llm.report_fillers(lambda: self._report, self._changed.set)
        if self._stats is None:
            self._stats = shared_stats() if self._hedged is None else self._hedged.stats

    def _backend_now(self) -> Backend:
        """Return the key of what is learned; a vLLM's model is known after its first answer."""
        name, service = type(self._llm).__name__, self._llm
        if self._hedged is not None:
            name = "+".join(provider.name for provider in self._hedged.providers)
            service = self._hedged.providers[0].services[0]
        model = None if service is None else service.settings.model
        return Backend(name, model if isinstance(model, str) else None, measures="wait")

    # ---- the turn

    async def _response_started(self, *, is_spoken: bool) -> None:
        if not self._after_tools:
            self._turn += 1
            self._fillers = 0
            self._report = None
        self._has_answered, self._called = False, {}
        self._running.clear()
        self._backend = self._backend_now()
        self._stop_waiting()
        if is_spoken:
            await self._start_waiting(_Wait("slow", self._llm_wait, self._rule))

    async def _response_ended(self, *, is_spoken: bool) -> None:
        """Start to wait for the tools, if the response called any."""
        called, self._called = self._called, {}
        self._after_tools = bool(called)
        if called and is_spoken and not self._has_answered:
            self._learn(self._backend, _now() - self._began_at)
        self._stop_waiting()
        if not self._running.intersection(called) or self._has_answered or not is_spoken:
            return  # the tools have ended, or the answer announced them
        tools = (self._known(_tool(name)) for name in called.values())
        slowest = max(tools, key=lambda known: known.expected_remaining(0.0))
        # The caller has already waited. The LLM runs again only while the bot is silent, so a
        # filler must end before the tools do, or it delays the answer.
        at_once = replace(self._rule, after_secs=BEGIN_SECS)
        await self._start_waiting(_Wait("tool", lambda: slowest, at_once))

    @property
    def _is_unheard(self) -> bool:
        """Whether the latest filler may not have been played to its end."""
        if self._last_at is None:
            return False
        is_due = self._quiet_at < self._last_at and _now() - self._last_at < MOST_DELAY_SECS
        return self._is_speaking or is_due

    async def _tool_cancelled(self, frame: FunctionCallCancelFrame) -> None:
        """Cancel a tool in the context whose ``FunctionCallInProgressFrame`` is behind a filler.

        A system frame overtakes it: the context would ignore it, and keep the tool as running for
        the rest of the call. A result stays behind it.
        """
        begun = self._behind.get(frame.tool_call_id)
        if begun is None or not self._is_unheard:
            return
        await self.push_frame(
            FunctionCallResultFrame(
                begun.function_name,
                begun.tool_call_id,
                begun.arguments,
                result="CANCELLED",
                properties=FunctionCallResultProperties(run_llm=frame.run_llm),
            )
        )

    def _tool_ended(self, tool_call_id: str) -> None:
        """Stop to wait when no tool of the answer runs: its result may ask for no answer."""
        self._running.discard(tool_call_id)
        self._behind.pop(tool_call_id, None)
        if not self._running and self._waiting is not None and self._waiting.cause == "tool":
            self._stop_waiting()

    async def _answered(self) -> None:
        waited = _now() - self._began_at
        self._learn(self._backend, waited)
        spoken = self._report is not None and self._report.spoken_secs is not None
        if not spoken:
            self._add_reason(f"the answer started at {waited:.2f} s")
        self._has_answered = True
        self._after_tools = False
        self._stop_waiting()
        if spoken and self._voice is not None and await self._voice.cut():
            self._add_reason("but the answer started", was_cut=True)
            self._last_at = None

    async def _interrupted(self) -> None:
        if self._waiting is not None and not self._after_tools:
            self._learn(self._backend, _now() - self._began_at, censored=True)
        self._stop_waiting()
        self._after_tools = False

    # ---- the filler

    async def _start_waiting(self, wait: _Wait) -> None:
        """Decide, and speak now or when the filler is due."""
        self._waiting, self._began_at = wait, _now()
        self._changed.clear()
        due_at = await self._consider(wait)
        self._filling = self._scope.start(self._consider_again(wait, due_at), name="filler")

    def _stop_waiting(self) -> None:
        """End the wait; awaiting its task would hold a frame that an interruption then drops."""
        self._waiting = None
        if self._filling is not None:
            TaskScope.cancel(self._filling)
            self._filling = None

    async def _consider_again(self, wait: _Wait, due_at: float | None) -> None:
        """Decide again when the filler is due, and whenever another attempt is launched."""
        follows_race = self._hedged is not None and wait.cause == "slow"
        while (
            due_at is not None
            or self._is_speaking
            or (follows_race and self._fillers < wait.rule.per_turn)
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._changed.wait()
                self._changed.clear()
            due_at = await self._consider(wait)

    async def _consider(self, wait: _Wait) -> float | None:
        """Speak if a filler is due.

        Returns:
            When the next one is due, on the loop's clock; None if none is planned.
        """
        is_failing = self._hedged is not None and self._hedged.is_failing
        cause = "failing" if wait.cause == "slow" and is_failing else wait.cause
        phrase, decision = self._plan(cause, wait)
        if self._fillers == 0:
            self._report = FillerReport(cause, None, decision.reason)
        if decision.at_secs is not None and self._began_at + decision.at_secs <= _now() + 1e-9:
            await self._speak(cause, phrase, decision.reason)
            _, decision = self._plan(cause, wait)
        return None if decision.at_secs is None else self._began_at + decision.at_secs

    def _plan(self, cause: FillerCause, wait: _Wait) -> tuple[str | None, FillerDecision]:
        """Choose the phrase that can be spoken soonest; among equals the drawn one."""
        if self._earcon is None and self._voice is None:
            return None, FillerDecision(None, "no text-to-speech downstream")
        if self._is_speaking:
            return None, FillerDecision(None, "the bot is speaking")
        now, curve = _now(), wait.curve()
        # Never while the previous filler plays, whatever every_secs is.
        rule = replace(
            wait.rule,
            after_secs=wait.rule.after_secs + max(0.0, self._quiet_at - self._began_at),
            every_secs=max(wait.rule.every_secs, self._last_secs),
        )
        plans: list[tuple[str | None, FillerDecision]] = []
        for phrase in self._choices(cause):
            decision = rule.decide(
                curve,
                turn=self._turn,
                waited_secs=now - self._began_at,
                filler_secs=self._secs(phrase),
                fillers=self._fillers,
                since_filler_secs=None if self._last_at is None else now - self._last_at,
            )
            plans.append((phrase, decision))
        return min(
            plans,
            key=lambda plan: math.inf if plan[1].at_secs is None else plan[1].at_secs,
            default=(None, FillerDecision(None, "no phrase for this cause")),
        )

    async def _speak(self, cause: FillerCause, phrase: str | None, reason: str) -> None:
        now = _now()
        self._fillers += 1
        self._last_at, self._last_secs = now, self._secs(phrase)
        report = self._report = FillerReport(cause, now - self._began_at, reason)
        if self._earcon is not None:
            sound = self._earcon.astype("<i2").tobytes()
            await self.push_frame(OutputAudioRawFrame(sound, EARCON_RATE, 1))
        elif phrase is not None and self._voice is not None:
            self._phrases.mark_spoken(phrase)
            await self.push_frame(self._voice.frame(phrase))
        await self._call_event_handler("on_filler", report)

    def _choices(self, cause: FillerCause) -> Sequence[str | None]:
        return [None] if self._earcon is not None else self._phrases.choices(cause, self._rng)

    def _secs(self, phrase: str | None) -> float:
        if self._earcon is not None:
            return len(self._earcon) / EARCON_RATE
        return 0.0 if phrase is None else self._phrases.secs(phrase)

    def _add_reason(self, reason: str, *, was_cut: bool = False) -> None:
        if self._report is not None:
            reason = f"{self._report.reason}; {reason}"
            self._report = replace(self._report, was_cut=was_cut, reason=reason)

    # ---- wait statistics

    def _llm_wait(self) -> SurvivalCurve:
        """Return the wait of the running race, if known; else the learned wait of the service."""
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


@dataclass(frozen=True, slots=True)
class _Wait:
    """What the caller waits for: the cause, the distribution of such waits, and the rule."""

    cause: FillerCause
    curve: Callable[[], SurvivalCurve]
    rule: FillerRule


def _now() -> float:
    return asyncio.get_running_loop().time()


def _tool(name: str) -> Backend:
    return Backend(f"tool {name}", measures="wait")
