"""A server that answers some requests of a connection only, in both wires; as some middleboxes."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal, TypeAlias

from tests.live.wire_streams import events

Ending: TypeAlias = Literal["reset", "no_byte"]
ANSWER = "Good evening."
MODELS = b'{"object": "list", "data": [], "has_more": false}'


class OneRequestServer:
    """Answers the requests for which ``serves`` holds; others end their connection.

    Attributes:
        url: Its address.
        serves: Whether the n-th request of the m-th connection is answered, both from 1.
        ending: How a connection ends at a request that is not answered.
        keep_alive: Whether a connection stays open after an answer; if not, as it says or silently.
        log: Each request: its method, connection, number in the connection, and whether answered.
    """

    def __init__(
        self,
        serves: Callable[[int, int], bool] = lambda connection, request: request == 1,
        ending: Ending = "reset",
        keep_alive: Literal["yes", "said not", "silently not"] = "yes",
    ):
        self.url = ""
        self.serves, self.ending, self.keep_alive = serves, ending, keep_alive
        self.log: list[tuple[str, int, int, bool]] = []
        self._connections = 0
        self._open: set[asyncio.StreamWriter] = set()

    def answered(self, method: str) -> int:
        """The answered requests of a method."""
        return sum(is_answered for m, _, _, is_answered in self.log if m == method)

    @property
    def lost(self) -> int:
        """The requests that were not answered."""
        return sum(not is_answered for *_, is_answered in self.log)

    @property
    def connections(self) -> int:
        """The connections so far."""
        return self._connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, to its end."""
        self._connections += 1
        connection, number, serves = self._connections, 0, True
        self._open.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                number += 1
                serves = self.serves(connection, number)
                method, path = head.decode().split()[:2]
                self.log.append((method, connection, number, serves))
                if not serves and self.ending == "reset":
                    break
                sent = await reader.readexactly(_content_length(head))
                if not serves:
                    break
                writer.write(self._response(method, path, sent))
                await writer.drain()
                if self.keep_alive != "yes":
                    break
        if not serves and self.ending == "reset":
            at_once = struct.pack("ii", 1, 0)
            connected = writer.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self._open.discard(writer)
        writer.close()

    async def close(self) -> None:
        """Close every connection."""
        for writer in self._open.copy():
            writer.close()
        while self._open:
            await asyncio.sleep(0.001)

    def _response(self, method: str, path: str, sent: bytes) -> bytes:
        wire = "anthropic" if "/messages" in path else "openai"
        kind, body = "application/json", MODELS
        if method == "POST" and json.loads(sent).get("stream"):
            kind, body = "text/event-stream", b"".join(events(wire, (ANSWER,)))
        elif method == "POST":
            message = {"role": "assistant", "content": ANSWER}
            body = json.dumps({"choices": [{"index": 0, "message": message}]}).encode()
        close = "Connection: close\r\n" if self.keep_alive == "said not" else ""
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{close}"
        return head.encode() + b"\r\n" + body


def _content_length(head: bytes) -> int:
    for line in head.decode().lower().splitlines():
        if line.startswith("content-length:"):
            return int(line.partition(":")[2])
    return 0


@asynccontextmanager
async def one_request_server(server: OneRequestServer) -> AsyncIterator[OneRequestServer]:
    """Run one."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await server.close()
        await listening.wait_closed()
