"""Converts a policy to JSON settings for a turn log, and back.

A policy that is read back launches attempts as the original did, or it is invalid. ``probes``,
``drain_share`` and ``fallback_text`` are left out, which change no launch, and so is ``route``, a
function. A custom rule cannot be converted.
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

_KINDS: Mapping[str, type[Any]] = {
    "race": AtOnce,
    "after": AfterSilence,
    "fallback": OnlyOnFailure,
    "adaptive": Adaptive,
}
_NAMES: Mapping[object, str] = {kind: name for name, kind in _KINDS.items()}
_OPTIONS = ("max_attempts", "commit", "losers", "stall_secs", "silence_secs", "deadline_secs")


def as_settings(policy: HedgePolicy) -> dict[str, Any]:
    """Return a policy's settings as JSON types.

    Returns:
        ``rule``, an object with its ``kind``, or None for a custom rule; and the other fields by
        name.
    """
    kind = _NAMES.get(type(policy.rule))
    rule = None if kind is None else {"kind": kind, **dataclasses.asdict(policy.rule)}  # pyright: ignore[reportArgumentType]
    settings = {"rule": rule, **{name: getattr(policy, name) for name in _OPTIONS}}
    for name in ("stall_secs", "silence_secs"):
        if settings[name] == math.inf:  # which JSON does not have
            settings[name] = None
    return settings


def policy_of(settings: object) -> HedgePolicy | None:
    """Return the policy with settings from ``as_settings``, of this or another release.

    The result is None if the settings describe no policy, or a custom rule.
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
"""Names in logs written before 0.1.0; read until 0.2."""


def _renamed(settings: Mapping[str, Any], names: Mapping[str, str] = _OLD_NAMES) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in settings.items()}


def _made(kind: object, rule: dict[str, Any], options: dict[str, Any]) -> HedgePolicy | None:
    """Build a policy by its class method, which checks the arguments."""
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
