"""What a server's own word about its load means for a race. Pure.

Law: a server that says it is busy gets no request that is not needed, and a caller's request goes
where the fewest are in front of it.

The latency that was learned says how a provider usually does; a queue says how it does now, before
anybody has waited for it. A hedge sent into a queue waits there and slows down those behind it, who
are other callers' first requests: so none is sent to a server with a queue, nor to one that is
down. A replacement for what has failed may be, when nobody else is left.
"""

from __future__ import annotations

from pipecat_hedge.race.reports import ServerLoad

__all__ = ["hedge_refusal", "is_last_resort", "load_rank"]


def hedge_refusal(load: ServerLoad | None) -> str | None:
    """Why a server gets no hedge now, for a person to read; None if it may get one.

    Args:
        load: What it says of itself; None if it says nothing.
    """
    if load is None:
        return None
    if not load.is_up:
        return f"is down ({load.detail})" if load.detail else "is down"
    if load.waiting:
        return f"has a queue of {load.waiting}"
    return None


def is_last_resort(load: ServerLoad | None) -> bool:
    """Whether others are to be asked first: the server is down, or more wait there than are served.

    Args:
        load: What it says of itself; None if it says nothing.
    """
    return load is not None and (not load.is_up or load.waiting > load.running)


def load_rank(load: ServerLoad | None) -> tuple[bool, int, int]:
    """By what to choose among servers that serve the same: the smallest has the shortest queue.

    Args:
        load: What it says of itself; None if it says nothing, and is then taken to be idle.
    """
    if load is None:
        return (False, 0, 0)
    return (not load.is_up, load.waiting, load.running)
