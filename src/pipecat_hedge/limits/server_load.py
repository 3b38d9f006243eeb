"""How busy a model server is, as it says itself."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pipecat_hedge.race.reports import ServerLoad

__all__ = ["ReportsServerLoad", "ServerLoad"]


@runtime_checkable
class ReportsServerLoad(Protocol):
    """A service that knows how busy the server behind it is."""

    @property
    def server_load(self) -> ServerLoad | None:
        """How busy it is; None if nothing recent is known."""
        ...
