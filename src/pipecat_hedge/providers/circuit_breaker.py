"""A circuit breaker per provider, evaluated lazily.

``CircuitBreakerSettings`` says when it opens. It stays open for ``recovery_secs``, shortened at
random and doubled with each reopening up to ``max_recovery_secs``. Then it is half-open: it gets
one recovery request at a time, and ``RECOVERED`` answers in a row close it. An open breaker puts
its provider last and never empties the list. A rejection for load (429, 529) is not a failure; it
opens the breaker only if it persists. States of other processes (``follow_open``,
``follow_closed``) are not reported back to them.

Sources: M. Nygard, Release It! (2007); M. Brooker, Exponential Backoff And Jitter (2015).
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import BreakerState

JITTER = 0.2
"""An open time is shortened by up to this share, so that processes do not all try at once."""
RECOVERED = 2
"""Answers in a row that close a half-open breaker: one may be luck."""
PERSISTS_SECS = 10.0
"""Rejections for load that last this long without an answer open the breaker."""
UNFOLLOWED_SECS = 12.0
"""After closing, other processes are not followed for this long: they may not know yet."""
CALM_RECOVERIES = 2.0
"""Closed for this many recovery times, a breaker opens for the short time again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerSettings:
    """When a provider's circuit breaker opens, and for how long.

    Parameters:
        failures: The number of failures in a row that opens it; at least 1.
        failed_share: The share of failed attempts within the window that opens it, above 0 and at
            most 1.
        min_attempts: The least number of attempts in the window for that; fewer give no reliable
            share.
        window_secs: The length of the window: older failures say little about the provider now.
        recovery_secs: How long it stays open the first time.
        max_recovery_secs: The longest time for which it stays open. A recovery request
            costs no caller anything, so a long one saves nothing: with 66 s and a recovery request
            that hangs, a provider is back in use within 90 s of its recovery.

    Raises:
        ConfigurationError: If a value is out of range; the message names it and the remedy.
    """

    failures: int = 5
    failed_share: float = 0.5
    min_attempts: int = 20
    window_secs: float = 30.0
    recovery_secs: float = 60.0
    max_recovery_secs: float = 66.0

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("failures", "min_attempts"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"{name} must be a whole number from 1, got {value!r}")
        for name in ("failed_share", "window_secs", "recovery_secs", "max_recovery_secs"):
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 < value < math.inf:
                raise ConfigurationError(f"{name} must be a positive number, got {value!r}")
        if self.failed_share > 1:
            raise ConfigurationError(
                f"failed_share must be at most 1, got {self.failed_share!r}: 0.5 is half of them"
            )
        if self.max_recovery_secs < self.recovery_secs:
            raise ConfigurationError(
                f"recovery_secs is {self.recovery_secs:g}, more than max_recovery_secs, "
                f"{self.max_recovery_secs:g}: raise max_recovery_secs, too"
            )


DEFAULTS = CircuitBreakerSettings()


@dataclass(frozen=True, slots=True)
class BreakerEvent:
    """A change of state.

    Parameters:
        at: When, in the caller's clock.
        before: The previous state.
        after: The new state.
        reason: Why, in words.
    """

    at: float
    before: BreakerState
    after: BreakerState
    reason: str


