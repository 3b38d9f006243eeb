"""The registry of a process: one record per provider and model, behind one lock.

The lock is held for microseconds, or a millisecond to compute a curve, and never during an await or
a write. There is no background task.

Limits and breakers rank providers for callers' requests and bound hedges and warm-up prompts. Only
with ``admission="shed"`` do they end a turn.
"""

from __future__ import annotations

import math
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from pipecat_hedge.providers.backends import MOST_PROVIDERS, Backend
from pipecat_hedge.providers.circuit_breaker import DEFAULTS, CircuitBreakerSettings
from pipecat_hedge.providers.latency import (
    WAITED,
    LatencyEstimate,
    ProviderLatency,
    TranscriptTimes,
)
from pipecat_hedge.providers.latency_model import in_doubt
from pipecat_hedge.providers.loop_holds import LoopHolds
from pipecat_hedge.providers.permits import BY_TIER, OPTIONAL, Permit, Terms
from pipecat_hedge.providers.priority import WorkClass
from pipecat_hedge.providers.priors import SPEECH, TRANSCRIPT, prior_for
from pipecat_hedge.providers.record import BreakerChange, ProviderRecord
from pipecat_hedge.providers.shared_outage import SharedOutage
from pipecat_hedge.providers.slow_period import SlowPeriod
from pipecat_hedge.providers.standing import Standing
from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.reports import TIERS, BreakerState, Tier

WHOLE_ANSWER = 5.0
"""Assumed duration of a whole answer, in times to first token."""
UNMEASURED_AFTER = 3
"""After this many requests in a row without a token, as others were faster, a provider's latency is
unknown. The next loser is observed, to find out whether it is slow or silent."""
OBSERVED_LOSER_INTERVAL = 70
"""At most one attempt in this many becomes an observed loser: an extra cost of 1.4 %."""
TIER_SECS = 60.0
"""How long room is reserved for a tier after one of its turns."""
QUEUE_ROOM = 20
"""How many more requests a server without a queue may get before its load is read again."""
QUEUE_VALID_SECS = 2.0
"""How long a reading of a server's queue is valid."""


