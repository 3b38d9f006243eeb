"""Converts providers' standings and estimates to the public reports."""

from __future__ import annotations

from collections.abc import Sequence

from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.providers.record import BreakerChange
from pipecat_hedge.race.reports import BreakerReport, ProviderState
from pipecat_hedge.service.member import Member
from pipecat_hedge.service.provider_stats import ProviderStats


def states_of(
    members: Sequence[Member], stats: ProviderStats, terms: Terms, now: float
) -> tuple[ProviderState, ...]:
    """The providers' states, with their estimated time to first token over all prompt sizes.

    What a session puts last it says itself (``is_last``).

    Args:
        members: The providers.
        stats: Their statistics.
        terms: On which terms the session's requests are admitted.
        now: The loop's time.
    """
    backends = [member.backend() for member in members]
    estimates = stats.estimates(backends, None, by_sentence=False)
    standings = stats.standing([backend.record_key for backend in backends], "primary", terms, now)
    return tuple(
        ProviderState(
            provider=member.name,
            model=backend.model,
            p50_secs=estimates[member.name].first_token.quantile(0.5),
            p95_secs=estimates[member.name].first_token.quantile(0.95),
            prior_weight=estimates[member.name].prior_weight,
            is_last=False,
            retry_after_secs=standing.retry_after_secs,
            server=member.server_load,
            breaker=standing.breaker,
            breaker_reason=standing.breaker_reason,
            in_flight=standing.in_flight,
            limit=standing.limit,
        )
        for member, backend, standing in zip(members, backends, standings, strict=True)
    )


def breaker_report(change: BreakerChange) -> BreakerReport:
    """Convert a change of a breaker to the public report."""
    provider, _, model = change.key.partition(" | ")
    event = change.event
    return BreakerReport(provider, model or None, event.before, event.after, event.reason)
