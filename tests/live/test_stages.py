"""Where an attempt's first second goes, over real sockets: connections, TLS, headers, tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from google.genai import types
from pipecat.services.google.llm import GoogleLLMService
from pipecat.services.llm_service import LLMService
from pipecat.utils.http import connection_limits
from prometheus_client import CollectorRegistry

from pipecat_hedge import HedgePolicy
from pipecat_hedge.race import AttemptReport, StageReport
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.tools.simulator import Simulator
from tests.service.builders import racing
from tests.support.line import Line
from tests.support.relay import certificate, relay
from tests.support.simulated import anthropic, close, line_to, simulated

pytestmark = pytest.mark.live

QUICK = "fixed@ttft=0.05,tps=inf,answer=Good%20evening."


async def attempts(*members: LLMService[Any], turns: int = 1, **kwargs: Any) -> list[AttemptReport]:
    """The first attempt of each turn; the members' clients are closed."""
    async with line_to(*members, **{"warm": False, **kwargs}) as line:
        for _ in range(turns):
            await line.ask()
        await line.report(turns)
    return [report.attempts[0] for report in line.reports]


def stages_of(attempt: AttemptReport) -> StageReport:
    assert attempt.stages is not None
    return attempt.stages


def assert_ordered(attempt: AttemptReport) -> dict[str, float]:
    """Check that all times are known and in their order; return the waits between them."""
    stages = stages_of(attempt)
    assert attempt.ttft_secs is not None
    assert attempt.sent_secs is not None
    usable_secs = attempt.ttft_secs - (attempt.sent_secs - attempt.launched_secs)
    times = [stages.written_secs, stages.headers_secs, stages.first_byte_secs]
    known = [secs for secs in (*times, stages.first_token_secs, usable_secs) if secs is not None]
    assert len(known) == 5, stages
    assert known == sorted(known)
    assert known[0] >= 0
    names = ("headers", "first byte", "first token", "usable")
    return {n: b - a for n, a, b in zip(names, known, known[1:], strict=False)}


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_connection_is_opened_once_and_kept(wire: str, sim: Simulator) -> None:
    first, second = await attempts(simulated(wire, sim, QUICK), turns=2)
    cold, warm = stages_of(first), stages_of(second)
    assert (cold.new_connection, warm.new_connection) == (True, False)
    assert cold.tcp_secs is not None
    assert cold.tcp_secs > 0
    assert (cold.tls_secs, warm.tcp_secs, warm.tls_secs) == (None, None, None)
    assert_ordered(first)
    assert_ordered(second)


@pytest.mark.parametrize("warm", [False, True])
async def test_warm_up_saves_the_first_turn_its_tls_handshake(
    warm: bool, tmp_path: Path, sim: Simulator
) -> None:
    """The handshake has a time of its own, before the request is written."""
    mine, theirs = certificate(tmp_path)
    async with relay(sim.port, mine) as server:
        client = AsyncAnthropic(
            api_key="any",
            base_url=f"https://127.0.0.1:{server.port}",
            http_client=DefaultAsyncHttpxClient(verify=theirs),
        )
        member = anthropic(client, QUICK)
        llm = racing(member, warm=False)
        async with Line(llm) as line:
            if warm:
                await llm.warm_up()
            await line.ask()
            await line.ask()
            await line.report(2)
        await close(member)
        assert server.opened == 1
    first, second = (stages_of(report.attempts[0]) for report in line.reports)
    assert (first.new_connection, second.new_connection) == (not warm, False)
    if not warm:
        assert 0 < (first.tcp_secs or 0) + (first.tls_secs or 0) < (first.written_secs or 0)
        assert first.tls_secs


async def test_closed_idle_connection_is_reopened(sim: Simulator) -> None:
    async with relay(sim.port) as server:
        member = simulated("openai", sim, QUICK, url=f"http://127.0.0.1:{server.port}")
        async with line_to(member, warm=False) as line:
            await line.ask()
            await line.ask()
            await server.hang_up()
            await line.ask()
            await line.report(3)
        assert server.opened == 2
    cold = [stages_of(report.attempts[0]).new_connection for report in line.reports]
    assert cold == [True, False, True]


async def test_sdks_own_client_keeps_its_connections(
    monkeypatch: pytest.MonkeyPatch, sim: Simulator
) -> None:
    """Anthropic's SDK would close them when idle, here at once."""
    at_once = connection_limits(keepalive_expiry=0.0)
    monkeypatch.setattr("anthropic._base_client.DEFAULT_CONNECTION_LIMITS", at_once)
    _, second = await attempts(simulated("anthropic", sim, QUICK), turns=2)
    assert stages_of(second).new_connection is False


@pytest.mark.parametrize(("expiry", "new_connection"), [(0.0, True), (None, False)])
async def test_users_own_client_is_left_as_it_is(
    expiry: float | None, new_connection: bool, sim: Simulator
) -> None:
    http_client = DefaultAsyncHttpxClient(limits=connection_limits(keepalive_expiry=expiry))
    client = AsyncAnthropic(api_key="any", base_url=sim.url, http_client=http_client)
    _, second = await attempts(anthropic(client, QUICK), turns=2)
    assert stages_of(second).new_connection is new_connection


