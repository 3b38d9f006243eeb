"""Checks arguments at construction.

Pipecat's classes pass further keyword arguments to a base that ignores unknown ones, so a misspelt
argument would silently have its default.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipecat_hedge.race.errors import ConfigurationError


def require_known(further: Mapping[str, Any], *, owner: type, base: type) -> None:
    """Check that a base class accepts the further keyword arguments.

    Args:
        further: The keyword arguments that the owner passes on.
        owner: The class that received them, for the message.
        base: The class that accepts them, or passes them on to its bases.

    Raises:
        ConfigurationError: If one is unknown; the message names it and the nearest known one.
    """
    taken = {name for each in base.__mro__ for name in _parameters(each)}
    for name in further:
        if name not in taken:
            raise _unknown(name, owner.__name__, [*_parameters(owner), *sorted(taken)])


def require_options(
    further: Mapping[str, Any], *, owner: Callable[..., object], options: type
) -> None:
    """Check that the further keyword arguments of a function are those of its options.

    Args:
        further: The keyword arguments that the function received as its options.
        owner: The function, for the message.
        options: The ``TypedDict`` of the options.

    Raises:
        ConfigurationError: If one is unknown; the message names it and the nearest known one.
    """
    taken = options.__annotations__
    for name in further:
        if name not in taken:
            raise _unknown(name, owner.__qualname__, [*_named(owner), *taken])


def require(
    field: str,
    value: object,
    kind: type | tuple[type, ...],
    remedy: str,
    *,
    may_be_none: bool = True,
) -> None:
    """Check a value's type.

    Args:
        field: The argument's name, for the message.
        value: The argument.
        kind: The required type, or several.
        remedy: What to write instead, for the message.
        may_be_none: Whether None is allowed.

    Raises:
        ConfigurationError: If the type differs; the message names the argument and the remedy.
    """
    if not isinstance(value, kind) and not (value is None and may_be_none):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join(each.__name__ for each in kinds)
        raise ConfigurationError(f"{field} must be a {names}, got {value!r}: {remedy}")


def require_flag(field: str, value: object) -> None:
    """Check that a value is True or False: the text "false" would count as True.

    Raises:
        ConfigurationError: If it is neither; the message names the argument.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{field} must be a bool, got {value!r}: write True or False")


def require_number(
    field: str,
    value: Any,
    what: str,
    remedy: str,
    is_valid: Callable[[float], bool],
    *,
    kind: type[int] | tuple[type, ...] = (int, float),
) -> None:
    """Check that a value is a valid number; text and True are none.

    Args:
        field: The argument's name, for the message.
        value: The argument.
        what: What it must be, for the message.
        remedy: What to write instead, for the message.
        is_valid: Whether a number is; False of NaN, as every comparison is.
        kind: ``int`` for a whole number.

    Raises:
        ConfigurationError: If it is invalid; the message names the argument and the remedy.
    """
    if not isinstance(value, kind) or isinstance(value, bool) or not is_valid(value):
        raise ConfigurationError(f"{field} must be {what}, got {value!r}: {remedy}")


def _parameters(owner: type) -> list[str]:
    """Return the names of the arguments that a class itself accepts."""
    if "__init__" not in vars(owner):
        return []
    return _named(vars(owner)["__init__"])[1:]


def _named(function: Callable[..., object]) -> list[str]:
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind not in variadic]


def _unknown(name: str, owner: str, known: Sequence[str]) -> ConfigurationError:
    near = difflib.get_close_matches(name, known, n=1)
    remedy = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
    return ConfigurationError(f"{name} is no argument of {owner}: {remedy}")
