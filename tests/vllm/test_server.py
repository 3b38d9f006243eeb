"""What is known of a vLLM server, how often that is read, and what is logged about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.providers.permits import NotSent
from pipecat_hedge.vllm.errors import VLLMError
from pipecat_hedge.vllm.server import VLLMServer, read_counts

pytestmark = pytest.mark.virtual_time


class Script:
    """A server in virtual time: what it is like, and when each path was read."""

    def __init__(self) -> None:
        self.running = self.waiting = 0
        self.hits, self.queries = 0, 0
        self.health = 200
        self.is_gone = self.is_gateway = self.tracks_load = False
        self.models: tuple[int, Any] = (200, {"data": [{"id": "tiny"}]})
        self.reads: list[tuple[str, float]] = []

    def times(self, path: str) -> list[float]:
        return [at for read, at in self.reads if read == path]

    def answer(self, path: str) -> tuple[int, str]:
        self.reads.append((path, asyncio.get_running_loop().time()))
        if self.is_gone:
            raise aiohttp.ClientConnectionError from ConnectionRefusedError()
        if path == "/v1/models":
            return self.models[0], json.dumps(self.models[1])
        if path == "/health":
            return self.health, ""
        if self.is_gateway:
            return 404, "<html>"
        if path == "/load":
            total = self.running + self.waiting if self.tracks_load else 0
            return 200, json.dumps({"server_load": total})
        return 200, (
            f'vllm:num_requests_running{{engine="0"}} {self.running}.0\n'
            f'vllm:num_requests_waiting{{engine="0"}} {self.waiting}.0\n'
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self.queries}.0\n'
            f'vllm:prefix_cache_hits_total{{engine="0"}} {self.hits}.0\n'
        )


class _Answer:
    """What ``session.get`` gives: entered at once, as a response."""

    def __init__(self, script: Script, path: str):
        self._script, self._path = script, path

    async def __aenter__(self) -> _Answer:
        self.status, self._body = self._script.answer(self._path)
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def read(self) -> bytes:
        return self._body.encode()

    async def text(self, errors: str) -> str:
        return self._body

    async def json(self, content_type: str | None) -> Any:
        return json.loads(self._body)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    found = Script()

    class Session:
        def __init__(self, **_: Any): ...

        async def __aenter__(self) -> Session:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        def get(self, url: str) -> _Answer:
            return _Answer(found, url.removeprefix("http://gpu:8000"))

    monkeypatch.setattr(aiohttp, "ClientSession", Session)
    return found


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def new_server() -> VLLMServer:
    return VLLMServer("http://gpu:8000/v1")


@pytest.fixture
async def server(script: Script) -> AsyncIterator[VLLMServer]:
    """A server that the test holds; it is released at the end."""
    server = new_server()
    yield server
    await server.release()


def load_of(server: VLLMServer) -> tuple[int, int]:
    """How many requests run, and how many wait."""
    assert server.load is not None
    return server.load.running, server.load.waiting


# ---- how often it is looked at


async def test_metrics_are_read_every_two_seconds(script: Script, server: VLLMServer) -> None:
    """Every five with a queue; not in step with other processes."""
    script.running = 3
    server.hold()
    await asyncio.sleep(60)
    found = gaps(script.times("/metrics"))
    assert found == pytest.approx([2.0] * len(found), rel=0.11)
    assert max(found) > min(found)
    script.running, script.waiting = 8, 2
    await asyncio.sleep(24)
    assert load_of(server) == (8, 2)
    assert gaps(script.times("/metrics"))[-3:] == pytest.approx([5, 5, 5], rel=0.11)
    script.waiting = 0
    await asyncio.sleep(10)
    assert load_of(server) == (8, 0)
    assert gaps(script.times("/metrics"))[-1] == pytest.approx(2, rel=0.11)


async def test_counted_load_replaces_the_metrics(script: Script, server: VLLMServer) -> None:
    """With ``--enable-server-load-tracking`` they are read every 5 s, the count every second."""
    script.running, script.tracks_load = 8, True
    server.hold()
    await asyncio.sleep(60)
    found = gaps(script.times("/load"))
    assert found == pytest.approx([1.0] * len(found), rel=0.11)
    assert min(gaps(script.times("/metrics"))) > 5
    script.running = 6
    await asyncio.sleep(1.2)
    assert load_of(server) == (6, 0)


async def test_queue_is_found_by_the_count_alone(script: Script, server: VLLMServer) -> None:
    """Metrics are read when more are counted than are known to run; then the count is enough."""
    script.running, script.tracks_load = 4, True
    server.hold()
    await asyncio.sleep(20)
    reads = 0
    for running, waiting in ((8, 3), (8, 5), (8, 0)):
        script.running, script.waiting = running, waiting
        await asyncio.sleep(1.2)
        assert load_of(server) == (running, waiting)
        reads = reads or len(script.times("/metrics"))
    assert len(script.times("/metrics")) == reads


async def test_count_of_zero_is_ignored_before_another(script: Script, server: VLLMServer) -> None:
    """Without the flag a vLLM always answers 0."""
    script.running, script.waiting = 8, 3
    server.hold()
    await asyncio.sleep(0.1)
    assert load_of(server) == (8, 3)


async def test_one_task_looks_for_all_holders(script: Script) -> None:
    """Services of one process share the looks; nothing is known without any."""
    server = VLLMServer.shared("http://gpu:8000/v1")
    assert VLLMServer.shared("http://gpu:8000/v1/") is server
    for _ in range(3):
        server.hold()
    await asyncio.sleep(0.1)
    assert len(script.times("/metrics")) == 1
    for _ in range(3):
        assert server.load is not None
        await server.release()
    assert server.load is None
    await asyncio.sleep(60)
    assert len(script.times("/metrics")) == 1


# ---- what is known then


async def test_own_requests_count_before_the_next_look(script: Script, server: VLLMServer) -> None:
    script.running = 1
    server.hold()
    await asyncio.sleep(0.1)
    with server.count_request(), server.count_request():
        assert load_of(server)[0] == 3
    assert load_of(server)[0] == 1


async def test_own_requests_count_if_the_look_missed_them(
    script: Script, server: VLLMServer
) -> None:
    """They were sent, and had not reached the server's scheduler when it was read."""
    with server.count_request(), server.count_request():
        server.hold()
        await asyncio.sleep(0.1)
        assert load_of(server) == (2, 0)
        script.running, script.waiting = 0, 2
        await asyncio.sleep(2.3)
        assert load_of(server) == (0, 2)
    assert load_of(server) == (0, 2)


