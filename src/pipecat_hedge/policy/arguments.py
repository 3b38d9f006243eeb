"""Refuses invalid arguments at construction.

Pipecat's classes pass further keyword arguments to a base that ignores unknown ones, so a misspelt
argument would silently have its default.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from pipecat_hedge.race.errors import ConfigurationError


def refuse_unknown(further: Mapping[str, Any], *, owner: type, base: type) -> None:
    """Refuse keyword arguments that no base class accepts.

    Args:
        further: The keyword arguments that the owner passes on.
        owner: The class that received them, for the message.
        base: The class that accepts them, or passes them on to its bases.

    Raises:
        ConfigurationError: If one is unknown; the message names it and the nearest known one.
    """
    taken = {name for each in base.__mro__ for name in _parameters(each)}
    for name in further:
        if name in taken:
            continue
        known = [*_parameters(owner), *sorted(taken)]
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
        raise ConfigurationError(f"{name} is no argument of {owner.__name__}: {remedy}")


def require(field: str, value: object, kind: type, remedy: str) -> None:
    """Refuse a value of another type; None is allowed.

    Args:
        field: The argument's name, for the message.
        value: The argument.
        kind: The required type.
        remedy: What to write instead, for the message.

    Raises:
        ConfigurationError: If the type differs; the message names the argument and the remedy.
    """
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{field} must be a {kind.__name__}, got {value!r}: {remedy}")


def _parameters(owner: type) -> list[str]:
    """Return the names of the arguments that a class itself accepts."""
    if "__init__" not in vars(owner):
        return []
    parameters = list(inspect.signature(vars(owner)["__init__"]).parameters.values())[1:]
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [parameter.name for parameter in parameters if parameter.kind not in variadic]
