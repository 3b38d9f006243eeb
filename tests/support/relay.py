"""A server in front of another one, on real sockets: with TLS, and with a say over connections."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Relay:
    """Hands bytes on, both ways, to a server on this machine.

    Attributes:
        port: Where it listens.
        opened: How many connections it has been asked for so far.
    """

    def __init__(self, to_port: int):
        self._to_port = to_port
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.opened = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, to its end."""
        self.opened += 1
        self._open.add(writer)
        there, back = await asyncio.open_connection("127.0.0.1", self._to_port)
        try:
            await asyncio.wait(
                [
                    asyncio.create_task(_pump(reader, back)),
                    asyncio.create_task(_pump(there, writer)),
                ]
            )
        finally:
            self._open.discard(writer)
            writer.close()
            back.close()

    async def hang_up(self) -> None:
        """Close every connection from this side, and wait until that is done."""
        closing = list(self._open)
        for writer in closing:
            writer.close()
        for writer in closing:
            with suppress(OSError):
                await writer.wait_closed()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    with suppress(OSError):
        writer.close()


@asynccontextmanager
async def relay(to_port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Relay]:
    """Run one.

    Args:
        to_port: The port of the server behind it.
        tls: Its certificate; None speaks no TLS.
    """
    served = Relay(to_port)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        await served.hang_up()
        await server.wait_closed()


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A certificate for 127.0.0.1, signed by itself: the server's context, and the client's."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=str(pem))