async def test_prefix_cache_share_is_that_since_the_last_look(
    script: Script, server: VLLMServer
) -> None:
    script.queries, script.hits = 1000, 0
    server.hold()
    await asyncio.sleep(0.1)
    script.queries, script.hits = 1200, 150
    await asyncio.sleep(2.3)
    assert server.load is not None
    assert server.load.prefix_hit_share == 0.75


async def test_gateway_has_no_load(script: Script, server: VLLMServer) -> None:
    script.is_gateway = True
    server.hold()
    await asyncio.sleep(10)
    assert server.load is None
    script.is_gateway = False
    await asyncio.sleep(2.3)
    assert server.load is not None


# ---- what is logged


@pytest.mark.parametrize(
    ("fails", "detail"),
    [({"health": 503}, "unhealthy, HTTP 503"), ({"is_gone": True}, "nothing listens there")],
)
async def test_server_that_is_down_is_logged_once(
    script: Script,
    server: VLLMServer,
    logged: list[str],
    fails: dict[str, Any],
    detail: str,
) -> None:
    """However often it is looked at, and however many requests find it down; and its return."""
    vars(script).update(fails)
    server.hold()
    await asyncio.sleep(30)
    server.mark_down("does not answer", "a request says so, too")
    assert server.load is not None
    assert not server.load.is_up
    (text,) = logged
    assert text.startswith("WARNING")
    assert detail in text
    assert "`vllm serve MODEL --port 8000`, or correct base_url" in text
    script.health, script.is_gone = 200, False
    await asyncio.sleep(30)
    assert server.load.is_up
    assert logged[1:] == ["INFO: http://gpu:8000/v1 answers again"]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ((401, {}), "as api_key of VLLMService"),
        ((404, {}), "answers HTTP 404"),
        ((200, {"data": []}), "lists no models"),
        ((200, "soup"), "lists no models"),
    ],
)
async def test_unlisted_models_are_logged_once(
    script: Script, logged: list[str], models: tuple[int, Any], message: str
) -> None:
    good, script.models = script.models, models
    server = new_server()
    for _ in range(2):
        with pytest.raises(VLLMError, match=message):
            await server.models()
    script.models = good
    assert await server.models() == await server.models() == ("tiny",)
    assert [line.partition(":")[0] for line in logged] == ["WARNING", "INFO"]
    assert message in logged[0]
    assert len(script.times("/v1/models")) == 3


# ---- prompts


@pytest.mark.parametrize(
    ("error", "sent"), [(None, 1), (OSError, 1), (NotSent, 5), (asyncio.CancelledError, 5)]
)
async def test_prompt_is_read_once_for_all(error: type[BaseException] | None, sent: int) -> None:
    """One rejection answers all waiting callers; an interrupted prefill is repeated."""
    server, reads = new_server(), 0

    async def read() -> None:
        nonlocal reads
        reads += 1
        await asyncio.sleep(1)
        if error is not None:
            raise error

    await asyncio.gather(
        *(server.read_once("prompt", read) for _ in range(5)), return_exceptions=True
    )
    assert reads == sent


# ---- metrics

TEXT = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} c"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 1000.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 640.0
"""


def test_counts_are_summed_over_the_engines() -> None:
    """But for the cache's usage, where the fullest engine matters."""
    counts = read_counts(TEXT)
    assert counts is not None
    assert (counts.running, counts.waiting, counts.kv_cache_usage) == (7, 2, 0.75)
    assert (counts.prefix_queries, counts.prefix_hits) == (1000, 640)


@given(st.text() | st.text().map(lambda text: f"vllm:num_requests_running {text}"))
def test_other_text_has_no_counts(text: str) -> None:
    """A gateway may answer anything."""
    counts = read_counts(text)
    assert counts is None or counts.running == int(counts.running)


@pytest.mark.parametrize("value", ["x", "NaN", "+Inf"])
def test_value_that_is_no_number_has_no_counts(value: str) -> None:
    assert read_counts(TEXT.replace("4.0", value)) is None
