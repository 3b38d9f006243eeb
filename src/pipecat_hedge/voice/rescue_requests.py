"""The requests to a rescue: whether one is sent, by its breaker and limits, and how they end.

Pipecat's services for OpenAI's API drop the response behind an error, and with it ``Retry-After``;
so error responses are noted as they come.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pipecat.frames.frames import ErrorFrame
from pipecat.services.stt_service import STTService

from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.providers.loop_holds import Hold
from pipecat_hedge.providers.permits import Permit, Terms
from pipecat_hedge.providers.verdict import Verdict, classify
from pipecat_hedge.service.provider_client import (
    Rejection,
    attempt_error,
    bound_requests,
    http_client,
    is_rejection,
)
from pipecat_hedge.service.provider_stats import ProviderStats

MOST_SECS = 5.0
"""A rescue that takes longer has failed: Pipecat ends a turn after 5 s."""


class RescueRequests:
    """The requests of one call. It changes with the latest one, and the response to it.

    Attributes:
        backend: The rescue, in what is known of providers.
    """

    def __init__(self, service: STTService, backend: Backend):
        self.backend = backend
        self._service = service
        self._latest: tuple[Permit, Hold] | None = None
        self._response: Any = None
        bound_requests(service, MOST_SECS)
        self._client = http_client(service)

    def open(self, stats: ProviderStats) -> None:
        """Note error responses from now on.

        Args:
            stats: What is known of providers.
        """
        self._stats = stats
        if self._client is not None:
            self._client.event_hooks["response"].append(self._take_response)

    def close(self) -> None:
        """Note no responses any more; the latest request is not waited for."""
        self.end("dropped")
        if self._client is not None and self._take_response in self._client.event_hooks["response"]:
            self._client.event_hooks["response"].remove(self._take_response)

    def is_eligible(self, now: float) -> bool:
        """Whether a request may be sent now, or the only one of a half-open breaker."""
        standing = self._standing(now)
        is_half_open = standing.breaker == "half_open" and not standing.retry_after_secs
        return self._service.is_usable and (standing.ineligible is None or is_half_open)

    def begin(self, now: float) -> bool:
        """Begin a request that is sent now; returns whether it may be sent."""
        self.end("dropped")  # of noise it says nothing
        key, is_recovery = self.backend.record_key, False
        if not self.is_eligible(now):
            return False
        if self._standing(now).breaker != "closed":
            is_recovery = self._stats.claim_recovery(key, now)
            if not is_recovery:
                return False
        permit = self._stats.issue(key, "hedge", Terms(), now, is_recovery=is_recovery)
        hold = self._stats.holds.add(partial(self._stats.release, permit, "dropped", now))
        self._latest, self._response = (permit, hold), None
        return True

    def answered(self) -> float | None:
        """The latest request is answered; returns after how long, the first time."""
        if self._latest is None:
            return None
        (permit, _), now = self._latest, _now()
        self._stats.record_first_token(permit, now)
        self.end("answered")
        return now - permit.acquired_at

    def failed(self, frame: ErrorFrame) -> bool:
        """The rescue has reported an error; returns whether a request has failed by it."""
        if self._latest is None:
            return False
        if frame.exception is None and self._response is not None:
            frame.exception = Rejection(self._response)
        error = attempt_error(frame)
        if error.retry_after_secs is not None:
            self._stats.set_retry_after(self.backend.record_key, _now() + error.retry_after_secs)
        self.end("failed" if error.permanent else classify(error, has_answered=False))
        return True

    def end(self, verdict: Verdict) -> None:
        """End the latest request, if it has not ended."""
        latest, self._latest = self._latest, None
        if latest is not None and self._stats.holds.drop(latest[1]):
            self._stats.release(latest[0], verdict, _now())

    def _standing(self, now: float) -> Any:
        return self._stats.standing([self.backend.record_key], "hedge", Terms(), now)[0]

    async def _take_response(self, response: Any) -> None:
        if is_rejection(response):
            self._response = response


def _now() -> float:
    return asyncio.get_running_loop().time()
