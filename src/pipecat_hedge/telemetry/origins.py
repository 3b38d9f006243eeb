"""Which web pages may speak to a server that was not made for the web.

A server on this machine can be reached by every page that its user opens: the browser sends the
request, with the page's ``Origin``, and a name that resolves to 127.0.0.1 (DNS rebinding) has it
take the server for the page's own. So an ``Origin`` and a ``Host`` must be names of this machine,
or be named by the user. Programs that are no browsers send no ``Origin``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["AllowedOrigins", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether a name or address, without a port, is one of this machine alone.

    Args:
        host: ``localhost``, ``127.0.0.1``, ``::1`` and the like; brackets are taken off.
    """
    name = host.lower().strip("[]").rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class AllowedOrigins:
    """The origins that may speak to a server: those of this machine, and those that are named."""

    def __init__(self, named: Sequence[str] = (), *, field: str = "allow_origin"):
        """Check what is named.

        Args:
            named: Origins such as ``https://bot.example.com``.
            field: What the user calls them, for the error.

        Raises:
            ConfigurationError: If one is no origin.
        """
        self._origins: set[str] = set()
        self._hosts: set[str] = set()
        for origin in named:
            parts = _split(origin)
            if parts is None:
                raise ConfigurationError(
                    f"{field}: {origin!r} is no origin: write a scheme and a host, and a port if "
                    "it is not the usual one, as in https://bot.example.com"
                )
            scheme, host, port = parts
            self._origins.add(f"{scheme}://{host}{port}")
            self._hosts.add(host)

    def refusal(self, origins: Sequence[str], hosts: Sequence[str] | None) -> str | None:
        """Why a request is refused; None if it is not.

        Args:
            origins: The values of its ``Origin`` headers.
            hosts: Those of its ``Host`` headers; None where they are not checked.
        """
        if len(origins) > 1 or not all(map(self._knows, origins)):
            return "this page may not speak to this server: its origin is not allowed"
        if hosts is not None and (len(hosts) != 1 or not self._is_own(hosts[0])):
            return "this server is not known by that name: the host is not allowed"
        return None

    def _knows(self, origin: str) -> bool:
        parts = _split(origin)
        if parts is None:
            return False
        scheme, host, port = parts
        return is_loopback(host) or f"{scheme}://{host}{port}" in self._origins

    def _is_own(self, host: str) -> bool:
        parts = _split(f"http://{host}")
        return parts is not None and (is_loopback(parts[1]) or parts[1] in self._hosts)


def _split(origin: str) -> tuple[str, str, str] | None:
    """An origin's scheme, host and port with its colon; None if it is none."""
    try:
        parts = urlsplit(origin)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc or "*" in parts.netloc:
        return None
    return parts.scheme, parts.hostname, port
