"""The moments of a turn, and their record: ``TurnLatency``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pipecat.observers.user_bot_latency_observer import LatencyBreakdown, MeasuredFrom

from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.voice.awaited_tools import AwaitedTools

Anchor: TypeAlias = Literal["user_silence", "turn_end", "context"]
Moment: TypeAlias = (
    Literal["transcript", "turn_end", "context", "first_token", "first_sentence"]
    | Literal["first_tts_audio", "first_sound", "filler_end", "first_answer"]
)
"""A moment of a turn; its time is the field ``..._secs`` of ``TurnLatency``."""


@dataclass(frozen=True, slots=True)
class TurnLatency:
    """One turn of a call, from the caller's silence to the bot's answer.

    Times are seconds from the anchor; None if the moment did not occur.

    Parameters:
        turn: The turn's number in this call, from 1.
        at: The anchor's time, in seconds since the epoch.
        anchor: The origin of all times: ``user_silence`` (the caller's last sound), ``turn_end``
            (the end of the turn, without a local VAD), or ``context`` (the LLM call, if the
            response answers no caller speech, as before a greeting or after a cough; see
            ``caller_turn.py``).
        transcript_secs: The last transcript before the LLM call.
        turn_end_secs: The end of the caller's turn.
        context_secs: The LLM call.
        first_token_secs: The first usable token.
        first_sentence_secs: The first speakable sentence.
        first_tts_audio_secs: The first synthesized audio of the answer.
        first_sound_secs: The bot's first audible sound, which may be a filler or another line.
        filler_end_secs: The end of a filler or other line that played before the answer.
        first_answer_secs: The first audible sound of the answer; from ``user_silence`` this is the
            voice-to-voice latency without the network. Text before a tool call ("Let me look.") is
            answer; a ``TTSSpeakFrame`` of the bot is not, even if it enters the context.
        interrupted: Whether the caller interrupted the turn.
        reports: The report of each race; several with tool calls, none without a
            ``HedgedLLMService``.
        asked_secs: The start of each race in ``reports``; a race's own times count from there.
        contributions: The parts of the time to the first sound by Pipecat's
            ``UserBotLatencyObserver``, in order: ``key``, ``label``, ``owner``, ``secs``.
        ended_secs: The end of the turn: the wait for the answer stopped.
        may_wait: Whether the LLM decides if the caller has finished (Pipecat's
            ``filter_incomplete_user_turns``): then a turn without an answer may be no turn.
    """

    turn: int
    at: float
    anchor: Anchor
    transcript_secs: float | None = None
    turn_end_secs: float | None = None
    context_secs: float | None = None
    first_token_secs: float | None = None
    first_sentence_secs: float | None = None
    first_tts_audio_secs: float | None = None
    first_sound_secs: float | None = None
    filler_end_secs: float | None = None
    first_answer_secs: float | None = None
    interrupted: bool = False
    reports: tuple[TurnReport, ...] = ()
    asked_secs: tuple[float, ...] = ()
    contributions: tuple[dict[str, Any], ...] = ()
    ended_secs: float | None = None
    may_wait: bool = False

    @property
    def voice_to_voice_secs(self) -> float | None:
        """From the caller's silence to the answer; None without caller speech or audible answer."""
        return self.first_answer_secs if self.anchor == "user_silence" else None


class Timeline:
    """The moments of the current turn, on the pipeline's clock.

    Attributes:
        turn: The turn's number in this call, from 1.
        moments: The moments so far.
        silence: The caller's last sound.
        requested: The start of the latest LLM response.
        is_reply: Whether the response answers caller speech.
        is_answering: Whether the audio that plays is the answer.
        is_responding: Whether the LLM response has started and not ended.
        is_racing: Whether a race has not been reported yet.
        may_wait: Whether the LLM decides if the caller has finished.
        has_text: Whether the LLM has produced text.
        had_text: Whether it had before the latest LLM call: the first text counts.
        tools: The tool calls that the turn waits for.
    """

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.moments: dict[Moment, float] = {}
        self.silence: float | None = None
        self.requested = 0.0
        self.is_reply = False
        self.is_answering = False
        self.is_responding = False
        self.is_racing = self.may_wait = False
        self.has_text = False
        self.had_text = False
        self.tools = AwaitedTools()
        self.reports: list[TurnReport] = []
        self.races: list[float] = []
        self.contributions: tuple[dict[str, Any], ...] = ()

    @property
    def anchor(self) -> tuple[Anchor, float] | None:
        """The origin of times and its time; None before the turn has one."""
        if self.silence is not None:
            return "user_silence", self.silence
        anchors: tuple[Literal["turn_end", "context"], ...] = ("turn_end", "context")
        return next(((name, self.moments[name]) for name in anchors if name in self.moments), None)

    @property
    def is_begun(self) -> bool:
        """Whether the LLM was called."""
        return "context" in self.moments

    @property
    def is_answered(self) -> bool:
        """Whether the answer is audible and no further part of it is awaited."""
        return "first_answer" in self.moments and not self.tools

    def is_over(self, *, bot_speaks: bool) -> bool:
        """Whether the answer is audible and everything to report is known.

        Args:
            bot_speaks: Whether the bot is audible now. Without a race that reports an answer, the
                turn lasts until the bot is silent.
        """
        if not self.is_answered or self.is_responding or self.is_racing:
            return False
        has_won = bool(self.reports) and self.reports[-1].outcome != "answered_with_tools"
        return has_won or not bot_speaks

    def is_under_way(self, *, bot_speaks: bool) -> bool:
        """Whether there is anything to interrupt.

        Args:
            bot_speaks: Whether the bot is audible now.
        """
        is_pending = self.is_responding or self.is_racing or bool(self.tools)
        return is_pending or bot_speaks or (self.has_text and "first_answer" not in self.moments)

    def mark(self, moment: Moment, now: float) -> None:
        """Record a moment when it first occurs."""
        self.moments.setdefault(moment, now)

    def take_report(self, report: TurnReport) -> None:
        """Take the race's own times: they are exact, while text may be held back for a sentence."""
        self.is_racing = False
        self.reports.append(report)
        self.races.append(self.requested)
        if report.ttft_secs is not None and not self.had_text:
            self.moments["first_token"] = self.requested + report.ttft_secs
            if report.ttfs_secs is not None:
                self.moments["first_sentence"] = self.requested + report.ttfs_secs

    def take_breakdown(self, breakdown: LatencyBreakdown | None) -> None:
        """Take Pipecat's breakdown up to the first sound, if it has the same origin as the turn."""
        if breakdown is None or self.anchor is None:
            return
        from_silence = breakdown.measured_from is MeasuredFrom.USER_SILENCE
        if from_silence and self.anchor[0] != "user_silence":
            return
        self.contributions = tuple(
            {"key": c.key, "label": c.label, "owner": c.owner, "secs": c.duration_secs}
            for c in breakdown.contributions
        )

    def to_record(self, now: float, *, interrupted: bool) -> TurnLatency | None:
        """Return the turn's record.

        Args:
            now: The end of the turn, in seconds.
            interrupted: Whether the caller interrupted the turn.
        """
        if (found := self.anchor) is None:
            return None
        anchor, began = found

        times: dict[str, Any] = {f"{name}_secs": at - began for name, at in self.moments.items()}
        return TurnLatency(
            turn=self.turn,
            at=time.time() - (now - began),
            anchor=anchor,
            interrupted=interrupted,
            reports=tuple(self.reports),
            asked_secs=tuple(requested - began for requested in self.races),
            contributions=self.contributions,
            ended_secs=now - began,
            may_wait=self.may_wait,
            **times,
        )
