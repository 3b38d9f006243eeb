"""What opening a hosted provider's connection ahead spares the first turn, over TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge import HedgedLLMService, TurnReport
from tests.support.fake_vllm import FakeVLLM, fake_vllm
from tests.support.line import Line
from tests.support.relay import certificate
from tests.support.simulated import close

pytestmark = pytest.mark.live

ONE_WAY_SECS = 0.03
"""How long a packet travels, as between two cities."""


async def test_a_first_turn_finds_its_connection_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake's round trip is over before the caller has said anything."""
    server_side = certificate(tmp_path)[0]
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "server.pem"))
    async with fake_vllm() as fake, _far_away(fake, server_side) as url:
        cold = await _first_turn(url, warm=False)
        warm = await _first_turn(url, warm=True)
    assert cold.ttft_secs is not None
    assert warm.ttft_secs is not None
    print(f"\nfirst turn, 60 ms away: {cold.ttft_secs:.3f} s cold, {warm.ttft_secs:.3f} s warm")
    assert warm.ttft_secs < cold.ttft_secs - 1.5 * ONE_WAY_SECS


async def _first_turn(url: str, *, warm: bool) -> TurnReport:
    settings = OpenAILLMService.Settings(model="tiny")
    hosted = OpenAILLMService(api_key="any", base_url=f"{url}/v1", settings=settings)
    llm = HedgedLLMService([hosted], warm=False)
    async with Line(llm) as line:
        if warm:
            await llm.warm_up()
        await line.ask()
        report = await line.report()
    await close(hosted)
    return report


@asynccontextmanager
async def _far_away(fake: FakeVLLM, server_side: ssl.SSLContext) -> AsyncIterator[str]:
    """The server behind TLS, and that behind a line on which every packet takes its time."""
    host, port = fake.url.removeprefix("http://").removesuffix("/v1").split(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection(host, int(port))
        await _pipe_both((reader, writer), (onward, back), 0.0)

    secured = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=server_side)
    inner = secured.sockets[0].getsockname()[1]

    async def delay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", inner)
        await _pipe_both((reader, writer), (onward, back), ONE_WAY_SECS)

    async with secured, await asyncio.start_server(delay, "127.0.0.1", 0) as far:
        yield f"https://127.0.0.1:{far.sockets[0].getsockname()[1]}"


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _pipe_both(near: Ends, far: Ends, secs: float) -> None:
    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(65536):
                await asyncio.sleep(secs)
                writer.write(piece)
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    await asyncio.gather(pipe(near[0], far[1]), pipe(far[0], near[1]))
