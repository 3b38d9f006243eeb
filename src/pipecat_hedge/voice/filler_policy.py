"""Decides whether and when to speak a filler. Pure: a survival curve in, a time and a reason out.

A filler is due at the first time t >= ``after_secs`` at which

- the expected remaining wait E[T - t | T > t] is longer than the filler plus a margin, or the
  filler would still play when the answer starts; and
- at most half of such answers would start while it plays. The mean alone is not enough: a tail of
  thirty seconds raises it even where nine of ten answers are about to start.

E[T - t | T > t] rises only at steps of the curve, so the first such time is ``after_secs``, a step,
or one filler's length before a step. A wait of twice the longest typical one is treated as one of
unknown length, and a filler is due.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipecat_hedge.policy.arguments import require_number
from pipecat_hedge.providers.survival import SurvivalCurve
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import FillerCause

MAX_ANSWERED_SHARE = 0.5
"""The share of answers that may start while the filler plays."""
RARE_SHARE = 0.002
"""The share of answers that exceeds the longest typical time."""
HANG_FACTOR = 2.0
"""A wait of this many times the longest typical time is of unknown length."""
WORDS_PER_SEC = 2.6
"""Speech rate of fillers: about 155 words per minute."""
LEAST_SECS = 0.4
"""The shortest duration of a filler."""


@dataclass(frozen=True, slots=True)
class FillerDecision:
    """Whether and when to speak.

    Parameters:
        at_secs: The time, in seconds from the beginning of the wait; None is never in this turn.
        reason: A reason for people to read.
    """

    at_secs: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class FillerRule:
    """When a filler is spoken.

    Parameters:
        after_secs: The earliest time, in seconds from the start of the wait; 0 or more.
        margin_secs: The least excess of the remaining wait over the filler, in seconds.
        per_turn: The most fillers in a turn; at least 1.
        every_secs: The least time between two fillers, in seconds.
        not_before_turn: The first turn that may have one, from 1.
    """

    after_secs: float = 0.8
    margin_secs: float = 0.4
    per_turn: int = 1
    every_secs: float = 15.0
    not_before_turn: int = 2

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigurationError: If a field is negative or not a number; the message names it.
        """
        for name in ("after_secs", "margin_secs", "every_secs"):
            what, remedy = "seconds, not negative", "0.8 is 0.8 s"
            require_number(name, getattr(self, name), what, remedy, lambda x: 0 <= x < math.inf)
        for name in ("per_turn", "not_before_turn"):
            what, value = "a whole number, at least 1", getattr(self, name)
            require_number(name, value, what, "1 is the first", lambda x: x >= 1, kind=int)

    def decide(
        self,
        wait: SurvivalCurve,
        *,
        turn: int,
        waited_secs: float,
        filler_secs: float,
        quiet_secs: float = 0.0,
        fillers: int = 0,
        since_filler_secs: float = math.inf,
    ) -> FillerDecision:
        """Decide whether and when to speak, if no answer starts before.

        Args:
            wait: The distribution of such waits, from their beginning.
            turn: The caller's turn in this call, from 1.
            waited_secs: The time since the wait began.
            filler_secs: The filler's duration.
            quiet_secs: When the bot falls silent, from the wait's beginning; inf if unknown.
            fillers: Fillers already spoken in this turn.
            since_filler_secs: The time since the call's previous filler; inf if there was none.
        """
        if turn < self.not_before_turn:
            return FillerDecision(None, f"no fillers before turn {self.not_before_turn}")
        if fillers >= self.per_turn:
            return FillerDecision(None, f"{fillers} spoken in this turn, the most per turn")
        if quiet_secs == math.inf:
            return FillerDecision(None, "the bot is speaking")
        earliest = max(
            waited_secs,
            self.after_secs + max(0.0, quiet_secs),
            waited_secs + self.every_secs - since_filler_secs,
        )
        needed = filler_secs + self.margin_secs
        hangs_at = max(earliest, HANG_FACTOR * wait.quantile(1.0 - RARE_SHARE))
        at = _first_useful_time(wait, earliest, filler_secs, needed)
        stated_at = at if at <= hangs_at else earliest
        left = wait.expected_remaining(stated_at)
        reason = f"{left:.2f} s left to wait at {stated_at:.2f} s, a filler needs {needed:.2f} s"
        if at > hangs_at:
            reason += f", and {hangs_at:.2f} s would be exceptional"
        return FillerDecision(min(at, hangs_at), reason)


def _first_useful_time(
    wait: SurvivalCurve, earliest: float, filler_secs: float, needed: float
) -> float:
    """Return the first time at which enough wait remains and few answers are about to start.

    It is infinite if there is none.
    """
    steps = np.concatenate(([earliest], wait.secs, wait.secs - filler_secs))
    at = np.unique(steps[steps >= earliest])
    shares = wait.share_after(at)
    waiting = shares > 0
    at, shares = at[waiting], shares[waiting]
    left = wait.area_after(at) / shares
    answered = 1.0 - wait.share_after(at + filler_secs) / shares
    useful = np.flatnonzero((left >= needed) & (answered <= MAX_ANSWERED_SHARE + 1e-9))
    return float(at[useful[0]]) if useful.size else math.inf


class FillerPhrases:
    """The phrases by cause; none is spoken twice in a row."""

    def __init__(self, phrases: Mapping[FillerCause, Sequence[str]] | None, rng: random.Random):
        """Check the phrases.

        Args:
            phrases: The phrases of each cause; a cause without phrases stays silent. Defaults to a
                few English ones.
            rng: Draws them.

        Raises:
            ConfigurationError: If a cause is unknown, or a phrase is empty.
        """
        self._phrases = _ENGLISH if phrases is None else phrases
        self._rng = rng
        self._last = ""
        if not isinstance(self._phrases, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                'phrases must be lists by cause, such as {"slow": ["One moment."]}, '
                f"got {phrases!r}"
            )
        for cause, texts in self._phrases.items():
            if cause not in _ENGLISH:
                raise ConfigurationError(
                    f"phrases: {cause!r} is no cause: give phrases for {', '.join(_ENGLISH)}"
                )
            if not isinstance(texts, (list, tuple)) or not all(map(_is_phrase, texts)):
                raise ConfigurationError(f"phrases: {cause} must be a list of phrases, none empty")

    def choices(self, cause: FillerCause) -> list[tuple[str, float]]:
        """Return the candidates and their durations in seconds; the drawn one first.

        The previous phrase is excluded, unless it is the only one.
        """
        phrases = self._phrases.get(cause, ())
        others = [phrase for phrase in phrases if phrase != self._last] or phrases
        drawn = self._rng.sample(others, len(others))
        return [(p, max(len(p.split()) / WORDS_PER_SEC, LEAST_SECS)) for p in drawn]

    def mark_spoken(self, phrase: str) -> None:
        """Remember the phrase that was spoken last."""
        self._last = phrase


def _is_phrase(phrase: object) -> bool:
    return isinstance(phrase, str) and bool(phrase.strip())


_ENGLISH: Mapping[FillerCause, Sequence[str]] = {
    "slow": ("One moment.", "Let me see.", "Just a second.", "Hmm, let me think."),
    "tool": ("Let me look that up.", "One moment, I'm checking.", "I'll have a look."),
    "failing": ("Sorry, one more moment.", "Bear with me for a moment."),
}
