"""What holds for all requests of a running simulator, whatever they ask for: its bad hours.

`POST /simulator/conditions` replaces them as a whole, so that nobody has to know what was said
before: `{"fault": "429", "rate": 0.3}` is a provider that refuses, `{}` is the usual one again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipecat_hedge.tools.simulator.behaviour import KEYS, Behaviour, BehaviourError, read_keys
from pipecat_hedge.tools.simulator.capacity import checked_limit

__all__ = ["Conditions", "read_conditions"]


@dataclass(frozen=True, slots=True)
class Conditions:
    """What holds for all requests.

    Parameters:
        keys: Fields of the behaviour, which go before those that a request asks for.
        has_capacity: Whether they set the capacity; else it is what the simulator began with.
        capacity: How many requests are served at once; None is as many as come.
        told: The same as it was told, to be shown.
    """

    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    has_capacity: bool = False
    capacity: int | None = None
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def applied(self, behaviour: Behaviour) -> Behaviour:
        """A request's behaviour under these conditions.

        Args:
            behaviour: What it asks for.
        """
        return replace(behaviour, **self.keys) if self.keys else behaviour


def read_conditions(told: Mapping[str, Any]) -> Conditions:
    """Read conditions from JSON.

    Args:
        told: A model's keys, with values as in a model name or as JSON has them, and ``capacity``.

    Raises:
        BehaviourError: If a key or a value is unknown; names the field and what it may be.
    """
    if unknown := told.keys() - KEYS.keys() - {"capacity"}:
        known = ", ".join([*KEYS, "capacity"])
        raise BehaviourError(f"{min(unknown)}: unknown key; known keys: {known}")
    texts = {key: _text(value) for key, value in told.items() if key != "capacity"}
    try:
        capacity = checked_limit(told.get("capacity"))
    except ValueError as error:
        raise BehaviourError(str(error)) from None
    return Conditions(read_keys(texts), "capacity" in told, capacity, dict(told))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
