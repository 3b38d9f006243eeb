"""Checks which web pages may use a local server.

Any page that a user opens can send requests to a server on the user's machine; with DNS rebinding
even as the same origin. So ``Origin`` and ``Host`` must be loopback names or allowed ones.
Programs other than browsers send no ``Origin``.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Sequence
from urllib.parse import SplitResult, urlsplit

from pipecat_hedge.race.errors import ConfigurationError


@functools.lru_cache
def is_loopback(host: str) -> bool:
    """Whether a host name or address, without a port, is loopback.

    Args:
        host: For example ``localhost``, ``127.0.0.1`` or ``[::1]``.
    """
    name = host.lower().strip("[]").rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class AllowedOrigins:
    """The origins that may use a server: loopback and the configured ones."""

    def __init__(self, named: Sequence[str] = (), *, field: str = "allow_origin"):
        """Check the configured origins.

        Args:
            named: Origins such as ``https://bot.example.com``.
            field: The option's name, for the error.

        Raises:
            ConfigurationError: If one is not an origin.
        """
        self._origins: set[tuple[str, str | None, int | None]] = set()
        for origin in named:
            if (parts := _split(origin)) is None:
                raise ConfigurationError(
                    f"{field}: {origin!r} is no origin: write a scheme and a host, and a port if "
                    "it is not the usual one, as in https://bot.example.com"
                )
            self._origins.add((parts.scheme, parts.hostname, parts.port))

    def why_forbidden(self, origins: Sequence[str], hosts: Sequence[str] | None) -> str | None:
        """Return why a request is forbidden; None if it is allowed.

        Args:
            origins: The values of its ``Origin`` headers.
            hosts: The values of its ``Host`` headers; None skips this check.
        """
        if len(origins) > 1 or not all(map(self._allows_origin, origins)):
            return "this page may not speak to this server: its origin is not allowed"
        if hosts is not None and (len(hosts) != 1 or not self._allows_host(hosts[0])):
            return "this server is not known by that name: the host is not allowed"
        return None

    def _allows_origin(self, origin: str) -> bool:
        if (parts := _split(origin)) is None:
            return False
        known = (parts.scheme, parts.hostname, parts.port) in self._origins
        return known or is_loopback(parts.hostname or "")

    def _allows_host(self, host: str) -> bool:
        if (parts := _split(f"http://{host}")) is None:
            return False
        known = any(parts.hostname == name for _, name, _ in self._origins)
        return known or is_loopback(parts.hostname or "")


def _split(origin: str) -> SplitResult | None:
    """Split an origin; None if it is not one."""
    try:
        parts = urlsplit(origin)
        _ = parts.port  # raises ValueError if it is not a number
    except ValueError:
        return None
    is_origin = parts.scheme in ("http", "https") and parts.hostname
    extra = parts.path or parts.query or parts.fragment
    return None if not is_origin or extra or set("@*") & set(parts.netloc) else parts
