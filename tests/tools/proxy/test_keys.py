"""Whose key a request carries, and what hedges it has left."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from pipecat_hedge.tools.proxy import keys as module
from pipecat_hedge.tools.proxy.keys import Client, Keys, new_key
from pipecat_hedge.tools.proxy.settings import KeySettings


def made(name: str) -> tuple[str, KeySettings]:
    key, _, lines = new_key(name).partition("\n")
    return key, KeySettings(**tomllib.loads(lines)["keys"][0])


@pytest.mark.parametrize(
    ("header", "is_known"),
    [
        ({"x-api-key": "{}"}, True),
        ({"Authorization": "Bearer {}"}, True),
        ({"x-api-key": "{}x"}, False),
        ({"Authorization": "{} "}, True),
        ({"Authorization": "Bearer \udcff"}, False),
        ({"x-api-key": ""}, False),
        ({}, False),
    ],
)
def test_a_client_is_known_by_its_key(header: dict[str, str], is_known: bool) -> None:
    key, settings = made("bot")
    keys = Keys([made("other")[1], settings])
    found = keys.client({name: value.replace("{}", key) for name, value in header.items()})
    assert (found is not None and found.settings.name == "bot") is is_known


@pytest.mark.parametrize("name", ['Ana\'s "bot" \\ 2', "Büro\n1"])
def test_a_new_key_s_lines_are_read_again_whatever_its_name(name: str) -> None:
    assert made(name)[1].name == name


def test_every_hash_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made_keys = [made(str(number)) for number in range(5)]
    compared: list[bytes] = []

    def compare(known: bytes, digest: bytes) -> bool:
        compared.append(known)
        return known == digest

    monkeypatch.setattr(module.hmac, "compare_digest", compare)
    keys = Keys([settings for _, settings in made_keys])
    for key, _ in (*made_keys, ("wrong", None)):
        compared.clear()
        keys.client({"x-api-key": key})
        assert len(compared) == 5  # whether one is found, and where, takes no less time


def test_new_settings_keep_what_was_used() -> None:
    key, settings = made("bot")
    keys = Keys([settings])
    client = keys.client({"x-api-key": key})
    more = made("more")[1]
    assert keys.replace([more, settings.model_copy(update={"tier": "premium"})]) == set()
    assert keys.client({"x-api-key": key}) is client
    assert client is not None
    assert client.settings.tier == "premium"
    assert keys.replace([more]) == {client}
    assert keys.client({"x-api-key": key}) is None
    keys.replace([])
    assert keys.client({}) is None


def test_without_keys_no_client_needs_one() -> None:
    assert Keys([]).client({}) is not None


def hedges(report: Any, count: int, usd: float | None = None) -> Any:
    """A report with hedges."""

    class Attempt:
        launch_reason, sent_secs = "hedge", 0.5

        def __init__(self) -> None:
            self.usd = usd

    report.attempts = [Attempt() for _ in range(count)]
    return report


class Report:
    attempts: list[Any]


@pytest.mark.parametrize(
    ("allowance", "usd"), [({"hedges_per_hour": 2}, None), ({"hedge_usd_per_hour": 0.1}, 0.06)]
)
def test_an_allowance_of_hedges_is_used_up_and_refilled(
    allowance: dict[str, float], usd: float | None
) -> None:
    settings = {"name": "bot", "sha256": "0" * 64, **allowance}
    client = Client(KeySettings.model_validate(settings))
    assert client.may_hedge(0.0)
    client.spend(hedges(Report(), 2, usd), 0.0)
    assert not client.may_hedge(1.0)
    assert client.may_hedge(1900.0)