class ProviderRegistry:
    """What a process knows of its providers. Thread-safe.

    Attributes:
        lock: Protects the records, and the budget accounts of the same process.
        holds: Permits and claims, which are released if their event loop is closed.
        simulated: The providers whose statistics stay in this process, by ``key_of``.
    """

    def __init__(
        self, rng: random.Random | None = None, lag_secs: Callable[[], float] = lambda: 0.0
    ):
        """Create an empty registry.

        Args:
            rng: Spreads the recoveries of many processes; None creates one.
            lag_secs: Returns how far the event loop is behind, in seconds. Responses of that time
                have not been read yet and are not late.
        """
        self.lock = threading.Lock()
        self.holds = LoopHolds()
        self.simulated: set[str] = set()
        self._rng = rng or random.Random()
        self._lag_secs = lag_secs
        self._records: OrderedDict[str, ProviderRecord] = OrderedDict()
        self._saved: dict[str, Any] = {}
        self._is_new = False
        self._breaker_settings: OrderedDict[str, CircuitBreakerSettings] = OrderedDict()
        self._changes: deque[BreakerChange] = deque(maxlen=100)
        self._outage = SharedOutage[Permit]()
        self._shed_at: dict[Tier, float] = {}  # when a turn that sheds asked, by its tier
        self._attempts = OBSERVED_LOSER_INTERVAL

    # ---- records; the lock must be held

    def record(self, key: str) -> ProviderRecord:
        """A provider's record, created on first use.

        Args:
            key: The provider and model; see ``key_of``.
        """
        record = self._records.get(key)
        if record is None:
            if len(self._records) >= MOST_PROVIDERS:
                self._forget_one()
            settings = self._breaker_settings.get(_name_of(key), DEFAULTS)
            record = self._records[key] = ProviderRecord(self._rng, settings)
        else:
            self._records.move_to_end(key)
        return record

    def _forget_one(self) -> None:
        """Remove the least recently used provider without requests in flight."""
        idle = (key for key, record in self._records.items() if not record.limit.in_flight)
        if (oldest := next(idle, None)) is not None:
            del self._records[oldest]

    def records(self) -> dict[str, ProviderRecord]:
        """All records by key."""
        return dict(self._records)

    def latency(self, backend: Backend) -> ProviderLatency:
        """The latency models of a provider, created on first use."""
        latencies = self.record(backend.record_key).latencies
        latency = latencies.get(backend.key)
        if latency is None:
            prior = prior_for(backend.provider, backend.model)
            if backend.measures == "whole_answer":
                prior = prior.scaled(WHOLE_ANSWER)
            elif backend.measures == "wait":
                prior = in_doubt(prior)
            elif backend.measures == "transcript":
                prior = TRANSCRIPT
            elif backend.measures == "speech":
                prior = SPEECH
            latency = latencies[backend.key] = ProviderLatency(prior)
            if (saved := self._saved.get(backend.key)) is not None:
                latency.restore(saved)
            self._introduce(backend.key, latency)
        return latency

    def latencies(self) -> dict[str, ProviderLatency]:
        """All latency models by ``Backend.key``, those used last at the end."""
        return {
            k: each for record in self._records.values() for k, each in record.latencies.items()
        }

    def _introduce(self, key: str, latency: ProviderLatency) -> None:
        """Called for the latency models of a provider that is new here."""

    # ---- how providers stand

    def begin_turn(self, terms: Terms, now: float) -> None:
        """Reserve room for the tier of a turn that sheds; see ``TIER_SECS``."""
        if terms.sheds:
            with self.lock:
                self._shed_at[terms.tier] = now

    def standing(
        self, keys: Iterable[str], work: WorkClass, terms: Terms, now: float
    ) -> list[Standing]:
        """How providers stand for a turn now, in the order of their keys.

        Args:
            keys: The providers.
            work: The work class of the turn's next request.
            terms: The turn's terms.
            now: The time.
        """
        self.holds.give_back_closed()
        with self.lock:
            self._charge_outages(now)
            return [self._standing(key, work, terms, now) for key in keys]

    def estimates(
        self, backends: Sequence[Backend], prompt_tokens: int | None, *, by_sentence: bool
    ) -> dict[str, LatencyEstimate]:
        """The latency estimates of providers, by name.

        Args:
            backends: The providers.
            prompt_tokens: The size of the prompt; None if unknown.
            by_sentence: Whether the first sentence wins.
        """
        with self.lock:
            return {
                b.provider: self.latency(b).estimate(prompt_tokens, by_sentence=by_sentence)
                for b in backends
            }

    def slow_periods(self, backends: Sequence[Backend], now: float) -> dict[str, SlowPeriod]:
        """Whether providers have turned slow, by name. The lock must be held.

        Args:
            backends: The providers.
            now: The time on the race's clock, less what the event loop is behind.
        """
        periods = {backend.provider: self.latency(backend).slow_period for backend in backends}
        for period in periods.values():
            period.look(now)
        return periods

    def slow(self) -> set[str]:
        """The keys (``key_of``) of the providers that are in a slow period."""
        with self.lock:
            return {
                key
                for key, record in self._records.items()
                if any(latency.slow_period.is_on for latency in record.latencies.values())
            }

    def is_slow(self, key: str, others: Collection[str], attempt: Attempt, now: float) -> bool:
        """Whether an attempt without a token is slow and not silent.

        That is so if its provider answers other requests, or no other provider answers in time.

        Args:
            key: Its provider.
            others: The providers without a request in this turn.
            attempt: The attempt.
            now: The time on the race's clock.
        """
        half_secs, since = (attempt.slot.silent_secs or 0.0) / 2, attempt.launched_at
        with self.lock:
            record = self.record(key)
            # A queue answers earlier requests first, and a provider that hangs still ends some
            # answers, but hardly in the second half of the silence.
            if record.answered_since > since:
                return True
            if record.last_token_at > max(now - half_secs, since):
                return True
            secs = [self.record(other).last_ttft_secs for other in others]
        return bool(secs) and min(secs) > half_secs

    # ---- breakers

    def configure_breaker(self, provider: str, settings: CircuitBreakerSettings) -> None:
        """Set when a provider's breaker opens, whatever its model. The latest settings count."""
        with self.lock:
            self._breaker_settings[provider] = settings
            self._breaker_settings.move_to_end(provider)
            if len(self._breaker_settings) > MOST_PROVIDERS:
                self._breaker_settings.popitem(last=False)
            for key, record in self._records.items():
                if _name_of(key) == provider:
                    record.breaker.settings = settings

    def claim_recovery(self, key: str, now: float) -> bool:
        """Claim the half-open provider's only recovery request.

        Returns:
            Whether the claim succeeded. It ends with the release of its permit or
            ``drop_recovery``.
        """
        with self.lock:
            claimed = self.record(key).breaker.claim_recovery(now)
            self._note(key)
            return claimed

    def drop_recovery(self, key: str, now: float) -> None:
        """Drop a claim whose request was not sent."""
        with self.lock:
            self.record(key).breaker.record("dropped", now, is_recovery=True)

    def take_changes(self) -> tuple[BreakerChange, ...]:
        """Return the breakers' changes since the last call, oldest first."""
        if not self._changes:
            return ()
        with self.lock:
            changes = tuple(self._changes)
            self._changes.clear()
        return changes

    # ---- limits that providers state

    def set_retry_after(self, key: str, until: float) -> None:
        """Record a ``Retry-After``: the provider is last until then. The latest time counts."""
        with self.lock:
            record = self.record(key)
            record.retry_after_until = max(record.retry_after_until, until)

    def set_used_up(self, key: str, until: float) -> None:
        """Record that a rate limit is used up: no hedges before ``until``. The latest time counts.

        Callers' requests go to another provider, if one has room.
        """
        with self.lock:
            record = self.record(key)
            record.used_up_until = max(record.used_up_until, until)

    def set_queue(self, key: str, running: int, waiting: int, now: float) -> None:
        """Use a server's own load metrics in place of the inferred limit.

        Without a long queue there is room for more. If more requests wait than run, this process
        sends that many fewer.

        Args:
            key: The provider.
            running: The requests that the server works on, from all clients.
            waiting: The requests in its queue.
            now: The time.
        """
        with self.lock:
            limit = self.record(key).limit
            too_many = waiting - running
            at_most = limit.in_flight - too_many if too_many > 0 else limit.in_flight + QUEUE_ROOM
            limit.set_queue(at_most, now + QUEUE_VALID_SECS)

    # ---- permits

    def issue(
        self, key: str, work: WorkClass, terms: Terms, now: float, *, is_recovery: bool = False
    ) -> Permit:
        """Issue the permit of a request that is sent now. It must be released.

        Args:
            key: The provider.
            work: The work class.
            terms: The turn's terms.
            now: The time.
            is_recovery: Whether it is the claimed recovery request of a half-open provider.
        """
        with self.lock:
            permit = Permit(key, now, is_recovery)
            self.record(key).limit.acquire(
                permit,
                now,
                session=terms.session,
                bounds=terms.bounds if terms.has_first_token else None,
                lag_secs=self._lag_secs(),
            )
            self._attempts += work != "warm_up"
            return permit

    def record_first_token(
        self, permit: Permit, now: float, *, size_class: Hashable = None, lag_secs: float = 0.0
    ) -> None:
        """Record that a request's answer has begun. Later calls for the same permit are ignored.

        Args:
            permit: The request's permit.
            now: When the first token came.
            size_class: The class of the prompt's size.
            lag_secs: How much later it may have come: the delay of the event loop.
        """
        with self.lock:
            if permit.is_active and not permit.has_token:
                permit.has_token = True
                record = self.record(permit.key)
                record.answered_since = max(record.answered_since, permit.acquired_at)
                record.last_token_at = max(record.last_token_at, now)
                ttft_secs = record.last_ttft_secs = now - permit.acquired_at
                record.limit.record_first_token(
                    permit, ttft_secs, now, size_class=size_class, lag_secs=lag_secs
                )

    def release(
        self,
        permit: Permit,
        verdict: Verdict,
        now: float,
        *,
        host: str | None = None,
        has_begun: bool = False,
        was_overtaken: bool = False,
        was_late: bool = False,
    ) -> None:
        """Release a permit and record the request's outcome. Later calls are ignored.

        Args:
            permit: The permit.
            verdict: How the request ended.
            now: When its connection was closed.
            host: The request's destination, as ``host:port``; None if it is unknown.
            has_begun: Whether its answer had begun.
            was_overtaken: Whether it was superseded before its first token.
            was_late: Whether it was then late, or lost to a request that was sent after it.
        """
        with self.lock:
            if not permit.is_active:
                return
            permit.is_active = False
            record = self.record(permit.key)
            count = record.count_without_token(verdict, was_overtaken, was_late, has_begun)
            record.limit.release(permit, verdict, now, lag_secs=self._lag_secs())
            # A superseded attempt cannot outlive a timeout, so it does not disprove one.
            age_secs = math.inf if verdict == "silent" else now - permit.acquired_at
            self._charge_outages(now)
            if verdict == "not_connected":
                # Our own network may have failed; connections to other hosts will show.
                self._outage.add(host or permit.key, now, permit)
            else:
                self._record_end(permit, verdict, now, age_secs, count)

    # ---- observed losers

    def is_unmeasured(self, key: str) -> bool:
        """Whether a provider's latency is unknown, because others were always faster."""
        with self.lock:
            return self.record(key).without_token >= UNMEASURED_AFTER

    def claim_observed_loser(self, key: str) -> bool:
        """Claim an observed loser: an attempt that has lost runs on to its first token.

        It shows whether a provider that always loses is slow or silent. A provider has one at a
        time, and at most one attempt in ``OBSERVED_LOSER_INTERVAL`` becomes one.

        Returns:
            Whether the claim succeeded; ``release_observed_loser`` ends it.
        """
        with self.lock:
            record = self.record(key)
            if record.is_observed or self._attempts < OBSERVED_LOSER_INTERVAL:
                return False
            self._attempts = 0
            record.is_observed = True
            return True

    def release_observed_loser(self, key: str) -> None:
        """End a claim of ``claim_observed_loser``."""
        with self.lock:
            self.record(key).is_observed = False

    def claim_trial(self, backend: Backend, now: float | None) -> bool:
        """Whether a provider that lost its place, by silence or rejections, is tried in this turn.

        Args:
            backend: The provider.
            now: The time on the race's clock; None for turns replayed one after the other.
        """
        with self.lock:
            return self.latency(backend).claim_trial(now)

    def claim_observation(
        self, backend: Backend, attempt: Attempt, prompt_tokens: int | None
    ) -> bool:
        """Let a silent loser run on whose provider has not answered yet, and count it.

        ``AT_FIRST_OBSERVED`` of them may; for other losers see ``claim_observed_loser``.

        Args:
            backend: The provider.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None if unknown.

        Returns:
            Whether it runs on.
        """
        if attempt.ended_at is None:
            return False
        with self.lock:
            latency = self.latency(backend)
            waited_secs = attempt.ended_at - attempt.launched_at
            return latency.is_silence(waited_secs, prompt_tokens) and latency.claim_observation()

    def drop_observation(self, backend: Backend) -> None:
        """An observation of ``claim_observation`` was cut short."""
        with self.lock:
            self.latency(backend).drop_observation()

    # ---- latencies

    def mark_simulated(self, backend: Backend) -> None:
        """Keep a provider's statistics in this process: a simulator answers for it."""
        with self.lock:
            self.simulated.add(backend.record_key)

    def is_simulated(self, backend: Backend) -> bool:
        """Whether a simulator has answered for a provider."""
        return backend.record_key in self.simulated

    def sent(self, backend: Backend, attempt: Attempt, prompt_tokens: int | None) -> None:
        """Watch an attempt of a turn that is under way, until ``learn`` or ``forget``.

        Args:
            backend: The provider.
            attempt: The attempt.
            prompt_tokens: The size of the prompt; None if unknown.
        """
        with self.lock:
            latency = self.latency(backend)
            if latency.has_typical:
                latency.slow_period.sent(attempt, latency.late_secs(prompt_tokens))

    def forget(self, backend: Backend, attempt: Attempt) -> None:
        """Stop watching an attempt that is not learned from."""
        with self.lock:
            self.latency(backend).slow_period.forget(attempt)

    def learn(
        self,
        backends: Sequence[Backend],
        attempts: Sequence[Attempt],
        prompt_tokens: int | None,
        *,
        observed: Collection[int] = (),
        with_sentences: bool = True,
        lag_secs: float = 0.0,
    ) -> None:
        """Learn from the attempts of a finished turn.

        Args:
            backends: The turn's candidates.
            attempts: All attempts of the turn.
            prompt_tokens: Size of the prompt; None if unknown.
            observed: Numbers of losing attempts that still run to their first token. They are
                learned from when they end; see ``learn_observed``.
            with_sentences: Whether to learn times to the first sentence.
            lag_secs: The delay of the event loop in seconds; output of that time is unread.
        """
        by_name = {backend.provider: backend for backend in backends}
        for attempt in attempts:
            backend = by_name[attempt.provider]
            is_silence = self._count_silence(backend, attempt, prompt_tokens, lag_secs)
            if attempt.number not in observed and attempt.ended_at is not None:
                with self.lock:
                    self._is_new = True
                    self.latency(backend).learn(
                        attempt,
                        attempt.first_token_at,
                        attempt.ended_at,
                        prompt_tokens,
                        with_sentence=with_sentences,
                        is_silence=is_silence,
                    )

    def learn_observed(
        self,
        backend: Backend,
        attempt: Attempt,
        first_at: float | None,
        now: float,
        prompt_tokens: int | None,
    ) -> None:
        """Learn from an observed loser that has ended.

        Args:
            backend: The provider.
            attempt: The attempt.
            first_at: When its first token came; None if it ended before.
            now: The time.
            prompt_tokens: The size of the prompt; None if unknown.
        """
        with self.lock:
            self._is_new = True
            self.latency(backend).learn_wait(attempt, first_at, now, prompt_tokens)

    def record_wait(
        self, backend: Backend, secs: float, prompt_tokens: int | None, *, censored: bool = False
    ) -> None:
        """Learn a time to first token that was measured outside of a race.

        Args:
            backend: The provider.
            secs: From the request, in seconds; if censored, the elapsed wait.
            prompt_tokens: The size of the prompt; None if unknown.
            censored: Whether the wait ended without a token.
        """
        with self.lock:
            self._is_new = True
            self.latency(backend).record_apart(secs, censored=censored, prompt_tokens=prompt_tokens)

    def record_transcript(
        self, backend: Backend, secs: float, since_first_secs: float | None
    ) -> None:
        """Learn a recogniser's transcripts; see ``ProviderLatency.record_transcript``."""
        with self.lock:
            self._is_new = True
            self.latency(backend).record_transcript(secs, since_first_secs)

    def transcripts(self, backend: Backend) -> TranscriptTimes | None:
        """How long a recogniser takes; None while too few utterances are known."""
        with self.lock:
            return self.latency(backend).transcripts

    def _count_silence(
        self, backend: Backend, attempt: Attempt, prompt_tokens: int | None, lag_secs: float
    ) -> bool:
        """Count an attempt if it was silent: cut long after its launch and before any sign."""
        is_cut = attempt.error is None or attempt.error in WAITED
        if attempt.ended_at is None or attempt.has_sign or not is_cut:
            return False
        if self.is_slow(backend.record_key, (), attempt, attempt.ended_at):
            return False
        with self.lock:
            latency = self.latency(backend)
            waited_secs = attempt.ended_at - attempt.launched_at - lag_secs
            is_silence = latency.is_silence(waited_secs, prompt_tokens)
            if is_silence:
                latency.silences += 1
                self.record(backend.record_key).silent_since = attempt.launched_at
            return is_silence

    # ---- with the lock held

    def _standing(self, key: str, work: WorkClass, terms: Terms, now: float) -> Standing:
        record, state = self.record(key), self._state(key, now)
        limit = record.limit
        why = None
        if not terms.ignores_breakers and state != "closed":
            why = f"is excluded by its breaker ({record.open_reason})"
        elif now < record.retry_after_until:
            why = f"has sent Retry-After, {record.retry_after_until - now:.2g} s left"
        elif now < record.used_up_until:
            why = f"has its rate limit used up for {record.used_up_until - now:.2g} s"
        full = hedge = why
        most = limit.limit(now, terms.bounds)
        if why is None:
            if not limit.has_room(most, reserved=self._reserved(work, terms, now)):
                full = f"has {limit.in_flight} of {most} requests in flight"
            if not limit.has_room(most, reserved=OPTIONAL["hedge"]):
                hedge = f"has {limit.in_flight} of {most} requests in flight"
        return Standing(
            state,
            "" if state == "closed" else record.open_reason,
            max(record.retry_after_until - now, 0.0),
            limit.is_rejecting(now),
            full,
            hedge,
            limit.in_flight,
            most,
        )

    def _reserved(self, work: WorkClass, terms: Terms, now: float) -> float:
        """The share of a provider's limit that a request leaves to more urgent ones."""
        if work in OPTIONAL or not terms.sheds:
            return OPTIONAL.get(work, 0.0)
        better = TIERS if work == "background" else TIERS[: TIERS.index(terms.tier)]
        last_at = max((self._shed_at.get(tier, -math.inf) for tier in better), default=-math.inf)
        share = max(BY_TIER.values()) if work == "background" else BY_TIER[terms.tier]
        return share if now - last_at < TIER_SECS else 0.0

    def _record_end(
        self, permit: Permit, verdict: Verdict, at: float, age_secs: float, count: int
    ) -> None:
        """Record a request's outcome with its provider's breaker."""
        breaker = self.record(permit.key).breaker
        breaker.record(verdict, at, is_recovery=permit.is_recovery, age_secs=age_secs, count=count)
        self._note(permit.key)

    def _charge_outages(self, now: float) -> None:
        """Record connection failures once it shows whether our own network failed."""
        for at, permit, is_shared in self._outage.take_classified(now):
            if is_shared and not permit.is_recovery:
                continue  # it says nothing about the provider
            # If a later request was answered, this is not one of several failures in a row.
            count = 1 if self.record(permit.key).answered_since < at else 0
            self._record_end(permit, "dropped" if is_shared else "failed", at, 0.0, count)

    def _state(self, key: str, now: float) -> BreakerState:
        state = self.record(key).breaker.state(now)
        if state != "closed":
            self._note(key)
        return state

    def _note(self, key: str) -> None:
        record = self.record(key)
        for event in record.breaker.take_events():
            record.open_reason = event.reason
            if event.after == "closed":
                record.limit.recover()
            self._changes.append(BreakerChange(key, event))


def _name_of(key: str) -> str:
    """The provider's name in a record's key."""
    return key.partition(" | ")[0]
