"""Where an attempt's first second goes, over real sockets: connections, TLS, headers, tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from google.genai import types
from loguru import logger
from pipecat.frames.frames import LLMContextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.anthropic.llm import AnthropicLLMService
from pipecat.services.google.llm import GoogleLLMService
from pipecat.services.llm_service import LLMService
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.http import connection_limits
from prometheus_client import CollectorRegistry

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.race import AttemptReport, StageReport
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.tools.simulator import Simulator
from tests.support.fake_vllm import fake_vllm
from tests.support.line import Line
from tests.support.relay import certificate, relay
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

QUICK = "fixed@ttft=0.05,tps=inf,answer=Good%20evening."


def alone(*members: LLMService[Any], **kwargs: Any) -> HedgedLLMService:
    policy = kwargs.pop("policy", HedgePolicy.race(len(members)))
    named = [Provider(name, member) for name, member in zip("abc", members, strict=False)]
    return HedgedLLMService(named, policy=policy, **{"warm": False, **kwargs})


async def attempts(llm: HedgedLLMService, turns: int = 1) -> list[AttemptReport]:
    """The first attempt of each turn."""
    async with Line(llm) as line:
        for _ in range(turns):
            await line.ask()
        await line.report(turns)
        return [report.attempts[0] for report in line.reports]


def stages_of(attempt: AttemptReport) -> StageReport:
    assert attempt.stages is not None
    return attempt.stages


def moments(attempt: AttemptReport) -> list[float]:
    """Every moment of an answer, in the order in which they must be."""
    stages = stages_of(attempt)
    assert attempt.ttft_secs is not None
    assert attempt.sent_secs is not None
    found = [
        stages.written_secs,
        stages.headers_secs,
        stages.first_byte_secs,
        stages.first_token_secs,
        attempt.ttft_secs - (attempt.sent_secs - attempt.launched_secs),
    ]
    known = [secs for secs in found if secs is not None]
    assert len(known) == len(found), f"not all are known: {stages}"
    return known


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_connection_is_opened_once_and_kept(wire: str) -> None:
    """The first turn is cold, the next is not; the moments of both are in their order."""
    async with Simulator() as sim:
        member = simulated(wire, sim, QUICK)
        first, second = await attempts(alone(member), turns=2)
        await close(member)
    cold, warm = stages_of(first), stages_of(second)
    assert (cold.new_connection, warm.new_connection) == (True, False)
    assert cold.tcp_secs is not None
    assert cold.tcp_secs > 0
    assert (cold.tls_secs, warm.tcp_secs, warm.tls_secs) == (None, None, None)
    for attempt in (first, second):
        assert moments(attempt) == sorted(moments(attempt))
        assert all(secs >= 0 for secs in moments(attempt))


async def test_warming_up_spares_the_turn_the_connection() -> None:
    """What ``warm_up`` opens is not opened while the caller waits."""
    async with Simulator() as sim:
        member = simulated("openai", sim, QUICK)
        llm = alone(member)
        async with Line(llm) as line:
            await llm.warm_up()
            await line.ask()
            report = await line.report()
        await close(member)
    assert stages_of(report.attempts[0]).new_connection is False


async def test_tls_is_told_apart(tmp_path: Path) -> None:
    """Agreeing on keys has a time of its own, and lies before the request is written."""
    mine, theirs = certificate(tmp_path)
    async with Simulator() as sim, relay(sim.port, mine) as server:
        client = AsyncAnthropic(
            api_key="any",
            base_url=f"https://127.0.0.1:{server.port}",
            http_client=DefaultAsyncHttpxClient(verify=theirs),
        )
        member = AnthropicLLMService(
            api_key="any", client=client, settings=AnthropicLLMService.Settings(model=QUICK)
        )
        first, second = await attempts(alone(member), turns=2)
        await close(member)
        assert server.opened == 1
    cold = stages_of(first)
    assert cold.tcp_secs is not None
    assert cold.tls_secs is not None
    assert cold.written_secs is not None
    assert 0 < cold.tcp_secs + cold.tls_secs < cold.written_secs
    print(f"TCP {cold.tcp_secs * 1e3:.2f} ms, TLS {cold.tls_secs * 1e3:.2f} ms")
    assert stages_of(second).new_connection is False


async def test_a_server_that_hangs_up_makes_the_next_turn_cold() -> None:
    """A connection that is closed while it is idle is opened again, and the turn pays for it."""
    async with Simulator() as sim, relay(sim.port) as server:
        member = simulated("openai", sim, QUICK, url=f"http://127.0.0.1:{server.port}")
        async with Line(alone(member)) as line:
            await line.ask()
            await line.ask()
            await server.hang_up()
            await line.ask()
            await line.report(3)
        await close(member)
        assert server.opened == 2
    were_cold = [stages_of(report.attempts[0]).new_connection for report in line.reports]
    assert were_cold == [True, False, True]


async def test_an_sdks_own_client_keeps_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anthropic's SDK would let go of them when idle, here at once, and make the next turn cold."""
    at_once = connection_limits(keepalive_expiry=0.0)
    monkeypatch.setattr("anthropic._base_client.DEFAULT_CONNECTION_LIMITS", at_once)
    async with Simulator() as sim, relay(sim.port) as server:
        url = f"http://127.0.0.1:{server.port}"
        shared = AsyncAnthropic(api_key="any", base_url=url)
        members = [
            AnthropicLLMService(
                api_key="any", client=shared, settings=AnthropicLLMService.Settings(model=QUICK)
            )
            for _ in range(2)
        ]
        for member in members:
            _, second = await attempts(alone(member), turns=2)
            assert stages_of(second).new_connection is False
        for member in members:
            await close(member)
        assert server.opened == 1


