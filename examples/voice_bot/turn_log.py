"""The log line and the page's message of each race.

A turn with a tool call has several races; its audio belongs to the last one.
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
    """When the caller heard the bot: seconds from the turn's origin; None if it was not audible.

    Parameters:
        sound_secs: The first sound, which may be a filler's.
        filler_end_secs: The end of a filler.
        answer_secs: The beginning of the answer.
        interrupted: Whether the caller interrupted the answer.
    """

    sound_secs: float | None = None
    filler_end_secs: float | None = None
    answer_secs: float | None = None
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A race as it is logged and shown.

    Parameters:
        report: The race's report.
        voice_to_voice_secs: From the end of the caller's speech to the beginning of the answer;
            None if it was not audible or answered no speech.
        first_sound_secs: The same to the first sound, which may be a filler's.
        origin: The origin of all times, a ``TurnLatency.anchor``: ``user_silence`` (the caller's
            last sound), ``turn_end`` or, without caller speech, ``context``.
        asked_secs: The start of the race, from the origin.
        playback: When the caller heard the bot, if this is the turn's last race.
        continues: Whether it continues the turn of the previous race, which called a tool.
    """

    report: TurnReport
    voice_to_voice_secs: float | None = None
    first_sound_secs: float | None = None
    origin: str = "context"
    asked_secs: float = 0.0
    playback: Playback | None = None
    continues: bool = False

    def line(self) -> str:
        """Format the race in one line, without conversation text."""
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
        """Return the page's message.

        ``asked_secs``, ``committed_secs``, the values in ``heard``, and the attempts'
        ``launched_secs``, ``first_token_secs`` and ``ended_secs`` are times from ``origin``. TTFT
        and voice-to-voice are durations, from the start of this race and from the caller's last
        sound.
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
            "transcripts": [dataclasses.asdict(each) for each in report.transcripts],
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
    """Return the time to open a connection; None if one was open."""
    stages = attempt.stages
    if stages is None or not stages.new_connection:
        return None
    return (stages.tcp_secs or 0.0) + (stages.tls_secs or 0.0)


def logged(turn: TurnLatency) -> list[LoggedTurn]:
    """Return a turn's races, the last one with its playback."""
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
