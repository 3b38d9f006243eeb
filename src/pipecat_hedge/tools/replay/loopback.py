"""Calls that stay on this machine: aioice leaves 127.0.0.1 out of the addresses that it offers."""

from __future__ import annotations

from aioice import ice

__all__ = ["LOOPBACK_ALONE"]


class _LoopbackAlone:
    """Offers 127.0.0.1, and nothing else, while anybody is inside; for the whole process."""

    def __init__(self) -> None:
        self._users = 0
        self._usual = ice.get_host_addresses

    def __enter__(self) -> None:
        if not self._users:
            self._usual = ice.get_host_addresses
            ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
        self._users += 1

    def __exit__(self, *error: object) -> None:
        self._users -= 1
        if not self._users:
            ice.get_host_addresses = self._usual


LOOPBACK_ALONE = _LoopbackAlone()
