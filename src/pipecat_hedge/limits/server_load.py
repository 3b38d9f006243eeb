"""The protocol of services that report their server's load."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pipecat_hedge.race.reports import ServerLoad

__all__ = ["ReportsServerLoad"]


@runtime_checkable
class ReportsServerLoad(Protocol):
    """A service that reports the load of its server."""

    @property
    def server_load(self) -> ServerLoad | None:
        """The server's load; None without a recent reading."""
        ...
