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
def test_any_header_value_is_safe(name: str, value: str) -> None:
    found = server_time({name: value})
    assert found is None or found[0] >= 0


async def record(stages: Stages, *events: str) -> None:
    for event in events:
        await stages.record_event(event, {})


CONNECTS = [
    f"connection.{what}.{end}"
    for what in ("connect_tcp", "start_tls")
    for end in ("started", "complete")
]
WRITES = "http11.send_request_headers.started"
IS_SENT = "http11.send_request_body.complete"


async def test_untraced_service_has_no_stages() -> None:
    stages = Stages()
    await record(stages, "http3.warp.started", "nonsense")
    assert stages.report(0.0) is None
    stages.record_token()
    assert stages.report(0.0) == StageReport(first_token_secs=0.0)


async def test_stages_of_a_repeated_request_add_up() -> None:
    stages = Stages()
    for headers in ({}, {"openai-processing-ms": "7"}):
        await record(stages, *CONNECTS, WRITES, IS_SENT, "http11.receive_response_headers.complete")
        stages.record_headers(headers)
    assert stages.report(-1.0) == StageReport(
        new_connection=True,
        tcp_secs=0.0,
        tls_secs=0.0,
        written_secs=1.0,
        headers_secs=1.0,
        server_secs=0.007,
        server_source="openai-processing-ms",
    )


async def test_request_is_unsent_until_its_headers_are_written() -> None:
    untraced, cold, warm = Stages(), Stages(is_traced=True), Stages(is_traced=True)
    untraced.record_headers({"openai-processing-ms": "231"})
    await record(cold, *CONNECTS)
    assert [stages.is_unsent for stages in (untraced, cold, warm)] == [False, True, True]
    for stages in (cold, warm):
        await record(stages, WRITES)
        assert not stages.is_unsent
        await record(stages, IS_SENT)
        assert not stages.is_unsent
