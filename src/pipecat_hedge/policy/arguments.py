"""Arguments that are refused where they are given, rather than passed over.

Pipecat's classes hand further keyword arguments up to a base that drops what nobody knows, so a
misspelt one would be the default without a word.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["refuse_unknown", "require"]


def refuse_unknown(further: Mapping[str, Any], *, owner: type, base: type) -> None:
    """Refuse further keyword arguments that nobody takes.

    Args:
        further: Those that the owner hands up.
        owner: Whose they are.
        base: Who takes them, or hands them up to its own bases.

    Raises:
        ConfigurationError: If one is taken by nobody; the message names it and what comes nearest.
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
    """Refuse what is of another kind; None is allowed.

    Args:
        field: The argument's name.
        value: What was given.
        kind: What it must be.
        remedy: What to write instead.

    Raises:
        ConfigurationError: If it is neither; the message names the field and the remedy.
    """
    if value is not None and not isinstance(value, kind):
        raise ConfigurationError(f"{field} must be a {kind.__name__}, got {value!r}: {remedy}")


def _parameters(owner: type) -> list[str]:
    """The names of the arguments that a class takes itself."""
    if "__init__" not in vars(owner):
        return []
    parameters = list(inspect.signature(vars(owner)["__init__"]).parameters.values())[1:]
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [parameter.name for parameter in parameters if parameter.kind not in variadic]
