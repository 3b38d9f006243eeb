"""Which web pages may speak to a server of this machine."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry.exposition import start_http_server
from pipecat_hedge.telemetry.live import LIVE_PATH, LiveFeed
from pipecat_hedge.telemetry.live_server import LiveServer
from pipecat_hedge.telemetry.origins import AllowedOrigins, is_loopback

NAMED = AllowedOrigins(["https://bot.example.com", "http://10.0.0.5:7860"])


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("localhost", True),
        ("LOCALHOST.", True),
        ("bot.localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("::1", True),
        ("", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("2130706433", False),
    ],
)
def test_names_of_this_machine(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


@pytest.mark.parametrize(
    ("origins", "hosts", "is_let_in"),
    [
        ([], ["127.0.0.1:7860"], True),
        ([], ["localhost"], True),
        ([], ["[::1]:7860"], True),
        ([], ["bot.example.com"], True),
        ([], ["bot.example.com:8443"], True),
        ([], ["10.0.0.5:7860"], True),
        ([], ["evil.example.com"], False),
        ([], ["evil.example.com:7860"], False),
        ([], [], False),
        ([], ["localhost", "localhost"], False),
        ([], ["localhost:port"], False),
        ([], ["evil@localhost"], False),
        ([], ["localhost/evil"], False),
        ([], None, True),
        (["http://localhost:3000"], ["localhost:7860"], True),
        (["https://127.0.0.1"], ["localhost"], True),
        (["https://bot.example.com"], ["localhost"], True),
        (["http://10.0.0.5:7860"], ["10.0.0.5:7860"], True),
        (["http://bot.example.com"], ["localhost"], False),
        (["https://bot.example.com:444"], ["localhost"], False),
        (["https://evil.example.com"], ["localhost"], False),
        (["https://evil.example.com"], None, False),
        (["null"], ["localhost"], False),
        ([""], ["localhost"], False),
        (["file://"], ["localhost"], False),
        (["http://localhost.evil.com"], ["localhost"], False),
        (["http://localhost:3000", "https://evil.example.com"], ["localhost"], False),
        (["http://localhost@evil.example.com"], ["localhost"], False),
        (["chrome-extension://localhost"], ["localhost"], False),
    ],
)
def test_who_is_let_in(origins: list[str], hosts: list[str] | None, is_let_in: bool) -> None:
    assert (NAMED.refusal(origins, hosts) is None) is is_let_in


@pytest.mark.parametrize(
    "named",
    ["*", "https://*.example.com", "bot.example.com", "https://", "https://a/b", "null", "a:b:c"],
)
def test_what_is_no_origin_is_refused(named: str) -> None:
    with pytest.raises(ConfigurationError, match=r"allow_origin: .* is no origin: write a scheme"):
        AllowedOrigins([named])


@pytest.mark.parametrize(
    ("headers", "addr", "status"),
    [
        ({}, "127.0.0.1", 200),
        ({"Host": "localhost:1"}, "127.0.0.1", 200),
        ({"Host": "bots.internal"}, "127.0.0.1", 403),
        ({"Host": "bots.internal"}, "0.0.0.0", 200),
        ({"Origin": "https://evil.example.com"}, "127.0.0.1", 403),
        ({"Origin": "https://evil.example.com"}, "0.0.0.0", 403),
        ({"Origin": "http://localhost:3000"}, "0.0.0.0", 200),
    ],
)
async def test_metrics_and_the_live_feed_are_for_no_other_page(
    headers: dict[str, str], addr: str, status: int
) -> None:
    """A scraper on another machine knows it by whatever name, where it is let in at all."""
    server, thread = start_http_server(0, addr=addr, registry=CollectorRegistry())
    try:
        async with LiveServer(LiveFeed(), host=addr) as live, aiohttp.ClientSession() as session:
            feed = live.url.replace("0.0.0.0", "127.0.0.1") + LIVE_PATH
            for url in (f"http://127.0.0.1:{server.server_port}/metrics", feed):
                async with session.get(url, headers=headers) as answer:
                    assert answer.status == status, url
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
