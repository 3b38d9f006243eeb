"""A policy as data, for a line of a turn log, and made again of it.

Law: what is made again decides as the policy did, or it is not made at all. The fallback text is
left out: it is the user's words, and decides nothing. A rule of the user's own cannot be as_code.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from pipecat_hedge.policy.hedge_policy import (
    Adaptive,
    AfterSilence,
    AtOnce,
    HedgePolicy,
    OnlyOnFailure,
)
from pipecat_hedge.policy.slo import Slo

__all__ = ["as_code", "as_settings", "policy_of", "with_rule"]

_KINDS: Mapping[str, type[Any]] = {
    "race": AtOnce,
    "after": AfterSilence,
    "fallback": OnlyOnFailure,
    "adaptive": Adaptive,
}
_NAMES: Mapping[object, str] = {kind: name for name, kind in _KINDS.items()}
_OPTIONS = ("max_attempts", "commit", "losers", "stall_secs", "deadline_secs")


def as_settings(policy: HedgePolicy) -> dict[str, Any]:
    """A policy's settings, as JSON has them.

    Args:
        policy: The policy.

    Returns:
        ``rule``, which is an object with its ``kind``, or None for a rule of the user's own; and
        the other fields by their names.
    """
    kind = _NAMES.get(type(policy.rule))
    rule = None if kind is None else {"kind": kind, **dataclasses.asdict(policy.rule)}  # pyright: ignore[reportArgumentType]
    settings = {"rule": rule, **{name: getattr(policy, name) for name in _OPTIONS}}
    if settings["stall_secs"] == math.inf:  # which JSON does not have
        settings["stall_secs"] = None
    return settings


def policy_of(settings: object) -> HedgePolicy | None:
    """The policy that has such settings.

    Args:
        settings: What ``as_settings`` has as_code, of this release or another one.

    Returns:
        It; None if they do not tell, or are of no policy.
    """
    if not isinstance(settings, Mapping) or not isinstance(settings.get("rule"), Mapping):
        return None
    settings = _renamed(settings)
    options = {name: settings[name] for name in _OPTIONS if name in settings}
    rule = _renamed(settings["rule"], _OLD_RULE_NAMES)
    kind = rule.pop("kind", None)
    try:
        return _made(kind, rule, options)
    except (TypeError, ValueError, KeyError):
        return None


_OLD_NAMES = {"attempts": "max_attempts"}
_OLD_RULE_NAMES = {"worth_secs": "min_saving_secs", "deadline_secs": "target_ttft_secs"}
"""What logs of before 0.1.0 call them; read until 0.2."""


def _renamed(settings: Mapping[str, Any], names: Mapping[str, str] = _OLD_NAMES) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in settings.items()}


def _made(kind: object, rule: dict[str, Any], options: dict[str, Any]) -> HedgePolicy | None:
    """Make a policy as its user does, so that what cannot be is refused."""
    max_attempts = options.pop("max_attempts")
    if kind == "adaptive":
        options.pop("deadline_secs", None)
        slo = rule.pop("slo", None)
        slo = None if slo is None else Slo(**slo)
        return HedgePolicy.adaptive(max_attempts=max_attempts, slo=slo, **rule, **options)
    if kind == "after":
        return HedgePolicy.after(rule["seconds"], max_attempts, **options)
    if kind == "race":
        return HedgePolicy.race(max_attempts, **options)
    return HedgePolicy.fallback(max_attempts, **options) if kind == "fallback" else None


def with_rule(policy: HedgePolicy, **changed: Any) -> HedgePolicy:
    """An adaptive policy with another budget or order, and all else as it is.

    Args:
        policy: The policy; where it is not adaptive, one that has its other settings.
        **changed: Fields of ``Adaptive``.
    """
    settings = as_settings(policy)
    usual = HedgePolicy.adaptive().rule
    rule = policy.rule if isinstance(policy.rule, Adaptive) else usual
    assert isinstance(rule, Adaptive)
    settings["rule"] = {"kind": "adaptive", **dataclasses.asdict(rule), **changed}
    made = policy_of(settings)
    assert made is not None
    return made


def as_code(policy: HedgePolicy) -> str:
    """A policy as one writes it, without the keywords of all policies.

    Args:
        policy: One that ``policy_of`` makes.
    """
    rule, max_attempts = policy.rule, policy.max_attempts
    more = "" if max_attempts == 2 else f", {max_attempts}"
    if isinstance(rule, Adaptive):
        options = "" if rule.slo is None else ", slo=…"
        if rule.target_ttft_secs is not None:
            options += f", target_ttft_secs={rule.target_ttft_secs:g}"
        if rule.order != "learned":
            options += f', order="{rule.order}"'
        return f"HedgePolicy.adaptive({rule.budget:g}{more}{options})"
    if isinstance(rule, (OnlyOnFailure, AtOnce)):
        kind = "fallback" if isinstance(rule, OnlyOnFailure) else "race"
        return f"HedgePolicy.{kind}({'' if max_attempts == 2 else max_attempts})"
    return f"HedgePolicy for {policy.name}"
