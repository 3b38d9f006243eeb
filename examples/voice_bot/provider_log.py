"""The providers' state in a call, for the page."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from pipecat_hedge import TurnReport
from pipecat_hedge.race import ProviderState

__all__ = ["ProviderLog"]


class ProviderLog:
    """Counts each provider's requests in this call, by outcome."""

    def __init__(self) -> None:
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._last_errors: dict[str, str] = {}
        self._first: str | None = None
        self._routing_reason: str | None = None

    def count(self, report: TurnReport) -> None:
        """Count a race's requests."""
        for attempt in report.attempts:
            self._outcomes[attempt.provider][attempt.outcome] += 1
            if attempt.error_category is not None:
                self._last_errors[attempt.provider] = attempt.error_category
        if report.attempts:
            self._first = report.attempts[0].provider
        self._routing_reason = report.routing_reason

    def message(self, states: Sequence[ProviderState]) -> dict[str, Any]:
        """Return the page's message with the providers' state."""
        return {
            "type": "providers",
            "routing_reason": self._routing_reason,
            "providers": [self._provider(state) for state in states],
        }

    def _provider(self, state: ProviderState) -> dict[str, Any]:
        outcomes = self._outcomes[state.provider]
        return {
            "provider": state.provider,
            "p50_secs": state.p50_secs,
            "p95_secs": state.p95_secs,
            "prior_weight": state.prior_weight,
            "is_last": state.is_last,
            "retry_after_secs": state.retry_after_secs,
            "breaker": state.breaker,
            "breaker_reason": state.breaker_reason,
            "in_flight": state.in_flight,
            "limit": state.limit,
            "server": None if state.server is None else dataclasses.asdict(state.server),
            "was_first": state.provider == self._first,
            "requests": outcomes.total(),
            "won": outcomes["won"],
            "superseded": outcomes["superseded"],
            "failed": outcomes["failed"],
            "interrupted": outcomes["interrupted"],
            "last_error": self._last_errors.get(state.provider),
        }
