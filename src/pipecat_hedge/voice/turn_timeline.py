"""The moments of a turn, and the record they make: ``TurnLatency``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pipecat.observers.user_bot_latency_observer import LatencyBreakdown, MeasuredFrom

from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.voice.awaited_tools import AwaitedTools

__all__ = ["Timeline", "TurnLatency"]

Anchor: TypeAlias = Literal["user_silence", "turn_end", "context"]


@dataclass(frozen=True, slots=True)
class TurnLatency:
    """One turn of a call, from the caller's silence to the bot's answer.

    Times are seconds from the anchor; None where it did not happen.

    Parameters:
        turn: The turn's number in this call, from 1.
        at: When the anchor was, in seconds since the epoch.
        anchor: What is counted from: ``user_silence`` (the last sound of the caller), ``turn_end``
            (the end of the turn, where there is no local voice activity detector), or ``context``
            (nobody spoke, as before a greeting, or nobody's words were what the LLM was asked
            about, as after a cough; see ``caller_turn.py``).
        turn_end_secs: The caller's turn was over.
        context_secs: The conversation was handed to the LLM.
        first_token_secs: Its first usable token was there.
        first_sentence_secs: Its first speakable sentence was there.
        first_tts_audio_secs: The first audio of the answer was synthesized.
        first_sound_secs: The bot was first heard, be it with a filler or another line of its own.
        filler_end_secs: The filler, or another such line, had been heard out before the answer.
        first_answer_secs: The answer was first heard; from the caller's silence this is the
            voice-to-voice latency, less what the network takes. The answer is what the LLM says,
            the words it says before it calls a tool included ("Let me look."). A line that the bot
            says itself (``TTSSpeakFrame``) is none, whether it is remembered or not.
        interrupted: Whether the caller spoke before it was complete.
        reports: What each race of the turn did; several if tools were called, none without a
            ``HedgedLLMService``.
        asked_secs: When each race of ``reports`` began: a race's own times count from there.
        contributions: What Pipecat's ``UserBotLatencyObserver`` names of the time to the first
            sound, in order: ``key``, ``label``, ``owner``, ``secs``.
        ended_secs: When the turn was over: no more of it was waited for.
        may_wait: Whether the LLM decides if the caller has finished (Pipecat's
            ``filter_incomplete_user_turns``): then a turn without an answer may have been none.
    """

    turn: int
    at: float
    anchor: Anchor
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
        """From the caller's silence to the answer; None if it was not heard or nobody spoke."""
        return self.first_answer_secs if self.anchor == "user_silence" else None


class Timeline:
    """The moments of the turn that is going on, on the pipeline's clock.

    Attributes:
        turn: The turn's number in this call, from 1.
        is_reply: Whether the caller has spoken, and the LLM was asked about it.
        is_answering: Whether what comes out is the answer.
        is_responding: Whether the LLM has begun and not ended.
        is_racing: Whether a race is to be reported.
        may_wait: Whether the LLM decides if the caller has finished.
        has_words: Whether the LLM has said anything.
        had_words: Whether it had before it was asked last: what it said first is what counts.
        tools: Those that the turn waits for.
    """

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.silence: float | None = None
        self.turn_end: float | None = None
        self.context: float | None = None
        self.requested: float | None = None
        self.token: float | None = None
        self.sentence: float | None = None
        self.tts_audio: float | None = None
        self.sound: float | None = None
        self.filler_end: float | None = None
        self.answer: float | None = None
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
        """What is counted from, and when it was; None before the turn has any."""
        if self.silence is not None:
            return "user_silence", self.silence
        if self.turn_end is not None:
            return "turn_end", self.turn_end
        return None if self.context is None else ("context", self.context)

    @property
    def is_answered(self) -> bool:
        """Whether the answer has been heard, and none is to come that belongs to it."""
        return self.answer is not None and not self.tools

    def is_over(self, *, bot_speaks: bool) -> bool:
        """Whether the answer has been heard, and all that is to be told of it is known.

        Args:
            bot_speaks: Whether the bot is heard now. If no race has told of an answer, what is
                heard is waited for.
        """
        if not self.is_answered or self.is_responding or self.is_racing:
            return False
        has_won = bool(self.reports) and self.reports[-1].outcome != "answered_with_tools"
        return has_won or not bot_speaks

    def is_under_way(self, *, bot_speaks: bool) -> bool:
        """Whether there is anything that could be interrupted.

        Args:
            bot_speaks: Whether the bot is heard now.
        """
        is_pending = self.is_responding or self.is_racing or bool(self.tools)
        return is_pending or bot_speaks or (self.has_text and self.answer is None)

    def take_report(self, report: TurnReport) -> None:
        """Take a race's own times, which are exact: text may have been kept back for a sentence."""
        if self.requested is None:
            return
        self.is_racing = False
        self.reports.append(report)
        self.races.append(self.requested)
        if report.ttft_secs is not None and not self.had_text:
            self.token = self.requested + report.ttft_secs
            if report.ttfs_secs is not None:
                self.sentence = self.requested + report.ttfs_secs

    def take_breakdown(self, breakdown: LatencyBreakdown | None) -> None:
        """Take over what Pipecat names of the time, if it counts from where the turn does.

        Args:
            breakdown: Up to the first sound; None if there is none.
        """
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
        """The record of the turn.

        Args:
            now: When it is over, in seconds.
            interrupted: Whether the caller spoke before it was complete.
        """
        if (found := self.anchor) is None:
            return None
        anchor, began = found

        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - began

        return TurnLatency(
            turn=self.turn,
            at=time.time() - (now - began),
            anchor=anchor,
            turn_end_secs=since(self.turn_end),
            context_secs=since(self.context),
            first_token_secs=since(self.token),
            first_sentence_secs=since(self.sentence),
            first_tts_audio_secs=since(self.tts_audio),
            first_sound_secs=since(self.sound),
            filler_end_secs=since(self.filler_end),
            first_answer_secs=since(self.answer),
            interrupted=interrupted,
            reports=tuple(self.reports),
            asked_secs=tuple(requested - began for requested in self.races),
            contributions=self.contributions,
            ended_secs=since(now),
            may_wait=self.may_wait,
        )
