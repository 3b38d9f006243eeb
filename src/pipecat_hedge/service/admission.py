"""One turn's permits: where a request may be sent now, and what came of each.

A turn that is over holds no permit and no claim to a probe.
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
from pipecat_hedge.limits.priority import Tier, WorkClass
from pipecat_hedge.limits.provider_health import Permit
from pipecat_hedge.limits.rate_limit_headers import RateLimits
from pipecat_hedge.limits.verdict import Verdict
from pipecat_hedge.race.attempt import UNSURE_LAG_SECS
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service.provider_pool import Candidates, ProviderMember

__all__ = ["Admission", "AdmissionMode", "AdmissionSettings", "as_settings"]

MAX_RETRY_AFTER_SHARE = 0.9
"""The share of a turn's time that may be waited for a provider that has asked to be left alone."""
MIN_WAIT_SECS = 1.0
"""How long a request may wait for room, however late in the turn it is made."""

AdmissionMode: TypeAlias = Literal["open", "shed"]


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """How a session's requests are admitted.

    Parameters:
        mode: ``open`` turns no caller away; ``shed`` ends a turn for which there is no room.
        bounds: Where a provider's limit may lie, in requests in flight of this process.
        tier: Whose requests go first where a provider has refused some.
        session: The session, to tell its requests from others'.
    """

    mode: AdmissionMode = "open"
    bounds: LimitBounds = OPEN_BOUNDS
    tier: Tier = "standard"
    session: Hashable = None

    def divided(self, processes: int) -> AdmissionSettings:
        """The same for one process of a fleet: all together stay below the ceiling.

        Args:
            processes: How many there are.
        """
        floor = self.bounds.floor
        ceiling = max(self.bounds.ceiling // max(processes, 1), floor)
        return replace(self, bounds=replace(self.bounds, ceiling=ceiling))


def as_settings(
    mode: AdmissionMode, tier: Tier, min_in_flight: int | None, max_in_flight: int | None
) -> AdmissionSettings:
    """Check a service's arguments and put them together; the session is a new one.

    Args:
        mode: ``open`` or ``shed``.
        tier: Whose requests go first where a provider has refused some.
        min_in_flight: The floor of the inferred limit; None is the mode's own.
        max_in_flight: Its ceiling; None is the mode's own.

    Raises:
        ConfigurationError: If an argument cannot work; the message says which, and the remedy.
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
    """Gets and gives back the permits of one turn.

    Attributes:
        tier: Whose turn it is.
        queued_secs: How long its first request waited for room; 0.0 if it did not.
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
        """Begin a turn.

        Args:
            health: The process's registry.
            candidates: Whom the turn may ask.
            settings: How the session's requests are admitted.
            loop_watch: How far behind the event loop is.
            wait_secs: How long the turn may wait for room in all; but a request that is made late
                in the turn may wait for ``MIN_WAIT_SECS``.
            end_secs: After how long the turn has failed if it has no answer.
            has_first_token: Whether an answer tells when it begins.
        """
        self._wait_secs = min(wait_secs, end_secs / 2)  # to answer takes time, too
        self._end_secs = end_secs
        self._health = health
        self._settings = settings
        self._has_first_token = has_first_token
        self.tier: Tier = settings.tier
        self._loop_watch = loop_watch
        self._until = asyncio.get_running_loop().time() + self._wait_secs
        self._keys = candidates.keys
        self._in_panic = candidates.in_panic
        self._probe = None if candidates.probe is None else candidates.probe.provider.name
        self._first: Permit | None = None
        self._reason = candidates.reason
        self.queued_secs = 0.0

    async def admit(self, order: Sequence[ProviderMember], work: WorkClass) -> str | None:
        """Get the turn's first permit, and with it whom to ask first.

        Args:
            order: Whom to ask, in order; empty if nobody may be asked.
            work: What for.

        Returns:
            The provider's name; None if there is nobody, see ``reason``.

        Raises:
            Rejected: If there is no room in time, under ``admission="shed"``.
        """
        if not order:
            return None
        names = {self._keys[entry.provider.name]: entry.provider.name for entry in order}
        # Who is half-open comes last, and in a session that sheds only if there is nobody else.
        preferred = [key for key, name in names.items() if name != self._probe]
        if self._settings.mode == "open":
            preferred += [key for key, name in names.items() if name == self._probe]
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            # A pause that was asked for may last longer than is waited for room.
            max_retry_after_secs = min(MAX_WAIT_SECS, MAX_RETRY_AFTER_SHARE * self._end_secs)
            permit = self._first = await self._get(
                preferred or list(names), work, max_retry_after_secs
            )
        except BaseException:  # the caller may have hung up
            self.queued_secs = loop.time() - began
            raise
        self.queued_secs = permit.waited_secs
        return names[permit.key]

    @property
    def probe(self) -> str | None:
        """Who is to be tried after having been left alone, and has not been yet; or None."""
        return self._probe

    @property
    def reason(self) -> str:
        """Why nobody may be asked, where that is so."""
        return self._reason

    async def permit(
        self, provider: str, work: WorkClass, max_wait_secs: float = math.inf
    ) -> Permit:
        """Get leave for a request that the race has launched.

        Args:
            provider: Whom it goes to.
            work: What for.
            max_wait_secs: How long it may wait for room at most, so that there is time to answer.

        Raises:
            Rejected: If there is no room in time, see ``permit_for``.
        """
        key = self._keys[provider]
        if (first := self._first) is not None and first.key == key:
            self._first = None
            return first
        return await self._get([key], work, MAX_WAIT_SECS, max_wait_secs)

    def refusals(self, providers: Iterable[str]) -> dict[str, str]:
        """Which providers are to get no hedge now, by name, and why.

        Args:
            providers: Whom it could go to.
        """
        if (reason := self._loop_watch.refusal()) is not None:
            return dict.fromkeys(providers, f"is skipped: {reason}")
        names = {self._keys[name]: name for name in providers if name != self._probe}
        now = asyncio.get_running_loop().time()
        refusals = self._health.refusals(names, self._ticket((), "hedge", 0.0), now)
        return {names[key]: reason for key, reason in refusals.items()} if refusals else refusals

    def reluctance(self, providers: Iterable[str]) -> dict[str, int]:
        """See ``AdmissionController.reluctance``."""
        names = {self._keys[name]: name for name in providers}
        now = asyncio.get_running_loop().time()
        found = self._health.reluctance(names, self._ticket((), "rescue", 0.0), now)
        return {names[key]: degree for key, degree in found.items()}

    @property
    def lag_secs(self) -> float:
        """How far the event loop is behind now."""
        return self._loop_watch.lag_now()

    def is_unmeasured(self, provider: str) -> bool:
        """Whether a provider has not been heard lately, because others were always faster."""
        return self._health.is_unmeasured(self._keys[provider])

    def claim_latency_probe(self, provider: str) -> bool:
        """See ``AdmissionController.claim_latency_probe``."""
        return self._health.claim_latency_probe(self._keys[provider])

    def release_latency_probe(self, provider: str) -> None:
        """End what ``claim_latency_probe`` began."""
        self._health.release_latency_probe(self._keys[provider])

    def record_rate_limits(
        self, permit: Permit, limits: RateLimits, at: float, prompt_tokens: int
    ) -> None:
        """Take a provider's word for what its rate limit leaves.

        Args:
            permit: Leave for the request that it answered.
            limits: What it said.
            at: When, in the loop's time.
            prompt_tokens: The size of the prompts to come.
        """
        if (more := limits.more(prompt_tokens)) is not None:
            until = at + more[1]
            self._health.set_rate_limit(permit.key, more[0], until, sent_at=permit.acquired_at)

    def set_retry_after(self, permit: Permit, secs: float) -> None:
        """Leave a provider alone from now on, as it asked with ``Retry-After``; every turn does.

        Args:
            permit: Leave for the request that it refused.
            secs: For how long.
        """
        now = asyncio.get_running_loop().time()
        self._health.set_retry_after(permit.key, now + secs)

    def record_first_token(self, permit: Permit, size_class: Hashable) -> float:
        """Take note that a request's answer has begun.

        Args:
            permit: Leave for the request.
            size_class: The class of its prompt's size.

        Returns:
            How far the event loop was behind when it was read, in seconds.
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
        """Give a permit back; see ``AdmissionController.release``."""
        self._health.release(
            permit,
            verdict,
            asyncio.get_running_loop().time(),
            host=host,
            has_begun=has_begun,
            was_overtaken=was_overtaken,
            was_late=was_late,
        )

    def close(self) -> None:
        """Give back what was not used."""
        now = asyncio.get_running_loop().time()
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
            self._probe = None  # the permit's return gives the claim back
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