@pytest.mark.parametrize(("expiry", "new_connection"), [(0.0, True), (None, False)])
async def test_a_client_that_was_given_is_left_alone(
    expiry: float | None, new_connection: bool
) -> None:
    """Whether it keeps its connections or not: somebody chose it."""
    async with Simulator() as sim:
        limits = connection_limits(keepalive_expiry=expiry)
        client = AsyncAnthropic(
            api_key="any",
            base_url=sim.anthropic_url,
            http_client=DefaultAsyncHttpxClient(limits=limits),
        )
        member = AnthropicLLMService(
            api_key="any", client=client, settings=AnthropicLLMService.Settings(model=QUICK)
        )
        _, second = await attempts(alone(member), turns=2)
        await close(member)
    assert stages_of(second).new_connection is new_connection


@pytest.mark.parametrize(
    ("behaviour", "slow"),
    [
        ("fixed@headers=0.4,ttft=0.41,tps=inf,answer=Good%20evening.", "headers"),
        ("fixed@headers=0.01,ttft=0.41,tps=inf,answer=Good%20evening.", "first token"),
    ],
)
async def test_the_slow_stage_is_found(behaviour: str, slow: str) -> None:
    """Waiting for headers and waiting behind them are two things."""
    async with Simulator() as sim:
        member = simulated("anthropic", sim, behaviour)
        _, attempt = await attempts(alone(member), turns=2)
        await close(member)
    written, headers, first_byte, first_token, first_usable = moments(attempt)
    waits = {
        "headers": headers - written,
        "first byte": first_byte - headers,
        "first token": first_token - first_byte,
        "first usable": first_usable - first_token,
    }
    assert max(waits, key=lambda name: waits[name]) == slow
    assert waits[slow] > 0.5 * first_usable
    print({name: f"{secs * 1e3:.1f} ms" for name, secs in waits.items()})


async def test_the_server_says_how_long_it_worked() -> None:
    """By a header of its response."""
    async with fake_vllm(headers={"openai-processing-ms": "37"}) as server:
        member = OpenAILLMService(
            api_key="any", base_url=server.url, settings=OpenAILLMService.Settings(model="tiny")
        )
        (attempt,) = await attempts(alone(member))
        await close(member)
    stages = stages_of(attempt)
    assert (stages.server_secs, stages.server_source) == (0.037, "openai-processing-ms")


