"""How a provider's failure is put into the race's words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anthropic
import httpx
import pytest
from pipecat.frames.frames import ErrorFrame
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import HedgedLLMService
from pipecat_hedge.provider_client import attempt_error

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1")


def told(exception: Exception | None, category: ErrorCategory | None = None) -> str:
    return attempt_error(ErrorFrame("failed", exception=exception, category=category)).category


@pytest.mark.parametrize(
    "exception",
    [
        anthropic.APIConnectionError(request=REQUEST),  # pyright: ignore[reportArgumentType]
        httpx.RemoteProtocolError("cut"),
        httpx.ConnectTimeout("slow"),
        ConnectionResetError(),
        TimeoutError(),
    ],
)
def test_a_lost_connection_is_called_so(exception: Exception) -> None:
    """Where the service did not say what it was, also if the cause is one further down."""
    assert told(exception) == "connectivity"
    wrapped = RuntimeError("failed")
    wrapped.__cause__ = exception
    assert told(wrapped) == "connectivity"


def test_what_the_service_says_counts() -> None:
    """Its category is kept, and what nobody knows stays unknown."""
    assert told(ConnectionResetError(), ErrorCategory.SERVER) == "server"
    assert told(ValueError()) == "unknown"
    assert told(None) == "unknown"


def retry_after(value: str) -> float | None:
    response = httpx.Response(429, headers={"retry-after": value}, request=REQUEST)
    error = httpx.HTTPStatusError("busy", request=REQUEST, response=response)
    return attempt_error(ErrorFrame("failed", exception=error)).retry_after_secs


def test_retry_after_in_seconds_and_as_a_date() -> None:
    """Both forms of the header; what is neither is ignored."""
    assert retry_after("2.5") == 2.5
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert retry_after(in_a_minute) == pytest.approx(60, abs=2)
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after("-3") == 0
    for nonsense in ("soon", "nan", "inf", ""):
        assert retry_after(nonsense) is None


async def test_a_services_own_retry_is_switched_off() -> None:
    """It would ask a second time where the race asks somebody else."""
    service = OpenAILLMService(api_key="any", retry_on_timeout=True)
    HedgedLLMService([service])
    assert not service._retry_on_timeout
    assert service._client.max_retries == 0
    await service._client.close()
