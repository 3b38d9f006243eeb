"""Every registry of the process, for whoever has to see all of them: a recorder of metrics."""

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
    """Hand a registry that has just been made to whoever follows."""
    with _introducing:
        _registries.add(stats)
        for follower in _followers:
            follower(stats)


def follow(follower: Follower) -> None:
    """Hand over every registry of the process: those there are, and each that is made from now on.

    A registry is the user's, and goes when nobody needs it: do not keep it alive.

    Args:
        follower: Called once with each.
    """
    with _introducing:
        _followers.append(follower)
        for stats in list(_registries):
            follower(stats)


def unfollow(follower: Follower) -> None:
    """Hand over no more; as ``follow``."""
    with _introducing:
        if follower in _followers:
            _followers.remove(follower)
