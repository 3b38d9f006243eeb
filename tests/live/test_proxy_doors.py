"""Where the proxy's keys and prompts do not go, and which requests are forbidden."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pipecat_hedge.service import ProviderStats
from pipecat_hedge.tools.proxy import ProxyServer, ProxySettings
from tests.live.proxied import PATHS, asking, proxied
from tests.live.scripted_upstream import scripted
from tests.live.test_proxy_passing import SENTENCES, answering
from tests.support.logged import logged

pytestmark = pytest.mark.live


def has_ipv6_loopback() -> bool:
    with socket.socket(socket.AF_INET6) as sock:
        try:
            sock.bind(("::1", 0))
        except OSError:
            return False
    return True


WIRES = pytest.mark.parametrize("wire", PATHS)
REDIRECTS = [301, 302, 303, 307, 308]


# ---- redirects


@WIRES
@pytest.mark.parametrize("status", [*REDIRECTS, 300, 304])
@pytest.mark.parametrize("form", ["{}/v1/x", "//{host}/v1/x", "http://localhost:{port}/v1/x"])
@pytest.mark.parametrize("upstreams", [1, 2])
async def test_a_redirect_to_another_origin_is_not_followed_nor_passed_on(
    wire: str, status: int, form: str, upstreams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    good = SENTENCES[wire][0]
    upstream = {"key_env": "THEIR_KEY", "headers": {"api-key": "sk-other"}}
    async with scripted(answering(good)) as other, scripted(answering(good)) as second:
        host = other.url.removeprefix("http://")
        location = form.format(other.url, host=host, port=host.partition(":")[2])

        async def redirect(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": location})

        async with (
            scripted(redirect) as first,
            proxied(*[first.url, second.url][:upstreams], upstream=upstream) as url,
            aiohttp.ClientSession() as session,
            session.post(
                url + PATHS[wire], json=asking(wire, stream=True), allow_redirects=False
            ) as response,
        ):
            body = await response.read()
            assert "Location" not in response.headers
            if upstreams == 1:
                assert response.status == 502
                assert "error" in json.loads(body)
            else:
                assert (response.status, body) == (200, b"".join(good.parts))
        assert other.asked == []
        assert [asked.method for asked in first.asked] == ["POST"]


@WIRES
@pytest.mark.parametrize("status", REDIRECTS)
@pytest.mark.parametrize("form", ["/v1/x?y=1", "{}/v1/x?y=1"])
async def test_a_redirect_within_the_origin_is_followed_as_the_sdks_do(
    wire: str, status: int, form: str
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == PATHS[wire]:
            return web.Response(status=status, headers={"Location": form.format(upstream.url)})
        return await answering(SENTENCES[wire][0])(request)

    async with (
        scripted(answer) as upstream,
        proxied(upstream.url) as url,
        aiohttp.ClientSession() as session,
        session.post(url + PATHS[wire], json=asking(wire, stream=True)) as response,
    ):
        assert await response.read() == b"".join(SENTENCES[wire][0].parts)
    first, second = upstream.asked
    assert second.path == "/v1/x?y=1"
    keeps = status in (307, 308)
    assert (second.method, second.body) == (("POST", first.body) if keeps else ("GET", b""))


async def test_a_redirect_in_a_circle_ends() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": request.path})

    async with (
        scripted(answer) as upstream,
        proxied(upstream.url, upstream={"name": "a"}) as url,
        aiohttp.ClientSession() as session,
        session.post(url + PATHS["openai"], json=asking("openai", stream=True)) as response,
    ):
        assert response.status == 502


# ---- a wrong address


async def test_an_address_that_the_upstream_does_not_know_is_warned_of_once() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=404)

    with logged() as lines:
        async with (
            scripted(answer) as upstream,
            proxied(upstream.url, upstream={"name": "a"}) as url,
            aiohttp.ClientSession() as session,
        ):
            for _ in range(2):
                asked = asking("anthropic", stream=True)
                async with session.post(url + PATHS["anthropic"], json=asked) as response:
                    assert response.status == 404
    (line,) = [line for line in lines if "check base_url" in line]
    assert "a does not know the address or the model: check base_url and model" in line


# ---- which requests are allowed


async def exchange(port: int, host: str, request: bytes) -> tuple[int, bytes]:
    """The status and the body that a server answers to some bytes."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(request)
    async with asyncio.timeout(5.0):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    return int(head.split()[1]), body


