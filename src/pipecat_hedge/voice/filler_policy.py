"""Whether to fill the silence, and when. Pure: a survival curve in, a time and a reason out.

The problem: an answer is late, and silence on a telephone is taken for a lost connection. The naive
answer, to say "one moment" after a fixed time, speaks over answers that were about to land, and on
every turn of a slow provider: people call that worse than silence.

Ours asks what is left to wait. A filler is worth it at the first time t, not before ``after_secs``,
at which

- the expected rest of the wait, E[T − t | T > t], is longer than the filler and a margin: else the
  filler would still be sounding when the answer is there; and
- at most half of such turns would be answered while the filler sounds. The mean alone is not
  enough, because a tail of thirty seconds lifts it where nine of ten answers are about to land.

E[T − t | T > t] falls as time passes and rises only where an answer might have come and has not, so
the first such time is ``after_secs``, a step of the curve, or one filler's length before a step.

What has never happened before is on no curve, and a curve's end is a guess that falls off fast. So
a wait of twice the longest usual one is taken for one of unknown length, and a filler is due.

Around it are manners: not in the first turn, once a turn, not soon after the last one, and not the
same words twice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from pipecat_hedge.policy.survival import SurvivalCurve
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import FillerCause

__all__ = ["FillerDecision", "FillerPhrases", "FillerRule", "Silence"]

MAX_ANSWERED_SHARE = 0.5
"""So many of the answers may land while the filler sounds."""
RARE_SHARE, HANG_FACTOR = 0.002, 2.0
"""Twice the time by which all but so few answers have come is on no curve."""
WORDS_PER_SEC, LEAST_SECS = 2.6, 0.4
"""How fast fillers are spoken (about 155 words a minute), and how long the shortest one takes."""


@dataclass(frozen=True, slots=True)
class Silence:
    """What is known of a turn in which the caller is waiting.

    Parameters:
        turn: The number of the caller's turn in this call, from 1.
        waited_secs: How long the caller has been waiting.
        wait: How long such waits take; from their beginning.
        filler_secs: How long the filler takes to say.
        fillers: How many were spoken in this turn.
        since_filler_secs: How long ago the last one was spoken in this call; None is never.
    """

    turn: int
    waited_secs: float
    wait: SurvivalCurve
    filler_secs: float
    fillers: int = 0
    since_filler_secs: float | None = None


@dataclass(frozen=True, slots=True)
class FillerDecision:
    """Whether and when to speak.

    Parameters:
        at_secs: When, in seconds from the beginning of the wait; None is not in this turn.
        reason: Why, for a person to read.
    """

    at_secs: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class FillerRule:
    """When a filler is spoken.

    Parameters:
        after_secs: Not before the caller has waited so long, in seconds.
        margin_secs: By how much the rest of the wait must be longer than the filler, in seconds.
        per_turn: The most fillers in a turn.
        every_secs: The least time between two of them, in seconds.
        not_before_turn: The first turn that may have one.
    """

    after_secs: float = 0.8
    margin_secs: float = 0.4
    per_turn: int = 1
    every_secs: float = 15.0
    not_before_turn: int = 2

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: If a field is negative or no number; the message names it.
        """
        for name in ("after_secs", "margin_secs", "every_secs"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigurationError(f"{name} must be seconds, not negative, got {value!r}")
        for name in ("per_turn", "not_before_turn"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} must be a whole number, at least 1, got {value}")

    def decide(self, silence: Silence) -> FillerDecision:
        """Say whether and when to speak, if no answer comes before.

        Args:
            silence: What is known of the turn.
        """
        if (refusal := self._refusal(silence)) is not None:
            return FillerDecision(None, refusal)
        earliest = max(silence.waited_secs, self.after_secs)
        if silence.since_filler_secs is not None:
            pause_left = self.every_secs - silence.since_filler_secs
            earliest = max(earliest, silence.waited_secs + pause_left)
        needed = silence.filler_secs + self.margin_secs
        at = _first_useful_time(silence.wait, earliest, silence.filler_secs, needed)
        hangs_at = max(earliest, HANG_FACTOR * silence.wait.quantile(1.0 - RARE_SHARE))
        if at is None or at > hangs_at:
            left = silence.wait.expected_remaining(earliest)
            return FillerDecision(
                hangs_at,
                f"{left:.2f} s left to wait at {earliest:.2f} s, a filler needs {needed:.2f} s, "
                f"and {hangs_at:.2f} s would be unheard of",
            )
        left = silence.wait.expected_remaining(at)
        return FillerDecision(
            at, f"{left:.2f} s left to wait at {at:.2f} s, a filler needs {needed:.2f} s"
        )

    def _refusal(self, silence: Silence) -> str | None:
        if silence.turn < self.not_before_turn:
            return f"no fillers before turn {self.not_before_turn}"
        if silence.fillers >= self.per_turn:
            return f"{silence.fillers} spoken in this turn, which is enough"
        return None


def _first_useful_time(
    wait: SurvivalCurve, earliest: float, filler_secs: float, needed: float
) -> float | None:
    """The first time at which so much is left to wait, and few answers are about to land."""
    steps = np.concatenate(([earliest], wait.secs, wait.secs - filler_secs))
    at = np.unique(steps[steps >= earliest])
    shares = wait.share_after(at)
    waiting = shares > 0
    at, shares = at[waiting], shares[waiting]
    left = wait.area_after(at) / shares
    answered = 1.0 - wait.share_after(at + filler_secs) / shares
    useful = np.flatnonzero((left >= needed) & (answered <= MAX_ANSWERED_SHARE + 1e-9))
    return float(at[useful[0]]) if useful.size else None


@dataclass
class FillerPhrases:
    """What fillers say, by cause; the same is not said twice in a row.

    Parameters:
        phrases: For each cause, what may be said; none keeps silent.
    """

    phrases: Mapping[FillerCause, Sequence[str]] = field(
        default_factory=lambda: MappingProxyType(_ENGLISH)
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be said.

        Raises:
            ConfigurationError: If a cause is unknown, or a phrase is empty.
        """
        self._last: str | None = None
        if not isinstance(self.phrases, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                'phrases must be lists by cause, such as {"slow": ["One moment."]}, '
                f"got {self.phrases!r}"
            )
        for cause, phrases in self.phrases.items():
            if cause not in _ENGLISH:
                raise ConfigurationError(
                    f"phrases: {cause!r} is no cause: give phrases for {', '.join(_ENGLISH)}"
                )
            if not isinstance(phrases, (list, tuple)) or not all(map(_is_phrase, phrases)):
                raise ConfigurationError(f"phrases: {cause} must be a list of phrases, none empty")

    def choices(self, cause: FillerCause, rng: random.Random) -> list[str]:
        """What may be said now: one drawn first, then the others, the shortest first.

        The last one said is not among them, unless there is no other.

        Args:
            cause: Why the answer is late.
            rng: Decides.
        """
        phrases = self.phrases.get(cause, ())
        others = [phrase for phrase in phrases if phrase != self._last] or list(phrases)
        if not others:
            return []
        drawn = rng.choice(others)
        return [drawn, *sorted((p for p in others if p != drawn), key=self.secs)]

    def mark_spoken(self, phrase: str) -> None:
        """Remember what was said last.

        Args:
            phrase: The phrase.
        """
        self._last = phrase

    @staticmethod
    def secs(phrase: str) -> float:
        """About how long a phrase takes to say, in seconds.

        Args:
            phrase: The phrase.
        """
        return max(len(phrase.split()) / WORDS_PER_SEC, LEAST_SECS)


def _is_phrase(phrase: object) -> bool:
    return isinstance(phrase, str) and bool(phrase.strip())


_ENGLISH: dict[FillerCause, tuple[str, ...]] = {
    "slow": ("One moment.", "Let me see.", "Just a second.", "Hmm, let me think."),
    "tool": ("Let me look that up.", "One moment, I'm checking.", "I'll have a look."),
    "failing": ("Sorry, one more moment.", "Bear with me for a moment."),
}