@pytest.mark.parametrize(
    ("headers", "slow"), [("0.4", "headers"), ("0.01", "first token")], ids=["headers", "tokens"]
)
async def test_slow_stage_is_found(headers: str, slow: str, sim: Simulator) -> None:
    behaviour = f"fixed@headers={headers},ttft=0.41,tps=inf,answer=Good%20evening."
    _, attempt = await attempts(simulated("anthropic", sim, behaviour), turns=2)
    waits = assert_ordered(attempt)
    assert max(waits, key=lambda name: waits[name]) == slow
    assert waits[slow] > 0.2


async def test_refused_connection_has_no_further_stages(sim: Simulator) -> None:
    (attempt,) = await attempts(simulated("openai", sim, QUICK, url=sim.refused_url))
    assert stages_of(attempt) == StageReport(new_connection=True)
    assert attempt.error_category == "connectivity"


async def test_loser_closed_before_its_headers_has_its_first_stages(sim: Simulator) -> None:
    loser, winner = simulated("openai", sim, "fixed@ttft=9"), simulated("anthropic", sim, QUICK)
    (attempt,) = await attempts(loser, winner)
    stages = stages_of(attempt)
    assert attempt.outcome == "superseded"
    assert stages.written_secs is not None
    assert (stages.headers_secs, stages.first_byte_secs, stages.first_token_secs) == (None,) * 3


async def test_attempts_of_a_shared_client_have_their_own_stages(sim: Simulator) -> None:
    client = AsyncAnthropic(api_key="any", base_url=sim.url)
    members = [anthropic(client, model) for model in ("fixed@ttft=0.6,headers=0.5", QUICK)]
    policy = HedgePolicy.race(2, losers="drain")
    async with line_to(*members, policy=policy, warm=False) as line:
        await line.ask()
        report = await line.report()
    lost, won = (stages_of(attempt) for attempt in report.attempts)
    assert (lost.new_connection, won.new_connection) == (True, True)
    assert won.headers_secs is not None
    assert lost.headers_secs is None


async def test_google_has_stages_with_an_httpx_client(sim: Simulator) -> None:
    """By itself Google's SDK sends through aiohttp, which cannot be traced."""
    (untraced,) = await attempts(simulated("google", sim, QUICK))
    async with httpx.AsyncClient() as client:
        member = GoogleLLMService(
            api_key="any",
            http_options=types.HttpOptions(
                base_url=sim.url,
                httpx_async_client=client,
                retry_options=types.HttpRetryOptions(attempts=1),
            ),
            settings=GoogleLLMService.Settings(model=QUICK),
        )
        (traced,) = await attempts(member)
    token_secs = stages_of(untraced).first_token_secs
    assert stages_of(untraced) == StageReport(first_token_secs=token_secs)
    assert stages_of(traced).new_connection is True
    assert_ordered(traced)


async def test_owners_trace_is_called_as_before(sim: Simulator) -> None:
    events: list[str] = []

    async def trace(event: str, info: Mapping[str, Any]) -> None:
        events.append(event)

    async def add_trace(request: Any) -> None:
        request.extensions = {**request.extensions, "trace": trace}

    http_client = DefaultAsyncHttpxClient(event_hooks={"request": [add_trace]})
    client = AsyncAnthropic(api_key="any", base_url=sim.url, http_client=http_client)
    (attempt,) = await attempts(anthropic(client, QUICK))
    assert stages_of(attempt).new_connection is True
    assert "connection.connect_tcp.complete" in events
    assert "http11.receive_response_body.complete" in events


async def test_request_withdrawn_while_it_connects_was_never_sent(sim: Simulator) -> None:
    """It costs nothing, and is not counted as a request."""
    registry, stats = CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(stats=stats, registry=registry)
    quick = simulated("openai", sim, QUICK)
    hangs = simulated("anthropic", sim, QUICK, url=sim.hanging_url)
    async with line_to(quick, hangs, stats=stats, warm=False) as line:
        await line.ask()
        report = await line.report()
    assert len(sim.ledger.requests) == 1
    won, withdrawn = report.attempts
    assert (won.outcome, withdrawn.outcome) == ("won", "superseded")
    assert (won.sent_secs is None, withdrawn.sent_secs is None) == (False, True)
    assert (withdrawn.input_tokens, withdrawn.output_tokens) == (0, 0)
    assert not withdrawn.tokens_estimated
    assert stages_of(withdrawn).new_connection
    sent = {"provider": "b", "model": QUICK}
    assert registry.get_sample_value("pipecat_hedge_requests_total", sent) == 0
    tried = {"provider": "b", "launch_reason": "hedge", "outcome": "superseded"}
    assert registry.get_sample_value("pipecat_hedge_attempts_total", tried) == 1
    recorder.close()
