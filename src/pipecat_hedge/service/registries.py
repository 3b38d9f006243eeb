"""All statistics registries of the process, for metrics recorders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

if TYPE_CHECKING:
    from pipecat_hedge.service.provider_stats import ProviderStats

__all__ = ["Follower", "follow", "introduce", "unfollow"]

Follower: TypeAlias = Callable[["ProviderStats"], None]

_registries: WeakSet[ProviderStats] = WeakSet()
_followers: list[Follower] = []
_introducing = threading.RLock()


def introduce(stats: ProviderStats) -> None:
    """Pass a new registry to all followers."""
    with _introducing:
        _registries.add(stats)
        for follower in _followers:
            follower(stats)


def follow(follower: Follower) -> None:
    """Call ``follower`` once with every registry of the process, existing and future.

    A registry belongs to the user and is freed with its last service: hold no reference to it.
    """
    with _introducing:
        _followers.append(follower)
        for stats in list(_registries):
            follower(stats)


def unfollow(follower: Follower) -> None:
    """Stop following; does nothing for one that does not follow."""
    with _introducing:
        if follower in _followers:
            _followers.remove(follower)
