"""How busy a model server is, as it says itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

__all__ = ["KnowsItsServer", "ServerLoad"]


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One look at a server.

    Parameters:
        is_up: Whether it answered, and calls itself healthy.
        running: Requests being worked on, those included that this process has sent since the look.
        waiting: Requests in its queue.
        kv_cache_usage: The share of its memory for prompts that is in use, from 0 to 1; None if it
            does not say.
        prefix_hit_share: The share of the prompts' tokens, since the look before, that were still
            in its prefix cache, from 0 to 1; None if there were none, or it does not say.
        detail: What is wrong, where it is not up.
    """

    is_up: bool
    running: int = 0
    waiting: int = 0
    kv_cache_usage: float | None = None
    prefix_hit_share: float | None = None
    detail: str = ""


@runtime_checkable
class KnowsItsServer(Protocol):
    """A service that knows how busy the server behind it is."""

    @property
    def server_load(self) -> ServerLoad | None:
        """How busy it is; None if nothing recent is known."""
        ...
