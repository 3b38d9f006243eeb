"""What is learned of simulated providers stays in the process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from pipecat.services.llm_service import LLMService

from pipecat_hedge import FillerProcessor, HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.providers import Backend, FileStore
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.service.composition import ENVIRONMENT
from pipecat_hedge.service.provider_stats import shared_stats
from pipecat_hedge.testing import Say
from pipecat_hedge.tools.proxy.server import ProxyServer
from pipecat_hedge.tools.proxy.settings import ProxySettings
from pipecat_hedge.tools.simulator import Simulator
from tests.service.builders import said, scripted
from tests.support.learned import prior_weight
from tests.support.line import Line
from tests.support.simulated import WIRES, close, simulated

MODEL = "fixed@ttft=0.02"


def real(*names: str) -> dict[str, Any]:
    """What a file has of real providers."""
    store = Path("real.json").absolute()
    stats = ProviderStats(FileStore(store))
    for name in names:
        stats.record_wait(Backend(name, MODEL), 0.5, 100)
    stats.save()
    saved = json.loads(store.read_text())["providers"]
    store.unlink()
    return saved


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own statistics: a real provider ``a`` with the simulated one's name and model."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "stats.json"
    path.write_text(json.dumps({"version": 2, "providers": real("a")}))
    monkeypatch.setenv(ENVIRONMENT, str(path))
    return path


async def talked(*members: LLMService[Any], policy: HedgePolicy | None = None) -> None:
    """A session of two turns and an inference, with fillers."""
    providers = [Provider(name, each) for name, each in zip("abc", members, strict=False)]
    llm = HedgedLLMService(providers, policy=policy or HedgePolicy.fallback())
    async with Line(llm, processors=[FillerProcessor()]) as line:
        await line.ask()
        await line.ask()
        assert await llm.run_inference(said())
    assert len(line.reports) == 2


@pytest.mark.parametrize("wire", WIRES)
async def test_file_stays_as_it_was(wire: str, sim: Simulator, file: Path) -> None:
    """The second provider is planned with and never asked."""
    before = file.read_bytes()
    members = [simulated(wire, sim, model) for model in (MODEL, "fixed")]
    try:
        await talked(*members)
    finally:
        await close(*members)
    assert file.read_bytes() == before
    fresh = ProviderStats(FileStore(file))
    assert prior_weight(shared_stats(), Backend("a", MODEL)) < prior_weight(
        fresh, Backend("a", MODEL)
    ), "it is learned for this process"


async def test_silent_provider_is_not_saved_either(sim: Simulator, file: Path) -> None:
    """It has sent no header, but the other one at its address has."""
    before = file.read_bytes()
    members = [simulated("openai", sim, "fixed?fault=hang"), simulated("anthropic", sim, MODEL)]
    try:
        await talked(*members, policy=HedgePolicy.after(0.05))
    finally:
        await close(*members)
    assert file.read_bytes() == before


async def test_real_provider_beside_it_is_saved(sim: Simulator, file: Path) -> None:
    """The simulated one loses before its headers come, but its connection is known."""
    before, member = json.loads(file.read_text())["providers"], simulated("openai", sim, MODEL)
    providers = [Provider("a", member), Provider("real", scripted(Say("Yes."), model="m"))]
    llm = HedgedLLMService(providers, policy=HedgePolicy.race(2))
    try:
        async with Line(llm) as line:
            await llm.warm_up()
            await line.ask()
            await line.report()
    finally:
        await close(member)
    saved = json.loads(file.read_text())["providers"]
    assert saved.pop(Backend("real", "m").key)["seen"][0] == 1
    assert saved == before


async def test_proxied_provider_is_not_saved(sim: Simulator, file: Path) -> None:
    before = file.read_bytes()
    upstreams = [{"name": "a", "base_url": sim.openai_url, "model": MODEL}]
    models = {"gpt": {"wire": "openai", "upstreams": upstreams}}
    settings = ProxySettings.model_validate({"listen": "127.0.0.1:0", "models": models})
    async with ProxyServer(settings, ProviderStats(FileStore(file))) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        async with openai.AsyncOpenAI(api_key="any", base_url=url) as client:
            messages: Any = [{"role": "user", "content": "Are you open?"}]
            async for _ in await client.chat.completions.create(
                model="gpt", messages=messages, stream=True
            ):
                pass
    assert file.read_bytes() == before
