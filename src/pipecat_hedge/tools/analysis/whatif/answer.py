"""What a question came to: frozen values, for a table, a picture or a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pipecat_hedge.tools.analysis.whatif.drawing import Draws

__all__ = ["PERCENTILES", "Answer", "Independence", "Interval", "Outcome", "Source"]

PERCENTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a figure would lie in 19 of 20 files of this size.

    Parameters:
        low: The lower end.
        high: The upper end.
    """

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Source:
    """What was known of one provider.

    Parameters:
        name: Its name.
        observations: How many there were.
        cut_short: How many of them were cancelled before they answered, by a hedge or an
            interruption, and filled in from the others.
        failed: How many were failures.
    """

    name: str
    observations: int
    cut_short: int
    failed: int


@dataclass(frozen=True, slots=True)
class Independence:
    """How far it holds that a second request is slow or fast whatever the first is.

    Parameters:
        rank_correlation: Spearman's, of consecutive turns of the first provider; 0 if independent.
        noise: What chance alone explains of it: two standard errors.
        clustering: How many times as likely a slow turn is after a slow one as at any time.
        is_measured: Whether the second's latencies were measured in the same turns, so that nothing
            is assumed.
        slow_together: The share of the first one's slowest turns that are among the second's
            slowest; None if it was not measured.
        holds: False if the file speaks against it.
        text: What that means, in a sentence.
    """

    rank_correlation: float
    noise: float
    clustering: float
    is_measured: bool
    slow_together: float | None
    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy would have done.

    Parameters:
        policy: Its name.
        percentiles: ``p50``, ``p95``, ``p99``, ``p99.9``: the time under which that share of the
            turns had an answer, in seconds; infinite where they had none.
        intervals: The same, for files of this size.
        max_secs: The slowest turn, in seconds.
        at_least: Of those percentiles (and ``max``) that rest on requests which hedges cut short,
            what they are at the least, in seconds: more cannot be known.
        mean_secs: The mean, in seconds.
        under_deadline: The share of turns answered by the deadline; None without a deadline.
        unanswered: The share of turns without any answer.
        extra_requests: Requests beyond the first, per turn, without replacements.
        replacements: Requests that replaced one that had failed, per turn.
        extra_tokens: What they add, in tokens per turn; None if the size of a prompt is not known.
        extra_usd: What they add, in US dollars per 1,000 turns; None if no price is known.
        secs: Every turn, in seconds, for a picture; shape (n,).
        is_choice: Whether it can be recommended; if not, it is there to compare with.
        if_slow_together: Of the recommended policy, ``p99`` if a hedge were as slow as the turns
            around it, in seconds; None where it makes no difference.
    """

    policy: str
    percentiles: Mapping[str, float]
    intervals: Mapping[str, Interval]
    max_secs: float
    at_least: Mapping[str, float]
    mean_secs: float
    under_deadline: float | None
    unanswered: float
    extra_requests: float
    replacements: float
    extra_tokens: float | None
    extra_usd: float | None
    secs: npt.NDArray[np.float64] = field(repr=False)
    is_choice: bool = True
    if_slow_together: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What every policy would have done, and which one to take.

    Parameters:
        turns: Turns in the files.
        replayed: Turns that were replayed.
        sampled: Whether only a part of the files was replayed.
        first: The provider that is asked first.
        second: The provider that is hedged to.
        sources: What was known of each.
        deadline_secs: When an answer should be there, or None.
        independence: How far the answer can be trusted.
        outcomes: One a policy, ``no hedging`` first.
        recommended: The name of the policy to take.
        why: Why, in a sentence or two.
        notes: What else there is to say.
        draws: What each request of each replayed turn did.
    """

    turns: int
    replayed: int
    sampled: bool
    first: str
    second: str
    sources: tuple[Source, ...]
    deadline_secs: float | None
    independence: Independence
    outcomes: tuple[Outcome, ...]
    recommended: str
    why: str
    notes: tuple[str, ...]
    draws: Draws | None = field(default=None, repr=False)
