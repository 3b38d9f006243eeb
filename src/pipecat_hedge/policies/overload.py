"""What work to leave undone when the process cannot keep up. Pure.

Law: of less and more urgent work the less urgent goes first, always; a premium caller's turn never
goes; and what was seen a while ago sheds nothing.

The problem: one event loop serves many callers, audio included. When it has more to do than there
is time, everything is late for everybody, and each further request makes it later. Audio comes in
frames of 20 ms and is sent in chunks of 40: a loop that is that far behind sends each caller's
sound late, hears an interruption late, and passes on a token late that a provider sent in time. A
hedge cannot help against that; it is a part of it.

The naive answers are a limit on sessions, which knows nothing of what they do, and the load of the
machine, which is not that of the one thread that matters. Ours measures what the callers suffer,
the lag: by how much a sleep of the loop is overslept. A single long step, a model that is loaded or
a page of garbage collection, is over when it is noticed and no reason to turn a caller away; so
what callers need goes by the *median* of the last ``SAMPLES`` lags, which sees only what lasts,
while the work that can always wait goes by their mean, which sees a single step as well. The share
of a core that the loop's thread uses warns before there is a lag: a queue before a server that is
busy for a share r of the time is r/(1-r) steps long, 6 at 0.85. But a core that is fully used harms
nobody by itself, so it sheds only what can wait.

What is shed, in order, and from which lag on: background work and prompts sent ahead from two
frames; hedges from 0.1 s that last, most of what a hedge is to save; rescues from 0.15 s, where
talkers begin to notice a delay; the answers to tools from 0.2 s; first answers of economy callers
from 0.25 s; of standard callers from 0.4 s, which is more than a telephone network may take. Who is
shed at one threshold is admitted again at half of it (for the share of a core, a tenth below), so
that shedding, which makes the lag smaller, does not end itself at once. Rescues and answers to
tools of premium callers are parts of a turn that has been begun, and go as little as it does.

Left out: other processes on the machine; where they take the core away, the lag shows it.

Sources: 20 ms are the default of RTP's Opus (RFC 7587), 40 ms are Pipecat's
``audio_out_10ms_chunks``; 0.15 and 0.4 s are the bounds for one-way delay in ITU-T G.114; r/(1-r)
is the M/M/1 queue; that only a standing delay is a bad one is K. Nichols and V. Jacobson's,
Controlling Queue Delay (2012).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from pipecat_hedge.work import Tier, WorkClass

__all__ = ["FRESH_SECS", "SAMPLES", "Overload"]

SAMPLES = 5
SMOOTHING = 0.1
"""The weight of the latest share of a core."""
FRESH_SECS = 2.0
"""So long, and twice the lag that it found, a sample counts: a loop that is behind is looked at
less often."""
CALM_LAG, CALM_SHARE = 0.5, 0.1
"""Shedding ends at the threshold times the one, and at the threshold less the other."""


@dataclass(frozen=True, slots=True)
class _Step:
    """From when on a kind of work is shed.

    Parameters:
        lag_secs: From this lag on.
        core_share: Or from this share of a core on.
    """

    lag_secs: float
    core_share: float = math.inf


_STEPS = (
    _Step(0.04, 0.85),  # background, warm_up
    _Step(0.10),  # hedge
    _Step(0.15),  # rescue
    _Step(0.20),  # tool_follow_up
    _Step(0.25),  # primary, economy
    _Step(0.40),  # primary, standard
)
_CLASS_STEP = {"background": 0, "warm_up": 0, "hedge": 1, "rescue": 2, "tool_follow_up": 3}
_TIER_STEP = {"economy": 4, "standard": 5, "premium": len(_STEPS)}
_OPTIONAL = ("background", "warm_up", "hedge")


class Overload:
    """How far behind an event loop is, and what it sheds on that account.

    Example::

        overload.sample(lag_secs, core_share, now)
        if (reason := overload.sheds("hedge", "standard", now)) is not None:
            ...  # no hedge now: "the event loop is 0.31 s behind"
    """

    def __init__(self) -> None:
        """Begin with a loop that keeps up."""
        self._fresh_until = -math.inf
        self._forget()

    def sample(self, lag_secs: float, core_share: float, now: float) -> None:
        """Take note of how the loop has kept up since the last sample.

        Args:
            lag_secs: How late a timer of it was.
            core_share: The share of a core that its thread has used, from 0 to 1.
            now: The time, in seconds; never earlier than at the call before.
        """
        if now - lag_secs > self._fresh_until:
            self._forget()
        self._fresh_until = now + FRESH_SECS + 2 * lag_secs
        self._lags.append(lag_secs)
        self._share += SMOOTHING * (core_share - self._share)
        mean, median = sum(self._lags) / SAMPLES, sorted(self._lags)[SAMPLES // 2]
        reached = kept = 0
        for number, step in enumerate(_STEPS):
            lag = median if number else max(mean, median)
            if lag >= step.lag_secs or self._share >= step.core_share:
                reached = number + 1
            if lag >= step.lag_secs * CALM_LAG or self._share >= step.core_share - CALM_SHARE:
                kept = number + 1
        self._level = max(reached, min(kept, self._level))
        if self._level:
            self._reason = self._why(median if self._level > 1 else max(mean, median))

    def lag_secs(self, now: float) -> float | None:
        """The mean of the last lags; None if nobody has watched lately.

        Args:
            now: The time.
        """
        return None if now > self._fresh_until else sum(self._lags) / SAMPLES

    def sheds(self, work_class: WorkClass, tier: Tier, now: float) -> str | None:
        """Why such work is to be left undone now, for a person to read; None if it may be done.

        Args:
            work_class: What the work is for.
            tier: Whose it is.
            now: The time.
        """
        if now > self._fresh_until:
            return None  # nobody watches any more
        is_optional = work_class in _OPTIONAL
        by_tier = work_class == "primary" or (tier == "premium" and not is_optional)
        step = _TIER_STEP[tier] if by_tier else _CLASS_STEP[work_class]
        return self._reason if step < self._level else None

    def _why(self, lag_secs: float) -> str:
        if lag_secs >= _STEPS[self._level - 1].lag_secs * CALM_LAG:
            return f"the event loop is {lag_secs:.2f} s behind"
        return f"the event loop's thread uses {self._share:.0%} of a core"

    def _forget(self) -> None:
        self._lags = deque([0.0] * SAMPLES, maxlen=SAMPLES)
        self._share = 0.0
        self._level = 0
        self._reason = ""
