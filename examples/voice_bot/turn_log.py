"""One line for each race: what it did, and how long the caller waited to hear of it.

A turn in which a tool was called has several races; what the caller heard belongs to the last.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pipecat_hedge import AttemptReport, TurnReport
from pipecat_hedge.voice import TurnLatency

__all__ = ["LoggedTurn", "Playback", "logged"]


@dataclass(frozen=True, slots=True)
class Playback:
    """What the caller heard, and when: seconds from the turn's origin; None if it was not heard.

    Parameters:
        sound_secs: The first sound, which may be a filler's.
        filler_end_secs: The end of a filler that was spoken.
        answer_secs: The beginning of the answer.
        interrupted: Whether the caller spoke before the answer was complete.
    """

    sound_secs: float | None = None
    filler_end_secs: float | None = None
    answer_secs: float | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A race as it is logged and shown.

    Parameters:
        report: What the race did.
        voice_to_voice_secs: From the end of the caller's speech to the beginning of the answer;
            None if it was not heard or answered no speech.
        first_sound_secs: The same to the first sound, which may be a filler's.
        origin: What times are counted from, a ``TurnLatency.anchor``: ``user_silence`` (the
            caller's last sound), ``turn_end`` or, where nobody spoke, ``context``.
        asked_secs: When the race began, from the origin.
        heard: What the caller heard of it, if it is the turn's last race.
        continues: Whether it goes on with the turn of the race before, which called a tool.
    """

    report: TurnReport
    voice_to_voice_secs: float | None = None
    first_sound_secs: float | None = None
    origin: str = "context"
    asked_secs: float = 0.0
    playback: Playback | None = None
    continues: bool = False

    def line(self) -> str:
        """The turn in one line, without a word of what was said."""
        report = self.report
        voice_to_voice = _secs(self.voice_to_voice_secs)
        attempts = "; ".join(_attempt(attempt) for attempt in report.attempts) or "none"
        if report.filler is not None and report.filler.spoken_secs is not None:
            voice_to_voice += f" (a filler at {_secs(self.first_sound_secs)})"
        return (
            f"turn {report.turn}: {report.outcome}, winner {report.winner or 'none'}, "
            f"TTFT {_secs(report.ttft_secs)}, voice-to-voice {voice_to_voice}, attempts: {attempts}"
        )

    def message(self) -> dict[str, Any]:
        """The turn as the page gets it.

        ``asked_secs``, ``committed_secs``, what was heard, and the attempts' ``launched_secs``,
        ``first_token_secs`` and ``ended_secs`` are moments, all counted from ``origin``. TTFT and
        voice-to-voice are durations: from the moment when this race began, and from the caller's
        last sound.
        """
        report = self.report
        return {
            "type": "turn",
            "turn": report.turn,
            "continues": self.continues,
            "outcome": report.outcome,
            "winner": report.winner,
            "ttft_secs": report.ttft_secs,
            "voice_to_voice_secs": self.voice_to_voice_secs,
            "first_sound_secs": self.first_sound_secs,
            "origin": self.origin,
            "asked_secs": self.asked_secs,
            "committed_secs": self._moment(report.committed_secs),
            "commit_reason": report.commit_reason,
            "heard": None if self.playback is None else dataclasses.asdict(self.playback),
            "filler": None if report.filler is None else dataclasses.asdict(report.filler),
            "attempts": [self._attempt(attempt) for attempt in report.attempts],
        }

    def _attempt(self, attempt: AttemptReport) -> dict[str, Any]:
        launched, ttft = attempt.launched_secs, attempt.ttft_secs
        return {
            "provider": attempt.provider,
            "outcome": attempt.outcome,
            "launch_reason": attempt.launch_reason,
            "launched_secs": self._moment(launched),
            "first_token_secs": self._moment(None if ttft is None else launched + ttft),
            "ended_secs": self._moment(attempt.ended_secs),
            "ttft_secs": ttft,
            "error_category": attempt.error_category,
            "connecting_secs": _connecting_secs(attempt),
        }

    def _moment(self, since_asked: float | None) -> float | None:
        return None if since_asked is None else self.asked_secs + since_asked


def _connecting_secs(attempt: AttemptReport) -> float | None:
    """How long the caller waited for a connection to be opened; None if one was open."""
    stages = attempt.stages
    if stages is None or not stages.new_connection:
        return None
    return (stages.tcp_secs or 0.0) + (stages.tls_secs or 0.0)


def logged(turn: TurnLatency) -> list[LoggedTurn]:
    """A turn's races, the last one with what the caller heard.

    Args:
        turn: The turn, as the caller lived it.
    """
    races = [
        LoggedTurn(report, origin=turn.anchor, asked_secs=asked, continues=number > 0)
        for number, (report, asked) in enumerate(zip(turn.reports, turn.asked_secs, strict=True))
    ]
    if races:
        races[-1] = dataclasses.replace(
            races[-1],
            voice_to_voice_secs=turn.voice_to_voice_secs,
            first_sound_secs=turn.first_sound_secs if turn.anchor == "user_silence" else None,
            playback=Playback(
                turn.first_sound_secs,
                turn.filler_end_secs,
                turn.first_answer_secs,
                turn.interrupted,
            ),
        )
    return races


def _attempt(attempt: AttemptReport) -> str:
    text = f"{attempt.provider} {attempt.outcome}"
    if attempt.error_category is not None:
        text += f" ({attempt.error_category})"
    if attempt.launch_reason != "primary":
        text += f" ({attempt.launch_reason} at {attempt.launched_secs:.2f} s)"
    return text


def _secs(secs: float | None) -> str:
    return "none" if secs is None else f"{secs:.3f} s"