async def test_a_refused_connection() -> None:
    """It was to be opened, and nothing came of it."""
    async with Simulator() as sim:
        member = simulated("openai", sim, QUICK, url=sim.refused_url)
        (attempt,) = await attempts(alone(member))
        await close(member)
    assert stages_of(attempt) == StageReport(new_connection=True)
    assert attempt.error_category == "connectivity"


async def test_an_attempt_that_is_closed_before_the_headers() -> None:
    """What had happened until then is known of a loser, too."""
    async with Simulator() as sim:
        loser, winner = simulated("openai", sim, "fixed@ttft=9"), simulated("anthropic", sim, QUICK)
        (attempt,) = await attempts(alone(loser, winner))
        await close(loser, winner)
    stages = stages_of(attempt)
    assert attempt.outcome == "superseded"
    assert stages.written_secs is not None
    assert (stages.headers_secs, stages.first_byte_secs, stages.first_token_secs) == (None,) * 3


async def test_each_attempt_has_its_own_where_the_client_is_shared() -> None:
    """Two services over one client, at the same time: one connection each."""
    async with Simulator() as sim:
        client = AsyncAnthropic(api_key="any", base_url=sim.anthropic_url)
        members = [
            AnthropicLLMService(
                api_key="any", client=client, settings=AnthropicLLMService.Settings(model=model)
            )
            for model in ("fixed@ttft=0.6,headers=0.5", QUICK)
        ]
        llm = alone(*members, policy=HedgePolicy.race(2, losers="drain"))
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
        await client.close()
    lost, won = (stages_of(attempt) for attempt in report.attempts)
    assert (lost.new_connection, won.new_connection) == (True, True)
    assert won.headers_secs is not None
    assert lost.headers_secs is None


async def test_googles_client_can_be_passed_in() -> None:
    """By itself Google's SDK asks through aiohttp, which is not listened to; an httpx client is."""
    async with Simulator() as sim:
        plain = simulated("google", sim, QUICK)
        (unheard,) = await attempts(alone(plain))
        await close(plain)
        async with httpx.AsyncClient() as client:
            passed = GoogleLLMService(
                api_key="any",
                http_options=types.HttpOptions(
                    base_url=sim.google_url,
                    httpx_async_client=client,
                    retry_options=types.HttpRetryOptions(attempts=1),
                ),
                settings=GoogleLLMService.Settings(model=QUICK),
            )
            (heard,) = await attempts(alone(passed))
            await close(passed)
    assert stages_of(unheard) == StageReport(first_token_secs=stages_of(unheard).first_token_secs)
    assert stages_of(heard).new_connection is True
    assert moments(heard) == sorted(moments(heard))


async def test_who_listens_already_hears_on() -> None:
    """A ``trace`` that a client's owner has put into the request is called as before."""
    heard: list[str] = []

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        heard.append(event)

    async def listens(request: Any) -> None:
        request.extensions = {**request.extensions, "trace": trace}

    async with Simulator() as sim:
        client = DefaultAsyncHttpxClient(event_hooks={"request": [listens]})
        member = AnthropicLLMService(
            api_key="any",
            client=AsyncAnthropic(api_key="any", base_url=sim.anthropic_url, http_client=client),
            settings=AnthropicLLMService.Settings(model=QUICK),
        )
        (attempt,) = await attempts(alone(member))
        await close(member)
    assert stages_of(attempt).new_connection is True
    assert "connection.connect_tcp.complete" in heard
    assert "http11.receive_response_body.complete" in heard


async def test_a_body_that_is_left_early_is_closed() -> None:
    """Listening to it leaves nothing open: the server sees the end at once."""
    async with Simulator() as sim:
        member = simulated("openai", sim, "fixed@ttft=0.05,tps=5")
        async with Line(alone(member)) as line:
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "Hello?"}])))
            await line.until(lambda: bool(line.text))
            await line.interrupt()
            await line.report()
            await sim.wait_idle(2)
        (entry,) = sim.ledger.requests
        assert entry.outcome == "aborted"
        await close(member)


