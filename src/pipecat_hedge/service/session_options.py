"""Checks what a user configures for a session."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipecat.services.settings import LLMSettings
from pipecat.utils.types import is_given

from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.slo import Slo
from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.reports import TIERS
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.token_budget import TokenBudget


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """The options of all turns of a session.

    Parameters:
        policy: When to send further requests.
        terms: The terms on which its requests get permits.
        slo: The SLO of its callers, or None.
        token_budget: The most tokens of a turn's prompt and answer.
        settings: Settings that all members share, or None.
        warm: Whether the first turn is prepared, and connections are kept open.
    """

    policy: HedgePolicy
    terms: Terms
    slo: Slo | None
    token_budget: TokenBudget
    settings: LLMSettings | None
    warm: bool


def check_tier(tier: object) -> None:
    """Check the argument ``tier``.

    Raises:
        ConfigurationError: If it is not known; the message lists those that are.
    """
    if tier not in TIERS:
        raise ConfigurationError(
            f"tier is not known, got {tier!r}: write {', '.join(repr(t) for t in TIERS)}"
        )


def check_settings(settings: LLMSettings | None) -> None:
    """Check the argument ``settings``.

    Raises:
        ConfigurationError: If it has a model; the message says where to set that.
    """
    if settings is not None and is_given(settings.model):
        raise ConfigurationError(
            "settings.model cannot be shared by several providers: set the model on each "
            "service where it is constructed"
        )


def check_residency(providers: Iterable[Provider], residency: str | None) -> None:
    """Check that all providers have a session's residency.

    Raises:
        ConfigurationError: If one has another; the message names it.
    """
    if residency is None:
        return
    for provider in providers:
        if provider.residency != residency:
            raise ConfigurationError(
                f"residency is {residency!r}, but provider {provider.name!r} has "
                f"{provider.residency!r}: leave it out, or write Provider({provider.name!r}, ..., "
                f"residency={residency!r}) if its data stays there"
            )


def check_policy_arguments(arguments: Mapping[str, object]) -> None:
    """Check that no argument of a policy is given to the service.

    Raises:
        ConfigurationError: If one is; the message says where it belongs.
    """
    shared = {field.name for field in dataclasses.fields(HedgePolicy)} - {"rule", "name"}
    for name in arguments:
        for make in ("adaptive", "race", "after", "fallback"):
            if name in shared | inspect.signature(getattr(HedgePolicy, make)).parameters.keys():
                raise ConfigurationError(
                    f"{name} belongs to HedgePolicy: write policy=HedgePolicy.{make}({name}=...)"
                )
