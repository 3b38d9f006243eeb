"""One line for each race: what it did, and how long the caller waited to hear of it.

A turn in which a tool was called has several races; what the caller heard belongs to the last.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pipecat_hedge import AttemptReport, TurnReport
from pipecat_hedge.turn_latency import TurnLatency

__all__ = ["LoggedTurn", "logged"]


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn as it is logged and shown.

    Parameters:
        report: What the race did.
        voice_to_voice_secs: From the end of the caller's speech to the beginning of the answer;
            None if it was not heard or answered no speech.
        first_sound_secs: The same to the first sound, which may be a filler's.
    """

    report: TurnReport
    voice_to_voice_secs: float | None = None
    first_sound_secs: float | None = None

    def line(self) -> str:
        """The turn in one line, without a word of what was said."""
        report = self.report
        heard = _secs(self.voice_to_voice_secs)
        attempts = "; ".join(_attempt(attempt) for attempt in report.attempts) or "none"
        if report.filler is not None and report.filler.spoken_secs is not None:
            heard += f" (a filler at {_secs(self.first_sound_secs)})"
        return (
            f"turn {report.turn}: {report.outcome}, winner {report.winner or 'none'}, "
            f"TTFT {_secs(report.ttft_secs)}, voice-to-voice {heard}, attempts: {attempts}"
        )

    def message(self) -> dict[str, Any]:
        """The turn as the page gets it."""
        report = self.report
        return {
            "type": "turn",
            "turn": report.turn,
            "outcome": report.outcome,
            "winner": report.winner,
            "ttft_secs": report.ttft_secs,
            "duration_secs": report.duration_secs,
            "voice_to_voice_secs": self.voice_to_voice_secs,
            "first_sound_secs": self.first_sound_secs,
            "filler": None if report.filler is None else dataclasses.asdict(report.filler),
            "attempts": [
                {
                    "provider": attempt.provider,
                    "outcome": attempt.outcome,
                    "launch_reason": attempt.launch_reason,
                    "launched_secs": attempt.launched_secs,
                    "ttft_secs": attempt.ttft_secs,
                    "ended_secs": attempt.ended_secs,
                    "error_category": attempt.error_category,
                }
                for attempt in report.attempts
            ],
        }


def logged(turn: TurnLatency) -> list[LoggedTurn]:
    """A turn's races, the last one with what the caller heard.

    Args:
        turn: The turn, as the caller lived it.
    """
    *before, last = turn.reports or (None,)
    races = [LoggedTurn(report) for report in before if report is not None]
    if last is not None:
        sound = turn.first_sound_secs if turn.anchor == "user_silence" else None
        races.append(LoggedTurn(last, turn.voice_to_voice_secs, sound))
    return races


def _attempt(attempt: AttemptReport) -> str:
    told = f"{attempt.provider} {attempt.outcome}"
    if attempt.error_category is not None:
        told += f" ({attempt.error_category})"
    if attempt.launch_reason != "primary":
        told += f" ({attempt.launch_reason} at {attempt.launched_secs:.2f} s)"
    return told


def _secs(secs: float | None) -> str:
    return "none" if secs is None else f"{secs:.3f} s"