async def test_it_is_said_at_debug_and_in_the_turn_log(tmp_path: Path) -> None:
    """Nothing of it is logged at INFO; the log of turns holds the stages as they are."""
    log = tmp_path / "turns.jsonl"
    told: list[tuple[str, str]] = []
    sink = logger.add(lambda m: told.append((m.record["level"].name, m.record["message"])))
    async with Simulator() as sim:
        member = simulated("openai", sim, QUICK)
        try:
            first, _ = await attempts(alone(member, turn_log=log), turns=2)
        finally:
            logger.remove(sink)
        await close(member)
    cold = [level for level, message in told if "a connection to a was opened" in message]
    assert cold == ["DEBUG"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["attempts"][0]["stages"]["new_connection"] for line in lines] == [True, False]
    assert lines[0]["attempts"][0]["stages"]["tcp_secs"] == stages_of(first).tcp_secs


async def test_a_request_that_was_withdrawn_while_it_connected_was_never_sent() -> None:
    """It has cost nothing, and is no request: its provider has not seen one."""
    registry, stats = CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(stats=stats, registry=registry)
    async with Simulator() as sim:
        quick = simulated("openai", sim, QUICK)
        hangs = simulated("anthropic", sim, QUICK, url=sim.hanging_url)
        llm = HedgedLLMService(
            [Provider("a", quick, usd_per_mtok=(2, 8)), Provider("b", hangs, usd_per_mtok=(2, 8))],
            policy=HedgePolicy.race(2),
            stats=stats,
            warm=False,
        )
        async with Line(llm) as line:
            await line.ask()
            report = await line.report()
        await close(quick, hangs)
        assert len(sim.ledger.requests) == 1
    won, withdrawn = report.attempts
    assert (won.outcome, withdrawn.outcome) == ("won", "superseded")
    assert won.sent_secs is not None
    assert withdrawn.sent_secs is None
    assert (withdrawn.input_tokens, withdrawn.output_tokens, withdrawn.usd) == (0, 0, 0)
    assert not withdrawn.tokens_estimated
    assert stages_of(withdrawn).new_connection
    sent = {"provider": "b", "model": QUICK}
    assert registry.get_sample_value("pipecat_hedge_requests_total", sent) == 0
    tried = {"provider": "b", "launch_reason": "hedge", "outcome": "superseded"}
    assert registry.get_sample_value("pipecat_hedge_attempts_total", tried) == 1
    recorder.close()


async def test_of_hedges_that_are_withdrawn_at_once_those_are_counted_that_came() -> None:
    """As many as the provider has seen, wherever in their making they were withdrawn."""
    async with Simulator(seed=3) as sim:
        quick = simulated("openai", sim, "fixed@ttft=0.02,tps=900")
        slow = simulated("anthropic", sim, "fixed@ttft=5")
        llm = HedgedLLMService(
            [Provider("a", quick), Provider("b", slow)], policy=HedgePolicy.after(0.02), warm=False
        )
        async with Line(llm) as line:
            for _ in range(100):
                await line.ask()
            await line.report(100)
            await sim.wait_idle(6)
            hedges = [a for r in line.reports for a in r.attempts if a.provider == "b"]
        await close(quick, slow)
        came = sum(entry.wire == "anthropic" for entry in sim.ledger.requests)
    counted = sum(hedge.sent_secs is not None for hedge in hedges)
    print(f"{len(hedges)} hedges, {counted} counted as sent, {came} came")
    # What was being written when it was withdrawn may or may not have come. Of one that is let run
    # on nothing may be known yet.
    in_between = [
        hedge
        for hedge in hedges
        if hedge.sent_secs is not None
        and (hedge.stages is None or hedge.stages.written_secs is None)
    ]
    assert 0 < came <= counted <= came + len(in_between)
