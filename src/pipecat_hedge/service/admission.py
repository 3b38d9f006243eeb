"""One turn's permits: acquires them, and releases them with the outcome.

A finished turn holds no permit and no probe claim.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from pipecat_hedge.limits.admission_controller import AdmissionController
from pipecat_hedge.limits.concurrency_limit import OPEN_BOUNDS, SHED_BOUNDS, LimitBounds
from pipecat_hedge.limits.loop_lag import LoopWatch
from pipecat_hedge.limits.permit_queue import MAX_WAIT_SECS, Ticket
from pipecat_hedge.limits.permits import permit_for
from pipecat_hedge.limits.priority import WorkClass
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race.attempt import UNSURE_LAG_SECS
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import Tier
from pipecat_hedge.service.candidates import Candidates, ProviderMember

__all__ = ["Admission", "AdmissionMode", "AdmissionSettings", "admission_settings"]

MAX_RETRY_AFTER_SHARE = 0.9
"""The largest share of a turn's time to wait for a ``Retry-After``: to answer takes time, too."""
MIN_WAIT_SECS = 1.0
"""A request may wait this long for room, however late in the turn it is made."""

AdmissionMode: TypeAlias = Literal["open", "shed"]


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How a session's requests are admitted.

    Parameters:
        mode: ``open`` rejects no caller; ``shed`` ends a turn without room.
        bounds: Bounds of a provider's limit, in requests in flight of this process.
        tier: The session's priority where a provider rejects requests for load.
        session: Identifies the session.
    """

    mode: AdmissionMode = "open"
    bounds: LimitBounds = OPEN_BOUNDS
    tier: Tier = "standard"
    session: Hashable = None

    def divided(self, processes: int) -> AdmissionSettings:
        """The settings for one process of a fleet, so that all together stay below the ceiling."""
        floor = self.bounds.floor
        ceiling = max(self.bounds.ceiling // max(processes, 1), floor)
        return replace(self, bounds=replace(self.bounds, ceiling=ceiling))


def admission_settings(
    mode: AdmissionMode, tier: Tier, min_in_flight: int | None, max_in_flight: int | None
) -> AdmissionSettings:
    """Check a service's arguments and combine them for a new session.

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
    if max_in_flight is not None and min_in_flight is None and isinstance(max_in_flight, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        floor = max(min(floor, max_in_flight), 1)
    return AdmissionSettings(mode, LimitBounds(floor, ceiling, usual.start), tier, object())


class Admission:
    """Acquires and releases the permits of one turn.

    Attributes:
        tier: The session's tier.
        queued_secs: How long the first request waited for room; 0.0 if it did not.
        holds: What is given back if the turn's event loop is closed.
    """

    def __init__(
        self,
        health: AdmissionController,
        candidates: Candidates,
        settings: AdmissionSettings,
        loop_watch: LoopWatch,
        wait_secs: float,
        *,
        end_secs: float = math.inf,
        has_first_token: bool = True,
    ):
        """Prepare a turn.

        Args:
            health: The process's registry.
            candidates: The turn's providers.
            settings: How the session's requests are admitted.
            loop_watch: How far the event loop is behind.
            wait_secs: How long the turn may wait for room in total. A request late in the turn may
                still wait for ``MIN_WAIT_SECS``.
            end_secs: The time after which a turn without an answer fails.
            has_first_token: Whether an answer gives a time to first token.
        """
        self._wait_secs = min(wait_secs, end_secs / 2)  # leave time for the answer
        self._end_secs = end_secs
        self._health = health
        self._settings = settings
        self._has_first_token = has_first_token
        self.tier: Tier = settings.tier
        self._loop_watch = loop_watch
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + self._wait_secs
        self._keys = candidates.keys
        self._in_panic = candidates.in_panic
        self._probe = None if candidates.probe is None else candidates.probe.provider.name
        self._first: Permit | None = None
        self._reason = candidates.reason
        self.queued_secs = 0.0
        self.holds = health.holds
        self._hold = self.holds.add(self._give_back)

    async def admit(self, order: Sequence[ProviderMember], work: WorkClass) -> str | None:
        """Acquire the turn's first permit.

        Args:
            order: The providers in order; empty if no request may be sent.
            work: The work class.

        Returns:
            The name of the first request's provider; None if there is none, see ``reason``.

        Raises:
            Rejected: Without room in time, under ``admission="shed"``.
        """
        if not order:
            return None
        names = {self._keys[entry.provider.name]: entry.provider.name for entry in order}
        # A half-open provider comes last; with "shed" it is used only if it is the only one.
        preferred = [key for key, name in names.items() if name != self._probe]
        if self._settings.mode == "open":
            preferred += [key for key, name in names.items() if name == self._probe]
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            # A Retry-After may be waited for longer than a concurrency limit.
            max_retry_after_secs = min(MAX_WAIT_SECS, MAX_RETRY_AFTER_SHARE * self._end_secs)
            permit = self._first = await self._get(
                preferred or list(names), work, max_retry_after_secs
            )
        except BaseException:  # such as a cancellation
            self.queued_secs = loop.time() - began
            raise
        self.queued_secs = permit.waited_secs
        return names[permit.key]

    @property
    def probe(self) -> str | None:
        """The half-open provider that the turn may probe and has not probed yet; or None."""
        return self._probe

    @property
    def reason(self) -> str:
        """Why no request may be sent, if that is so."""
        return self._reason

    async def permit(
        self, provider: str, work: WorkClass, max_wait_secs: float = math.inf
    ) -> Permit:
        """Acquire a permit for a launched request.

        Args:
            provider: The request's provider.
            work: The work class.
            max_wait_secs: How long it may wait for room, so that there is time to answer.

        Raises:
            Rejected: Without room in time; see ``permit_for``.
        """
        key = self._keys[provider]
        if (first := self._first) is not None and first.key == key:
            self._first = None
            return first
        return await self._get([key], work, MAX_WAIT_SECS, max_wait_secs)

    def refusals(self, providers: Iterable[str]) -> dict[str, str]:
        """Which providers may get no hedge now, and why, by name."""
        if (reason := self._loop_watch.refusal()) is not None:
            return dict.fromkeys(providers, f"is skipped: {reason}")
        names = {self._keys[name]: name for name in providers if name != self._probe}
        now = asyncio.get_running_loop().time()
        refusals = self._health.refusals(names, self._ticket((), "hedge", 0.0), now)
        return {names[key]: reason for key, reason in refusals.items()} if refusals else refusals

    def reluctance(self, providers: Iterable[str]) -> dict[str, int]:
        """How much to avoid each provider; see ``AdmissionController.reluctance``."""
        names = {self._keys[name]: name for name in providers}
        now = asyncio.get_running_loop().time()
        found = self._health.reluctance(names, self._ticket((), "rescue", 0.0), now)
        return {names[key]: degree for key, degree in found.items()}

    @property
    def lag_secs(self) -> float:
        """How far the event loop is behind now."""
        return self._loop_watch.lag_now()

    def is_unmeasured(self, provider: str) -> bool:
        """Whether a provider's latency is unknown, because others were always faster."""
        return self._health.is_unmeasured(self._keys[provider])

    def claim_latency_probe(self, provider: str) -> bool:
        """Claim a latency probe; see ``AdmissionController.claim_latency_probe``."""
        return self._health.claim_latency_probe(self._keys[provider])

    def release_latency_probe(self, provider: str) -> None:
        """End a claim of ``claim_latency_probe``."""
        self._health.release_latency_probe(self._keys[provider])

    def set_used_up(self, permit: Permit, secs: float) -> None:
        """Send the provider no hedges for some seconds, in any turn."""
        now = asyncio.get_running_loop().time()
        self._health.set_used_up(permit.key, now + secs)

    def set_retry_after(self, permit: Permit, secs: float) -> None:
        """Send the provider no requests for some seconds, in any turn."""
        now = asyncio.get_running_loop().time()
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
        now = asyncio.get_running_loop().time() - lag_secs
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
            asyncio.get_running_loop().time(),
            host=host,
            has_begun=has_begun,
            was_overtaken=was_overtaken,
            was_late=was_late,
        )

    def abandon(self, permit: Permit) -> None:
        """Release the permit of a request whose event loop was closed, as if it had just begun."""
        self._health.release(permit, "dropped", permit.acquired_at)

    def close(self) -> None:
        """Release the permits and claims that were not used."""
        if self.holds.drop(self._hold):
            self._give_back()

    def _give_back(self) -> None:
        now = self._loop.time()
        if self._first is not None:
            self._health.release(self._first, "dropped", now)
            self._first = None
        if self._probe is not None:
            self._health.drop_probe(self._keys[self._probe], now)
            self._probe = None

    async def _get(
        self,
        keys: list[str],
        work: WorkClass,
        max_retry_after_secs: float,
        max_wait_secs: float = math.inf,
    ) -> Permit:
        now = asyncio.get_running_loop().time()
        wait_secs = max(self._until - now, min(MIN_WAIT_SECS, self._wait_secs))
        wait_secs = min(wait_secs, max_wait_secs)
        retry_after_secs = min(self._health.retry_after_secs(key, now) for key in keys)
        if retry_after_secs <= max_retry_after_secs:
            wait_secs = max(wait_secs, retry_after_secs)
        ticket = self._ticket(tuple(keys), work, wait_secs)
        permit = await permit_for(self._health, ticket, self._loop_watch.refusal)
        if permit.is_probe:
            self._probe = None  # releasing the permit ends the claim
        return permit

    def _ticket(self, keys: tuple[str, ...], work: WorkClass, wait_secs: float) -> Ticket:
        now, settings = asyncio.get_running_loop().time(), self._settings
        probe = None if self._probe is None else self._keys[self._probe]
        return Ticket(
            work,
            settings.tier,
            now + wait_secs,
            keys,
            now,
            settings.session,
            settings.bounds,
            settings.mode == "shed",
            self._in_panic,
            probe if probe in keys else None,
            self._has_first_token,
        )
