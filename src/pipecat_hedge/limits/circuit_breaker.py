"""When to leave a provider alone that keeps failing, and when to try it again. Pure and lazy.

Law: a provider that fails is asked less and less, one caller at a time; whoever failed for another
reason than its own is not blamed.

The problem: a race replaces a failed attempt at once, so nobody hears of a dead provider; but each
turn still asks it first, pays for the failure with a few milliseconds or with a time-out, and adds
to the load under which it may have fallen. The naive answer, to strike it out after some failures
and let it back in after a minute, has two faults of its own: all callers come back in the same
instant, and the first of them is a caller who waits.

A breaker orders providers, it never empties the list: an open one is asked last, and where all are
open they are asked as if all were closed (panic mode, as Envoy's ``healthy_panic_threshold``). So a
request may be sent to a provider whose breaker is open, and if it is answered the breaker closes.

Ours opens on ``FAILURES`` failures in a row, or when of at least ``MIN_ATTEMPTS`` attempts in
``WINDOW_SECS`` the share ``SHARE`` has failed. Open lasts ``recovery_secs``, times a factor by
chance so that machines do not come back in step, doubled with each reopening up to a cap. Then it
is half open: one attempt at a time may try it, and that one is to be a hedge beside a healthy
provider, so that its failure costs no caller anything. ``PROBES`` answers in a row close it.

The cap is low, ``MAX_OPEN_SECS``, since a try costs no caller anything and the provider one request: a
longer absence buys nothing. The factor only shortens, so that nobody is away for longer. A try that
was sent just before a provider's return may hang for some seconds; with those, the next one comes
within 75 s of the return, and leaves a quarter of a minute for its share to be back within 90 s.

Being busy is not being broken. A refusal for load (429, 529) is answered by asking less, which the
limit of requests in flight does, and by the time that the provider names. Only load that persists,
refusals in a row over ``PERSISTS_SECS`` without an answer between them, and more of them than of
those that somebody else ended, opens the breaker too.

An attempt that is ended by somebody else says nothing, but for one thing: in a provider that is
always overtaken, and fails now and then, all that is ever seen are its failures. So when one has
lived longer than those took to fail, the row of failures is broken.

What other processes have found out can be followed (``follow_open``, ``follow_closed``), and is
kept apart from what this one has: only the latter is ever told to others.

Nothing happens by itself: what time brings about is worked out when somebody asks.

Sources: M. Nygard, Release It! (2007) for the three states; the defaults of five failures and a
minute are those that most libraries share; jitter and doubling as in M. Brooker, Exponential
Backoff And Jitter (2015).
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["BreakerEvent", "BreakerState", "CircuitBreaker"]

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]

FAILURES = 5
SHARE, MIN_ATTEMPTS, WINDOW_SECS = 0.5, 20, 30.0
RECOVERY_SECS, MAX_OPEN_SECS = 60.0, 66.0
JITTER = 0.2
"""A recovery lasts between 0.8 times as long as stated and just as long."""
PROBES = 2
PERSISTS_SECS = 10.0
SETTLES_SECS = 12.0
"""After it has closed here no other process is followed for so long: it may not know yet."""
CALM_RECOVERIES = 2.0
"""Closed for so many recoveries, a provider is trusted again: the next opening is short."""


@dataclass(frozen=True, slots=True)
class BreakerEvent:
    """A change of state.

    Parameters:
        at: When, on the caller's clock.
        before: The state until then.
        after: The state from then on.
        reason: Why, for a person to read.
    """

    at: float
    before: BreakerState
    after: BreakerState
    reason: str


class CircuitBreaker:
    """One provider's breaker.

    Example::

        breaker = CircuitBreaker(random.Random())
        if breaker.state(now) == "closed" or breaker.claim_probe(now):
            ...
            breaker.record("failed", later, probe=...)

    Attributes:
        reason: Why it was opened the last time, for a person to read; empty if it never was.
        closings: How many times answers of its own have closed it.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        failures: int = FAILURES,
        share: float = SHARE,
        min_attempts: int = MIN_ATTEMPTS,
        window_secs: float = WINDOW_SECS,
        recovery_secs: float = RECOVERY_SECS,
        cap_secs: float = MAX_OPEN_SECS,
    ):
        """Begin closed.

        Args:
            rng: Spreads the recoveries of many processes.
            failures: So many failures in a row open it.
            share: So does this share of failures among the attempts of the window,
            min_attempts: of which there must be at least so many.
            window_secs: The window.
            recovery_secs: How long it stays open the first time.
            cap_secs: The longest that it stays open.

        Raises:
            ConfigurationError: If an argument cannot work; the message says which, and the remedy.
        """
        for name, value, low in (("failures", failures, 1), ("min_attempts", min_attempts, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < low:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(f"{name} must be a whole number from {low}, got {value!r}")
        if not 0 < share <= 1:
            raise ConfigurationError(f"share must be above 0 and at most 1, got {share!r}")
        for name, value in (("window_secs", window_secs), ("recovery_secs", recovery_secs)):
            if not value > 0:
                raise ConfigurationError(
                    f"{name} must be a positive number of seconds, got {value!r}"
                )
        if not cap_secs >= recovery_secs:
            raise ConfigurationError(
                f"cap_secs must be at least recovery_secs, {recovery_secs:g}, got {cap_secs!r}"
            )
        self._rng = rng
        self._failures, self._share, self._min_attempts = failures, share, min_attempts
        self._window_secs = window_secs
        self._recovery_secs, self._cap_secs = recovery_secs, cap_secs
        self._state: BreakerState = "closed"
        self._seen: deque[tuple[float, bool]] = deque()
        self._failed_of_seen = 0
        self._in_a_row = 0
        self._busy_since: float | None = None
        self._busy_in_a_row = self._ended_in_a_row = 0
        self._failed_after_secs = 0.0
        self._opened = 0
        self._open_until = self._closed_at = self._opened_at = float("-inf")
        self._is_probing = False
        self._answered_probes = 0
        self._events: list[BreakerEvent] = []
        self._is_from_fleet = False
        self.reason = ""
        self.closings = 0

    def state(self, now: float) -> BreakerState:
        """The state at a time."""
        if self._state == "open" and now >= self._open_until:
            self._change("half_open", now, "recovery time is over: one probe at a time is sent")
            self._answered_probes = 0
        return self._state

    def claim_probe(self, now: float) -> bool:
        """Claim the one attempt that may try a half-open provider.

        Returns:
            Whether it is yours; then its end has to be recorded with ``probe=True``.
        """
        if self.state(now) != "half_open" or self._is_probing:
            return False
        self._is_probing = True
        return True

    def record(
        self,
        verdict: Verdict,
        now: float,
        *,
        probe: bool = False,
        age_secs: float = 0.0,
        count: int = 1,
    ) -> None:
        """Take note of how an attempt ended.

        Args:
            verdict: How.
            now: When.
            probe: Whether it was the one that had claimed to try the provider.
            age_secs: How long it had been under way.
            count: Of how many in a row this tells; as one that was waited for in vain tells of
                those before it that nobody waited for.
        """
        state = self.state(now)
        if probe:
            self._is_probing = False
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
        elif probe and state == "half_open":
            self._record_probe(verdict, now)
        elif verdict == "answered" and now - age_secs >= self._opened_at:
            self._close(now, "a request sent while it was open was answered")

    def take_events(self) -> tuple[BreakerEvent, ...]:
        """The changes of state since the last call, the oldest first."""
        events, self._events = tuple(self._events), []
        return events

    # ---- what other processes have found

    def found(self, now: float) -> Literal["well", "down", "unsure"]:
        """What this process's own attempts have found of the provider.

        Returns:
            Whether it fails, answers, or has not been asked lately; so, too, where it is left alone
            only because others say so.
        """
        state = self.state(now)
        if state == "open":
            return "unsure" if self._is_from_fleet else "down"
        is_asked = bool(self._seen) and self._seen[-1][0] > now - self._window_secs
        return "well" if state == "closed" and is_asked else "unsure"

    def open_secs(self, now: float) -> float:
        """How long it stays open yet, in seconds."""
        return self._open_until - now if self.state(now) == "open" else 0.0

    def follow_open(self, secs: float, now: float, reason: str) -> bool:
        """Open because others have; not where it is open, being tried, or was tried just now.

        Args:
            secs: For about how long, in seconds; spread by chance, and at most the cap.
            now: The time.
            reason: Why, for a person to read.

        Returns:
            Whether it was opened.
        """
        if self.state(now) != "closed" or not secs > 0 or now - self._closed_at < SETTLES_SECS:
            return False
        self._open_for(min(secs, self._cap_secs), now, reason)
        self._is_from_fleet = True
        return True

    def follow_closed(self, now: float, reason: str) -> bool:
        """Let it be tried before its time, because another process had an answer.

        Args:
            now: The time.
            reason: Why, for a person to read.

        Returns:
            Whether it was open, and is half open now.
        """
        if self.state(now) != "open":
            return False
        self._change("half_open", now, reason)
        self._open_until, self._answered_probes = now, 0
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
        while self._seen[0][0] <= now - self._window_secs:
            self._failed_of_seen -= self._seen.popleft()[1]
        if self._in_a_row >= self._failures:
            self._open(now, f"{self._in_a_row} failures in a row")
        elif len(self._seen) >= self._min_attempts and self._failed_of_seen >= self._share * len(
            self._seen
        ):
            share = f"{self._failed_of_seen} of {len(self._seen)} attempts failed"
            self._open(now, f"{share} within {self._window_secs:g} s")

    def _record_dropped(self, now: float, age_secs: float) -> None:
        """Somebody else ended it, but it had got further than those that failed: it was well."""
        self._ended_in_a_row += 1
        if age_secs > self._failed_after_secs > 0:
            self._record("answered", now)

    def _record_busy(self, now: float) -> None:
        if self._busy_since is None:
            self._busy_since = now
        self._busy_in_a_row += 1
        lasted = now - self._busy_since
        is_rule = self._busy_in_a_row > self._ended_in_a_row
        if self._busy_in_a_row >= self._failures and lasted >= PERSISTS_SECS and is_rule:
            self._open(now, f"rejected for load for {lasted:.0f} s, {self._busy_in_a_row} times")

    # ---- half open

    def _record_probe(self, verdict: Verdict, now: float) -> None:
        if verdict != "answered":
            self._open(now, "probe " + ("failed" if verdict == "failed" else "rejected for load"))
            return
        self._answered_probes += 1
        if self._answered_probes >= PROBES:
            self._close(now, f"{self._answered_probes} probes in a row were answered")

    # ---- moves

    def _close(self, now: float, reason: str) -> None:
        self._change("closed", now, reason)
        self._closed_at = now
        self.closings += 1
        self._forget()

    def _open(self, now: float, reason: str) -> None:
        if (
            self._state == "closed"
            and now - self._closed_at > CALM_RECOVERIES * self._recovery_secs
        ):
            self._opened = 0
        secs = min(self._recovery_secs * 2.0**self._opened, self._cap_secs)
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
