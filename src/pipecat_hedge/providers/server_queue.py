"""Decides from a server's own load metrics whether it gets hedges and in which order it comes.

A queue shows a server's latency now, before any request has waited for it. A hedge sent into a
queue waits there and delays the requests behind it. So a server with a queue, or that is down, gets
no hedge, and only those replacements for which no other provider is left.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pipecat_hedge.race.reports import ServerLoad


@runtime_checkable
class ReportsServerLoad(Protocol):
    """A service that reports the load of its server."""

    @property
    def server_load(self) -> ServerLoad | None:
        """The server's load; None without a recent reading."""
        ...


def why_ineligible(load: ServerLoad | None) -> str | None:
    """Why a server gets no hedge now; None if it may get one.

    Args:
        load: Its load; None if it reports none.
    """
    if load is None:
        return None
    if not load.is_up:
        return f"is down ({load.detail})" if load.detail else "is down"
    if load.waiting:
        return f"has a queue of {load.waiting}"
    return None


def is_last_resort(load: ServerLoad | None) -> bool:
    """Whether other providers come first: the server is down, or more requests wait than run.

    Args:
        load: Its load; None if it reports none.
    """
    return load is not None and (not load.is_up or load.waiting > load.running)


def load_rank(load: ServerLoad | None) -> tuple[bool, int, int]:
    """The sort key among equivalent servers: the smallest has the shortest queue.

    Args:
        load: Its load; None, if it reports none, counts as idle.
    """
    if load is None:
        return (False, 0, 0)
    return (not load.is_up, load.waiting, load.running)
