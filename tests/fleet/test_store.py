"""What every shared store does: in memory, on Redis, on Valkey if installed, and on a cluster."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from pipecat_hedge.fleet.redis_store import BUDGET_SECS, KEPT_SECS, RedisStore
from pipecat_hedge.providers.shared_store import Delta, News, Request, SharedStore
from pipecat_hedge.tools.bench.redis_process import RedisProcess
from tests.support.memory_store import MemoryStore
from tests.support.redis_server import RedisServer, needs_redis

A, B = "a | model", "b | model"
JOIN_SECS = 30.0
"""Within which the nodes of a cluster find each other: 3 to 6 s."""
Make = Callable[..., SharedStore]


class ClusterNode(RedisProcess):
    """A node of a cluster. It talks to the others at a port that is 10,000 higher."""

    def __init__(self) -> None:
        super().__init__()
        while self.port > 55_000:
            super().__init__()
        self.options = (
            *("--cluster-enabled", "yes"),
            *("--cluster-config-file", f"pipecat-hedge-nodes-{self.port}.conf"),
        )

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        Path(tempfile.gettempdir(), self.options[-1]).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def cluster_url() -> Iterator[str]:
    with ExitStack() as stack:
        nodes = [stack.enter_context(ClusterNode()) for _ in range(3)]
        addresses = [f"127.0.0.1:{node.port}" for node in nodes]
        command = ["redis-cli", "--cluster", "create", *addresses, "--cluster-yes"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=JOIN_SECS)
        until = time.monotonic() + JOIN_SECS
        for node in nodes:
            with redis.Redis(port=node.port, socket_timeout=JOIN_SECS) as control:
                while (state := control.execute_command("CLUSTER INFO")["cluster_state"]) != "ok":
                    assert time.monotonic() < until, f"node {node.port} is {state}, not ok"
                    time.sleep(0.05)
        yield nodes[0].url


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class ValkeyServer(RedisProcess):
    program = "valkey-server"


@pytest.fixture(scope="module")
def valkey_url() -> Iterator[str]:
    with ValkeyServer() as server:
        yield server.url


@pytest.fixture(
    params=[
        "memory",
        pytest.param("redis", marks=needs_redis),
        *(["valkey"] if shutil.which(ValkeyServer.program) else []),
        pytest.param("cluster", marks=[needs_redis, pytest.mark.live]),
    ]
)
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    """Stores that share one place."""
    memory, stores = MemoryStore(), list[SharedStore]()
    kind, url = request.param, ""
    if kind == "redis":
        url = request.getfixturevalue("server").url
    elif kind != "memory":
        url = request.getfixturevalue(f"{kind}_url")

    def make(**options: Any) -> SharedStore:
        if kind == "memory":
            return memory
        stores.append(RedisStore(url, **{"prefix": request.node.name[:60], **options}))
        return stores[-1]

    yield make
    for store in stores:
        await store.close()


def asked(*keys: str, hours: tuple[int, ...] = (5,)) -> Request:
    return Request(hours, keys, (7, 6), ("0.1",), (A, B))


def delta(sums: dict[str, int], key: str = A, hour: int = 5, **budget: int) -> Delta:
    return Delta(hour, {key: sums}, 7, {"0.1": budget} if budget else {})


async def test_sums_add_up_over_processes(make: Make) -> None:
    one, two = make(), make()
    await one.add(delta({"0c7": 2, "58": 1}))
    await two.add(delta({"0c7": 3}))
    await two.add(delta({"0c7": 1}, key=B))
    found = await one.read(asked(A, B))
    assert found.latencies == {(A, 5): {"0c7": 5, "58": 1}, (B, 5): {"0c7": 1}}


async def test_hours_are_apart(make: Make) -> None:
    store = make()
    await store.add(delta({"07": 1}, hour=4))
    await store.add(delta({"07": 2}, hour=5))
    found = await store.read(asked(A, hours=(5, 4, 3)))
    assert found.latencies == {(A, 5): {"07": 2}, (A, 4): {"07": 1}, (A, 3): {}}


async def test_budgets_add_up_over_windows(make: Make) -> None:
    store = make()
    await store.add(Delta(5, {}, 6, {"0.1": {"turns": 10, "hedges": 500}}))
    await store.add(Delta(5, {}, 7, {"0.1": {"turns": 5, "hedges": 1500}}))
    assert (await store.read(asked())).budgets == {"0.1": {"turns": 15, "hedges": 2000}}


async def test_nothing_is_known_at_first(make: Make) -> None:
    assert await make().read(asked(A)) == News({(A, 5): {}}, {"0.1": {}}, {})


async def test_a_second_process_confirms_that_a_provider_is_down(make: Make) -> None:
    store = make()
    for _ in range(2):
        await store.report_down(A, "one", "5 failures in a row", 60.0)
        assert not (await store.read(asked())).down
    await store.report_down(A, "two", "silent in a row", 60.0)
    assert (await store.read(asked())).down == {A: "silent in a row"}


async def test_a_provider_that_answers_is_up(make: Make) -> None:
    store = make()
    for process in ("one", "two"):
        await store.report_down(A, process, "silent", 60.0)
    await store.report_up(A)
    assert not (await store.read(asked())).down
    await store.report_down(A, "two", "silent", 60.0)
    assert not (await store.read(asked())).down, "it takes two processes again"


async def test_reports_end_by_themselves(make: Make) -> None:
    store = make()
    for process in ("one", "two"):
        await store.report_down(A, process, "silent", 0.2)
    assert (await store.read(asked())).down
    await asyncio.sleep(0.3)
    assert not (await store.read(asked())).down


@needs_redis
async def test_prefixes_and_regions_are_separate(server: RedisServer) -> None:
    stores = [
        RedisStore(server.url, prefix=prefix, region=region)
        for prefix, region in (("p", ""), ("p", "eu"), ("q", "eu"))
    ]
    for number, store in enumerate(stores, start=1):
        await store.add(delta({"07": number}))
    found = [(await store.read(asked(A))).latencies[A, 5] for store in stores]
    assert found == [{"07": 1}, {"07": 2}, {"07": 3}]
    tags = {key.partition("}")[0] for key in server.names()}
    assert {"{p", "{p/eu", "{q/eu"} <= tags, "a region is on one node of a cluster"
    for store in stores:
        await store.close()


@needs_redis
async def test_every_key_expires(server: RedisServer) -> None:
    store = RedisStore(server.url, prefix="expiry")
    await store.add(delta({"07": 1}, turns=1))
    for process in ("one", "two"):
        await store.report_down(A, process, "silent", 60.0)
    found = {key.split(":")[1]: server.control.ttl(key) for key in server.names("{expiry}*")}
    most = {"latency": KEPT_SECS, "budget": BUDGET_SECS, "suspect": 60, "down": 60}
    assert found.keys() == most.keys()
    assert all(most[kind] - 5 <= int(str(ttl)) <= most[kind] for kind, ttl in found.items())
    await store.close()


@needs_redis
async def test_foreign_values_are_left_out(server: RedisServer) -> None:
    store = RedisStore(server.url, prefix="foreign")
    await store.add(delta({"07": 1}))
    (key,) = server.names("{foreign}:latency:*")
    server.control.hset(key, mapping={"x": "value", "y": bytes(range(256)), "z": -3})
    assert (await store.read(asked(A))).latencies == {(A, 5): {"07": 1}}
    await store.close()


@needs_redis
def test_no_command_is_newer_than_redis_6_2(server: RedisServer) -> None:
    """What the tests above have sent."""
    sent = {name for name in _stats(server) if "|" not in name}
    known = {"hincrby", "expire", "hgetall", "set", "get", "del"}
    assert sent - {"info", "ping", "scan", "ttl", "hset", "hello", "client", "command"} <= known


def _stats(server: RedisServer) -> list[str]:
    info: Any = redis.Redis(port=server.port, decode_responses=True).info("commandstats")
    return [name.removeprefix("cmdstat_") for name in info]
