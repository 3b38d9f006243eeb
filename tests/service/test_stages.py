"""The stages of a request, from headers and client events."""

from __future__ import annotations

import pytest

from pipecat_hedge.service.stages import server_time


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
