"""One turn's permits: issues them, and releases them with the outcome.

A finished turn holds no permit and no claim of a recovery request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, get_args

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, SHED_BOUNDS, LimitBounds
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.limits.permits import Permit, Terms
from pipecat_hedge.limits.priority import WorkClass
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race.attempt import UNSURE_LAG_SECS
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import Tier
from pipecat_hedge.service.candidates import Candidates, ProviderMember

AdmissionMode: TypeAlias = Literal["open", "shed"]


def admission_terms(
    mode: AdmissionMode, tier: Tier, min_in_flight: int | None, max_in_flight: int | None
) -> Terms:
    """Check a service's arguments and combine them into the terms of a new session.

    Args:
        mode: ``open`` or ``shed``.
        tier: The session's tier.
        min_in_flight: The floor of the inferred limit; None is the mode's default.
        max_in_flight: Its ceiling; None is the mode's default.

    Raises:
        ConfigurationError: If an argument is invalid; the message names it and the remedy.
    """
    if mode not in get_args(AdmissionMode):
        raise ConfigurationError(f"admission is not known, got {mode!r}: write 'open' or 'shed'")
    usual = SHED_BOUNDS if mode == "shed" else OPEN_BOUNDS
    floor = usual.floor if min_in_flight is None else min_in_flight
    ceiling = usual.ceiling if max_in_flight is None else max_in_flight
    if min_in_flight is None and type(max_in_flight) is int:
        floor = max(min(floor, max_in_flight), 1)
    return Terms(tier, object(), LimitBounds(floor, ceiling, usual.start), sheds=mode == "shed")


def divided(terms: Terms, processes: int) -> Terms:
    """The terms for one process of a fleet, so that all together stay below the ceiling."""
    bounds = terms.bounds
    ceiling = max(bounds.ceiling // max(processes, 1), bounds.floor)
    return replace(terms, bounds=replace(bounds, ceiling=ceiling))


class Admission:
    """Issues and releases the permits of one turn.

    Attributes:
        tier: The session's tier.
        reason: Why no request may be sent, if that is so.
        holds: What is given back if the turn's event loop is closed.
    """

    def __init__(
        self,
        health: AdmissionController,
        candidates: Candidates,
        terms: Terms,
        loop_watch: LoopWatch,
    ):
        """Prepare a turn.

        Args:
            health: The process's registry.
            candidates: The turn's providers.
            terms: On which terms its requests are admitted.
            loop_watch: How far the event loop is behind.
        """
        self._health = health
        self._terms = replace(terms, ignores_breakers=candidates.in_panic)
        self._loop_watch = loop_watch
        self._loop = asyncio.get_running_loop()
        self._keys = candidates.keys
        self._probe = None if candidates.probe is None else candidates.probe.provider.name
        self.tier: Tier = terms.tier
        self.reason = candidates.reason
        self.holds = health.holds
        self._hold = self.holds.add(self._give_back)

    def first_choice(self, order: Sequence[ProviderMember], work: WorkClass) -> str | None:
        """The provider of the turn's first request.

        Args:
            order: The providers in order; empty if no request may be sent.
            work: The work class.

        Returns:
            Its name; None if there is none, see ``reason``.
        """
        names = {self._keys[entry.provider.name]: entry.provider.name for entry in order}
        # A half-open provider comes last; with "shed" it is used only if it is the only one.
        keys = [key for key, name in names.items() if name != self._probe]
        if not keys:
            return self._probe if names else None
        if not self._terms.sheds:
            keys += [key for key, name in names.items() if name == self._probe]
        now = self._loop.time()
        found = self._health.first_choice(keys, work, self._terms, now)
        if found is None:
            reasons = self._health.refusals(keys, work, self._terms, now)
            self.reason = ", ".join(f"{names[key]} {reason}" for key, reason in reasons.items())
            return None
        return names[found]

    @property
    def probe(self) -> str | None:
        """The half-open provider whose recovery request is claimed but not sent; or None."""
        return self._probe

    def issue(self, provider: str, work: WorkClass) -> Permit:
        """Issue the permit of a request that is sent now; it must be released.

        Args:
            provider: The request's provider.
            work: The work class.
        """
        is_probe = provider == self._probe
        if is_probe:
            self._probe = None  # releasing the permit ends the claim
        return self._health.issue(
            self._keys[provider], work, self._terms, self._loop.time(), is_probe=is_probe
        )

    def refusals(self, providers: Iterable[str]) -> dict[str, str]:
        """Which providers may get no hedge now, and why, by name."""
        if (reason := self._loop_watch.refusal()) is not None:
            return dict.fromkeys(providers, f"is skipped: {reason}")
        names = {self._keys[name]: name for name in providers if name != self._probe}
        refusals = self._health.refusals(names, "hedge", self._terms, self._loop.time())
        return {names[key]: reason for key, reason in refusals.items()} if refusals else refusals

    def reluctance(self, providers: Iterable[str]) -> dict[str, int]:
        """How much to avoid each provider; see ``AdmissionController.reluctance``."""
        names = {self._keys[name]: name for name in providers}
        found = self._health.reluctance(names, self._terms, self._loop.time())
        return {names[key]: degree for key, degree in found.items()} if found else found

    def full(self, providers: Iterable[str]) -> frozenset[str]:
        """The providers without room for a further request of a turn that sheds."""
        if not self._terms.sheds:
            return frozenset()
        names = {self._keys[name]: name for name in providers if name != self._probe}
        found = self._health.refusals(names, "rescue", self._terms, self._loop.time())
        return frozenset(names[key] for key in found)

    @property
    def lag_secs(self) -> float:
        """How far the event loop is behind now."""
        return self._loop_watch.lag_now()

    def is_unmeasured(self, provider: str) -> bool:
        """Whether a provider's latency is unknown, because others were always faster."""
        return self._health.is_unmeasured(self._keys[provider])

    def claim_latency_probe(self, provider: str) -> bool:
        """Claim an observed loser; see ``AdmissionController.claim_observed_loser``."""
        return self._health.claim_observed_loser(self._keys[provider])

    def release_latency_probe(self, provider: str) -> None:
        """End a claim of an observed loser."""
        self._health.release_observed_loser(self._keys[provider])

    def set_used_up(self, permit: Permit, secs: float) -> None:
        """Send the provider no hedges for some seconds, in any turn."""
        now = self._loop.time()
        self._health.set_used_up(permit.key, now + secs)

    def set_retry_after(self, permit: Permit, secs: float) -> None:
        """Send the provider no requests for some seconds, in any turn."""
        now = self._loop.time()
        self._health.set_retry_after(permit.key, now + secs)

    def record_first_token(self, permit: Permit, size_class: Hashable) -> float:
        """Record that a request's answer has begun.

        Args:
            permit: The request's permit.
            size_class: The class of the prompt's size.

        Returns:
            How far the event loop was behind when it read the token, in seconds.
        """
        lag_secs = self._loop_watch.lag_now()
        now = self._loop.time() - lag_secs
        is_sure = lag_secs < UNSURE_LAG_SECS
        self._health.record_first_token(permit, now, size_class=size_class, is_sure=is_sure)
        return lag_secs

    def release(
        self,
        permit: Permit,
        verdict: Verdict,
        *,
        host: str | None = None,
        has_begun: bool = False,
        was_overtaken: bool = False,
        was_late: bool = False,
    ) -> None:
        """Release a permit; see ``AdmissionController.release``."""
        self._health.release(
            permit,
            verdict,
            self._loop.time(),
            host=host,
            has_begun=has_begun,
            was_overtaken=was_overtaken,
            was_late=was_late,
        )

    def abandon(self, permit: Permit) -> None:
        """Release the permit of a request whose event loop was closed, as if it had just begun."""
        self._health.release(permit, "dropped", permit.acquired_at)

    def close(self) -> None:
        """Release the claim of a recovery request that was not sent."""
        if self.holds.drop(self._hold):
            self._give_back()

    def _give_back(self) -> None:
        if self._probe is not None:
            self._health.drop_probe(self._keys[self._probe], self._loop.time())
            self._probe = None
