"""Reads the state of providers, budgets and sessions as Prometheus gauges, at each scrape."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, get_args

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.race.reports import BreakerState
from pipecat_hedge.service.provider_stats import ProviderStats

Labels: TypeAlias = tuple[str, str]
"""The label values of a provider and its model."""
PROVIDER = ("provider", "model")


def state_metrics(
    registries: Sequence[ProviderStats],
    labels: Callable[[ProviderStats], list[tuple[str, Labels]]],
) -> Iterator[Metric]:
    """Yield the gauges. Registries are summed; of waits and balances the worst is shown.

    Args:
        registries: The registries of the process, usually one.
        labels: Returns the key and the label values of each provider in a registry.
    """
    now = time.monotonic()
    breaker, in_flight, limit, slow = Counter(), Counter(), Counter(), Counter()
    retry_after: dict[tuple[str, ...], float] = {}
    budget: dict[tuple[str, ...], float] = {}
    balance: dict[tuple[str, ...], float] = {}
    for stats in registries:
        slow_keys, providers = stats.slow(), labels(stats)
        standings = stats.standing([key for key, _ in providers], "primary", Terms(), now)
        for (key, name_and_model), standing in zip(providers, standings, strict=True):
            breaker.update({(*name_and_model, state): 0 for state in get_args(BreakerState)})
            breaker[*name_and_model, standing.breaker] += 1
            in_flight[name_and_model] += standing.in_flight
            limit[name_and_model] += standing.limit
            slow[name_and_model] += key in slow_keys
            retry_after[name_and_model] = max(
                standing.retry_after_secs, retry_after.get(name_and_model, 0.0)
            )
        for account in stats.budgets():
            name = (f"{account.budget:g}",)
            budget[name] = account.budget
            balance[name] = min(account.balance, balance.get(name, account.balance))
    lag = max((stats.loop_watch.lag_secs(now) or 0.0 for stats in registries), default=0.0)

    yield _gauge(
        "breaker_state",
        "Registries, one per process as a rule, in which a provider's breaker is in this state.",
        (*PROVIDER, "state"),
        breaker,
    )
    yield _gauge("concurrency_limit", "Requests a provider may have at once.", PROVIDER, limit)
    yield _gauge("requests_in_flight", "Requests a provider has now.", PROVIDER, in_flight)
    yield _gauge(
        "provider_retry_after_seconds",
        "Remaining time of a provider's Retry-After.",
        PROVIDER,
        retry_after,
    )
    yield _gauge(
        "provider_slow",
        "Registries in which a provider is slower than typical for it.",
        PROVIDER,
        slow,
    )
    sessions = sum(stats.sessions for stats in registries)
    yield _gauge("sessions", "Running sessions.", (), {(): sessions})
    yield _gauge(
        "event_loop_lag_seconds", "Lag of the event loop in the last half second.", (), {(): lag}
    )
    yield _gauge(
        "budget_requests_per_turn",
        "Extra requests per turn that hedging may make on average.",
        ("budget",),
        budget,
    )
    yield _gauge(
        "budget_balance_requests",
        "Balance of the hedging budget, in requests; negative is a debt.",
        ("budget",),
        balance,
    )


def _gauge(
    name: str, documentation: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = GaugeMetricFamily(f"pipecat_hedge_{name}", documentation, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family
