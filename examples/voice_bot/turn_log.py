"""One line for each turn: what the race did, and how long the caller waited to hear it.

The race reports a turn when its answer is complete; Pipecat's latency observer measures it when
the bot is first heard. Either can be first: a long answer is heard before it is complete, a short
one is complete before it is heard. Some turns are never heard (interrupted, failed, or a tool call
without words), and nothing says so. So a turn that may still be heard waits for its latency until
the next turn or the end of the call, and one that cannot be heard any more waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipecat_hedge import AttemptReport, TurnReport

__all__ = ["LoggedTurn", "TurnLog"]


@dataclass(frozen=True, slots=True)
class LoggedTurn:
    """A turn as it is logged and shown.

    Parameters:
        report: What the race did.
        voice_to_voice_secs: From the end of the caller's speech to the beginning of the bot's, as
            Pipecat's observer measures it; None if it was not heard or answered no speech.
    """

    report: TurnReport
    voice_to_voice_secs: float | None

    def line(self) -> str:
        """The turn in one line, without a word of what was said."""
        report = self.report
        heard = _secs(self.voice_to_voice_secs)
        attempts = "; ".join(_attempt(attempt) for attempt in report.attempts) or "none"
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


class TurnLog:
    """Joins the reports and the latencies of one call. What it returns is to be logged now."""

    def __init__(self) -> None:
        self._unheard: TurnReport | None = None
        self._heard = False
        self._heard_secs: float | None = None

    def reported(self, report: TurnReport) -> list[LoggedTurn]:
        """Take the report of a turn.

        Args:
            report: What the race did.
        """
        finished = self.close()
        spoke = report.outcome == "answered" or report.ttfs_secs is not None
        if spoke and not self._heard and report.outcome not in ("interrupted", "failed"):
            self._unheard = report
        else:
            finished.append(LoggedTurn(report, self._heard_secs))
            self._heard, self._heard_secs = False, None
        return finished

    def heard(self, voice_to_voice_secs: float | None) -> list[LoggedTurn]:
        """Take note that the bot begins to speak.

        Args:
            voice_to_voice_secs: Since the caller fell silent; None if it answers no speech, as a
                greeting.
        """
        if self._unheard is None:
            self._heard, self._heard_secs = True, voice_to_voice_secs
            return []
        report, self._unheard = self._unheard, None
        return [LoggedTurn(report, voice_to_voice_secs)]

    def close(self) -> list[LoggedTurn]:
        """Give up waiting: the turn that has not been heard will not be any more."""
        report, self._unheard = self._unheard, None
        return [] if report is None else [LoggedTurn(report, None)]


def _attempt(attempt: AttemptReport) -> str:
    told = f"{attempt.provider} {attempt.outcome}"
    if attempt.error_category is not None:
        told += f" ({attempt.error_category})"
    if attempt.launch_reason != "primary":
        told += f" ({attempt.launch_reason} at {attempt.launched_secs:.2f} s)"
    return told


def _secs(secs: float | None) -> str:
    return "none" if secs is None else f"{secs:.3f} s"
