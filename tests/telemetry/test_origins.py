"""Which web pages may use a local server."""

from __future__ import annotations

import pytest

from pipecat_hedge.telemetry import AllowedOrigins, is_loopback

NAMED = AllowedOrigins(["https://bot.example.com", "http://10.0.0.5:7860"])


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("bot.localhost", True),
        ("127.0.0.1", True),
        ("[::1]", True),
        ("::1", True),
        ("", False),
        ("localhost.example.com", False),
        ("127.0.0.1.example.com", False),
        ("10.0.0.1", False),
        ("2130706433", False),
    ],
)
def test_loopback_names(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local


@pytest.mark.parametrize(
    ("origins", "hosts", "is_allowed"),
    [
        ([], ["127.0.0.1:7860"], True),
        ([], ["[::1]:7860"], True),
        ([], ["bot.example.com:8443"], True),
        ([], ["10.0.0.5:7860"], True),
        ([], ["evil.example.com:7860"], False),
        ([], [], False),
        ([], ["localhost", "localhost"], False),
        ([], ["localhost:port"], False),
        ([], ["evil@localhost"], False),
        ([], ["localhost/evil"], False),
        ([], None, True),
        (["http://localhost:3000"], ["localhost:7860"], True),
        (["https://bot.example.com"], ["localhost"], True),
        (["http://10.0.0.5:7860"], ["10.0.0.5:7860"], True),
        (["http://bot.example.com"], ["localhost"], False),
        (["https://bot.example.com:444"], ["localhost"], False),
        (["https://evil.example.com"], ["localhost"], False),
        (["https://evil.example.com"], None, False),
        (["null"], ["localhost"], False),
        ([""], ["localhost"], False),
        (["http://localhost:3000", "https://evil.example.com"], ["localhost"], False),
        (["http://localhost@evil.example.com"], ["localhost"], False),
        (["chrome-extension://localhost"], ["localhost"], False),
    ],
)
def test_origin_and_host(origins: list[str], hosts: list[str] | None, is_allowed: bool) -> None:
    assert (NAMED.why_forbidden(origins, hosts) is None) is is_allowed
