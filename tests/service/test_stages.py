"""The stages of a request, from headers and client events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race import StageReport
from pipecat_hedge.service.stages import Stages, server_time

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("headers", "share"),
    [
        ({"openai-processing-ms": "231"}, (0.231, "openai-processing-ms")),
        ({"x-envoy-upstream-service-time": "412"}, (0.412, "x-envoy-upstream-service-time")),
        (
            {"x-envoy-upstream-service-time": "240", "openai-processing-ms": "231"},
            (0.231, "openai-processing-ms"),
        ),
        ({"server-timing": "gfet4t7; dur=524"}, (0.524, "server-timing")),
        (
            {"server-timing": 'cache;desc="Cache Read";dur=23.2, app;DUR="47.2", cfL4;desc="x"'},
            (0.0472, "server-timing"),
        ),
        ({"openai-processing-ms": "soon", "server-timing": "a;dur=5"}, (0.005, "server-timing")),
        ({"openai-processing-ms": "-3"}, None),
        ({"openai-processing-ms": "inf"}, None),
        ({"openai-processing-ms": "nan"}, None),
        ({"server-timing": "missedCache"}, None),
        ({"x-request-id": "1"}, None),
    ],
)
def test_server_time_is_parsed_from_headers(
    headers: dict[str, str], share: tuple[float, str] | None
) -> None:
    found = server_time(headers)
    assert found == (None if share is None else (pytest.approx(share[0]), share[1]))


@given(st.sampled_from(["openai-processing-ms", "server-timing"]), st.text())
def test_any_header_value_is_safe(name: str, told: str) -> None:
    found = server_time({name: told})
    assert found is None or found[0] >= 0


async def test_untraced_service_has_no_stages() -> None:
    assert Stages().report(0.0) is None
    stages = Stages()
    stages.record_token()
    assert stages.report(0.0) == StageReport(first_token_secs=0.0)


async def test_stages_of_a_repeated_request_add_up() -> None:
    stages = Stages()
    for answered in (False, True):
        await stages.record_event("connection.connect_tcp.started", {})
        await stages.record_event("connection.connect_tcp.complete", {})
        await stages.record_event("connection.start_tls.started", {})
        await stages.record_event("connection.start_tls.complete", {})
        await stages.record_event("http11.send_request_headers.started", {})
        await stages.record_event("http11.send_request_body.complete", {})
        await stages.record_event("http11.receive_response_headers.complete", {})
        stages.record_headers({"openai-processing-ms": "7"} if answered else {})
    report = stages.report(-1.0)
    assert report == StageReport(
        new_connection=True,
        tcp_secs=0.0,
        tls_secs=0.0,
        written_secs=1.0,
        headers_secs=1.0,
        server_secs=0.007,
        server_source="openai-processing-ms",
    )


async def test_unknown_events_are_ignored() -> None:
    stages = Stages()
    await stages.record_event("http3.warp.started", {})
    await stages.record_event("nonsense", {})
    assert stages.report(0.0) is None


async def test_request_is_unsent_until_its_headers_are_written() -> None:
    nobody_tells = Stages()
    nobody_tells.record_headers({"openai-processing-ms": "231"})
    assert not nobody_tells.is_unsent
    cold, warm = Stages(is_traced=True), Stages(is_traced=True)
    assert warm.is_unsent
    await cold.record_event("connection.connect_tcp.started", {})
    assert cold.is_unsent
    await cold.record_event("connection.connect_tcp.complete", {})
    for stages in (cold, warm):
        await stages.record_event("http11.send_request_headers.started", {})
        assert not stages.is_unsent
        await stages.record_event("http11.send_request_body.complete", {})
        assert not stages.is_unsent
