"""Addresses on loopback that never become a connection: one refuses, one hangs.

Refused: a port that is bound and not listened on; the kernel answers a SYN with RST, and the port
stays ours. Hanging: a socket that listens with a backlog of 0 and never accepts. Linux completes
the handshake of backlog + 1 connections; we make that one ourselves. From then on it drops every
SYN without an answer and the client's connect retransmits (1, 2, 4 … s) until its own timeout,
which is what a firewall that drops packets looks like.
"""

import socket


class DeadEnds:
    """The two sockets, made when first asked for.

    Args:
        host: The address they are bound to.
    """

    def __init__(self, host: str):
        self._host = host
        self._refused: socket.socket | None = None
        self._hanging: socket.socket | None = None
        self._fill: socket.socket | None = None

    @property
    def refused_url(self) -> str:
        """Connections to this address are refused at once."""
        if self._refused is None:
            self._refused = self._bound()
        return self._url(self._refused)

    @property
    def hanging_url(self) -> str:
        """Connections to this address are never established (on Linux)."""
        if self._hanging is None:
            self._hanging = self._bound()
            self._hanging.listen(0)
            self._fill = socket.create_connection(self._hanging.getsockname()[:2])
        return self._url(self._hanging)

    def close(self) -> None:
        """Close the sockets."""
        for sock in (self._fill, self._hanging, self._refused):
            if sock is not None:
                sock.close()
        self._refused = self._hanging = self._fill = None

    def _bound(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET6 if ":" in self._host else socket.AF_INET)
        sock.bind((self._host, 0))
        return sock

    def _url(self, sock: socket.socket) -> str:
        return http_url(self._host, sock.getsockname()[1])


def http_url(host: str, port: int) -> str:
    """The address of a server, an IPv6 host in brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