class CircuitBreaker:
    """One provider's breaker.

    Example::

        breaker = CircuitBreaker(random.Random())
        if breaker.state(now) == "closed" or breaker.claim_recovery(now):
            ...
            breaker.record("failed", later, is_recovery=...)

    Attributes:
        settings: When it opens, and for how long; may be replaced at any time.
        reason: Why it opened the last time; empty if it never did.
    """

    def __init__(self, rng: random.Random, settings: CircuitBreakerSettings = DEFAULTS):
        """Create a closed breaker.

        Args:
            rng: Spreads the recoveries of many processes.
            settings: When it opens, and for how long.
        """
        self.settings = settings
        self._rng = rng
        self._state: BreakerState = "closed"
        self._seen: deque[tuple[float, bool]] = deque()
        self._failed_of_seen = 0
        self._in_a_row = 0
        self._busy_since: float | None = None
        self._busy_in_a_row = self._ended_in_a_row = 0
        self._failed_after_secs = 0.0
        self._opened = 0
        self._open_until = self._closed_at = self._opened_at = float("-inf")
        self._is_claimed = False
        self._answered_in_row = 0
        self._events: list[BreakerEvent] = []
        self._is_from_fleet = False
        self.reason = ""

    def __repr__(self) -> str:
        return f"<CircuitBreaker: {self._state}>"

    def state(self, now: float) -> BreakerState:
        """The state at ``now``, in seconds; never earlier than at the call before."""
        if self._state == "open" and now >= self._open_until:
            self._change("half_open", now, "recovery time is over: one request at a time is sent")
            self._answered_in_row = 0
        return self._state

    def claim_recovery(self, now: float) -> bool:
        """Claim the half-open provider's only recovery request.

        Returns:
            Whether the claim succeeded. Its end must then be recorded with ``is_recovery=True``.
        """
        if self.state(now) != "half_open" or self._is_claimed:
            return False
        self._is_claimed = True
        return True

    def record(
        self,
        verdict: Verdict,
        now: float,
        *,
        is_recovery: bool = False,
        age_secs: float = 0.0,
        count: int = 1,
    ) -> None:
        """Record the end of an attempt.

        Args:
            verdict: How it ended.
            now: When it ended.
            is_recovery: Whether it was the claimed recovery request.
            age_secs: The time from its launch to its end.
            count: How many failures in a row it stands for. A request that timed out also stands
                for those before it that were superseded without a token.
        """
        state = self.state(now)
        if is_recovery:
            self._is_claimed = False
        if verdict in ("silent", "not_connected"):
            verdict = "failed"
        if verdict == "dropped":
            if state == "closed" and self._in_a_row + self._busy_in_a_row:
                self._record_dropped(now, age_secs)
            return
        if verdict != "answered":
            self._failed_after_secs = max(self._failed_after_secs, age_secs)
        if state == "closed":
            self._record(verdict, now, count)
        elif is_recovery and state == "half_open":
            self._record_recovery(verdict, now)
        elif verdict == "answered" and now - age_secs >= self._opened_at:
            self._close(now, "a request sent while it was open was answered")

    def take_events(self) -> tuple[BreakerEvent, ...]:
        """Return the state changes since the last call, oldest first."""
        events, self._events = tuple(self._events), []
        return events

    # ---- other processes

    def opened_by_itself(self, now: float) -> float | None:
        """When this process's own attempts opened it; None if it is not open because of them."""
        is_own = self.state(now) == "open" and not self._is_from_fleet
        return self._opened_at if is_own else None

    def follow_open(self, secs: float, now: float, reason: str) -> bool:
        """Open because other processes did. Ignored while open, half-open, or just closed.

        Args:
            secs: For how long, in seconds; shortened at random, and at most the cap.
            now: The time.
            reason: Why, in words.

        Returns:
            Whether it opened.
        """
        if self.state(now) != "closed" or not secs > 0 or now - self._closed_at < UNFOLLOWED_SECS:
            return False
        self._open_for(min(secs, self.settings.max_recovery_secs), now, reason)
        self._is_from_fleet = True
        return True

    def follow_closed(self, now: float, reason: str) -> bool:
        """Become half-open early, if it was opened because of other processes.

        Returns:
            Whether it was.
        """
        if self.state(now) != "open" or not self._is_from_fleet:
            return False
        self._change("half_open", now, reason)
        self._open_until, self._answered_in_row = now, 0
        return True

    # ---- closed

    def _record(self, verdict: Verdict, now: float, count: int = 1) -> None:
        if verdict == "busy":
            self._record_busy(now)
            return
        self._busy_since = None
        self._busy_in_a_row = self._ended_in_a_row = 0
        has_failed = verdict == "failed"
        self._in_a_row = self._in_a_row + count if has_failed else 0
        if not has_failed:
            self._failed_after_secs = 0.0
        self._seen.append((now, has_failed))
        self._failed_of_seen += has_failed
        while self._seen[0][0] <= now - self.settings.window_secs:
            self._failed_of_seen -= self._seen.popleft()[1]
        failed, of = self._failed_of_seen, len(self._seen)
        if self._in_a_row >= self.settings.failures:
            self._open(now, f"{self._in_a_row} failures in a row")
        elif (
            has_failed  # an answer never opens it, also if it completes the number of attempts
            and of >= self.settings.min_attempts
            and failed >= self.settings.failed_share * of
        ):
            within = f"within {self.settings.window_secs:g} s"
            self._open(now, f"{failed} of {of} attempts failed {within}")

    def _record_dropped(self, now: float, age_secs: float) -> None:
        """Count an attempt that was superseded, as an answer if it outlived those that failed."""
        self._ended_in_a_row += 1
        if age_secs > self._failed_after_secs > 0:
            self._record("answered", now)

    def _record_busy(self, now: float) -> None:
        if self._busy_since is None:
            self._busy_since = now
        self._busy_in_a_row += 1
        lasted, count = now - self._busy_since, self._busy_in_a_row
        is_majority = count > self._ended_in_a_row
        if count >= self.settings.failures and lasted >= PERSISTS_SECS and is_majority:
            self._open(now, f"rejected for load for {lasted:.0f} s, {count} times")

    # ---- half open

    def _record_recovery(self, verdict: Verdict, now: float) -> None:
        if verdict != "answered":
            self._open(
                now,
                "recovery request " + ("failed" if verdict == "failed" else "rejected for load"),
            )
            return
        self._answered_in_row += 1
        if self._answered_in_row >= RECOVERED:
            self._close(now, f"{self._answered_in_row} recovery requests in a row were answered")

    # ---- transitions

    def _close(self, now: float, reason: str) -> None:
        self._change("closed", now, reason)
        self._closed_at = now
        self._forget()

    def _open(self, now: float, reason: str) -> None:
        if (
            self._state == "closed"
            and now - self._closed_at > CALM_RECOVERIES * self.settings.recovery_secs
        ):
            self._opened = 0
        secs = min(self.settings.recovery_secs * 2.0**self._opened, self.settings.max_recovery_secs)
        self._opened += 1
        self._open_for(secs, now, reason)
        self._is_from_fleet = False

    def _open_for(self, secs: float, now: float, reason: str) -> None:
        secs *= self._rng.uniform(1 - JITTER, 1.0)
        self._opened_at, self._open_until = now, now + secs
        self.reason = reason
        self._change("open", now, f"{reason}: open for {secs:.0f} s")
        self._forget()

    def _forget(self) -> None:
        self._seen.clear()
        self._failed_after_secs = 0.0
        self._failed_of_seen = self._in_a_row = 0
        self._busy_in_a_row = self._ended_in_a_row = 0
        self._busy_since = None

    def _change(self, after: BreakerState, now: float, reason: str) -> None:
        self._events.append(BreakerEvent(now, self._state, after, reason))
        self._state = after