def written(
    method: str, path: str, body: bytes, *headers: tuple[str, str], version: str = "1.1"
) -> bytes:
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in headers)]
    lines += ["Connection: close", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


ROUTES = [
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/chat/completions"),
    ("OPTIONS", "/v1/messages"),
    ("OPTIONS", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/gpt"),
    ("GET", "/health"),
    ("HEAD", "/health"),
    ("GET", "/metrics"),
    ("GET", "/hedge/live"),
    ("GET", "/v1/unknown"),
    ("GET", "/"),
]
HOST = ("Host", "127.0.0.1:1")
FORBIDDEN = {
    "foreign origin": [HOST, ("Origin", "https://evil.example")],
    "null origin": [HOST, ("Origin", "null")],
    "foreign origin with our port": [HOST, ("Origin", "http://evil.example:8080")],
    "origin that begins like ours": [HOST, ("Origin", "http://localhost.evil.example")],
    "origin that is none": [HOST, ("Origin", "localhost")],
    "two origins": [HOST, ("Origin", "http://localhost"), ("Origin", "https://evil.example")],
    "foreign host": [("Host", "evil.example")],
    "foreign host and its origin": [("Host", "evil.example"), ("Origin", "http://evil.example")],
    "no host": [],
    "two hosts": [HOST, ("Host", "evil.example")],
    "host that begins like ours": [("Host", "127.0.0.1.evil.example")],
}
ALLOWED = {
    "no origin": [HOST],
    "localhost": [("Host", "localhost:1"), ("Origin", "http://localhost:3000")],
    "https": [HOST, ("Origin", "https://localhost")],
    "address": [HOST, ("Origin", "http://127.0.0.1:8080")],
    "IPv6": [("Host", "[::1]:1"), ("Origin", "http://[::1]:5173")],
    "IPv6 without a port": [("Host", "[::1]")],
}


@pytest.mark.parametrize("name", [*FORBIDDEN, *ALLOWED])
async def test_a_web_page_spends_nothing_and_reads_nothing(name: str) -> None:
    headers = FORBIDDEN.get(name) or ALLOWED.get(name) or []
    answer = b'{"content": [], "choices": [], "input_tokens": 1}'

    async def script(request: web.Request) -> web.StreamResponse:
        return web.Response(body=answer, content_type="application/json")

    async with (
        scripted(script) as upstream,
        proxied(upstream.url) as url,
    ):
        port = int(url.rpartition(":")[2])
        for method, path in ROUTES:
            wire = "openai" if "chat" in path else "anthropic"
            body = json.dumps(asking(wire, stream=False)).encode() if method == "POST" else b""
            version = "1.0" if name == "no host" else "1.1"
            request = written(method, path, body, *headers, version=version)
            status, found = await exchange(port, "127.0.0.1", request)
            if name in FORBIDDEN and status == 400:  # by aiohttp: HTTP/1.1 has one host
                assert "host" in name
            elif name in FORBIDDEN:
                assert (method, path, status) == (method, path, 403)
                if method != "HEAD" and path != "/hedge/live":
                    assert "error" in json.loads(found)
            else:
                assert status != 403
        assert len(upstream.asked) == (0 if name in FORBIDDEN else 3)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Host", "proxy.internal")], 200),
        ([("Host", "proxy.internal"), ("Origin", "http://proxy.internal")], 403),
        ([("Host", "proxy.internal"), ("Origin", "null")], 403),
    ],
)
async def test_on_another_address_any_host_name_is_allowed_and_no_foreign_page(
    headers: Any, status: int
) -> None:
    upstream = {"name": "a", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    settings = {
        "listen": "0.0.0.0:0",
        "models": {"gpt": {"wire": "openai", "upstreams": [upstream]}},
        "keys": [{"name": "bot", "sha256": "0" * 64}],
    }
    async with ProxyServer(ProxySettings.model_validate(settings), ProviderStats()) as server:
        request = written("GET", "/metrics", b"", *headers)
        assert (await exchange(server.port, "127.0.0.1", request))[0] == status


@pytest.mark.skipif(not has_ipv6_loopback(), reason="there is no IPv6 loopback to listen on")
async def test_ipv6_loopback_is_loopback() -> None:
    upstream = {"name": "a", "base_url": "http://127.0.0.1:1/v1", "model": "m"}
    model = {"wire": "openai", "upstreams": [upstream]}
    settings = {"listen": "[::1]:0", "models": {"gpt": model}}
    async with ProxyServer(ProxySettings.model_validate(settings), ProviderStats()) as server:
        for host, status in ((f"[::1]:{server.port}", 200), ("evil.example", 403)):
            request = written("GET", "/metrics", b"", ("Host", host))
            assert (await exchange(server.port, "::1", request))[0] == status


# ---- a client that leaves


@WIRES
async def test_a_client_that_leaves_before_the_last_byte_is_no_error(
    wire: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_eof, has_left = web.StreamResponse.write_eof, asyncio.Event()

    async def leave_first(self: web.StreamResponse, data: bytes = b"") -> None:
        if "x-hedge-winner" in self.headers and not has_left.is_set():
            has_left.set()
            raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")
        await write_eof(self, data)

    monkeypatch.setattr(web.StreamResponse, "write_eof", leave_first)
    async with (
        scripted(answering(SENTENCES[wire][0])) as upstream,
        proxied(upstream.url) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(url + PATHS[wire], json=asking(wire, stream=True)) as response:
            await response.read()
        assert has_left.is_set()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
