"""How a provider's failure becomes a race error."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import anthropic
import httpx
import openai
import pytest
from google.genai.errors import APIError
from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.frames.frames import ErrorFrame
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge import HedgedLLMService
from pipecat_hedge.service.provider_client import attempt_error

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1")


def category_of(exception: Exception | None, category: ErrorCategory | None = None) -> str:
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
def test_lost_connection_is_classified(exception: Exception) -> None:
    assert category_of(exception) == "connectivity"
    wrapped = RuntimeError("failed")
    wrapped.__cause__ = exception
    assert category_of(wrapped) == "connectivity"


def test_service_category_is_kept() -> None:
    assert category_of(ConnectionResetError(), ErrorCategory.SERVER) == "server"
    assert category_of(RuntimeError()) == "unknown"
    assert category_of(None) == "unknown"


def caused(exception: Exception, by: Exception) -> Exception:
    exception.__cause__ = by
    return exception


def test_cyclic_exception_causes_terminate() -> None:
    own = RuntimeError("failed")
    assert category_of(caused(own, own)) == "unknown"
    first, second = ValueError("one"), ValueError("two")
    assert category_of(caused(first, caused(second, first))) == "application"


@pytest.mark.parametrize(
    "exception",
    [
        LLMContextConversionError(ValueError("no such file")),
        caused(LLMContextConversionError(OSError()), ConnectionResetError()),
        NotImplementedError("run_inference() not supported"),
        TypeError("Object of type Caller is not JSON serializable"),
        ValueError("extra: no such parameter"),
        caused(ValueError("no such tool"), KeyError("weather")),
        AttributeError("model"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ],
)
def test_errors_before_the_request_are_application_errors(
    exception: Exception,
) -> None:
    assert category_of(exception) == "application"
    assert category_of(exception, ErrorCategory.SERVER) == "server"


@pytest.mark.parametrize(
    "exception",
    [
        json.JSONDecodeError("Expecting value", "<html>", 0),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        caused(ValueError("no answer"), json.JSONDecodeError("Expecting value", "<html>", 0)),
        RuntimeError("the model is not loaded"),
        Exception("no answer"),
    ],
)
def test_unreadable_response_counts_against_the_provider(exception: Exception) -> None:
    assert category_of(exception) == "unknown"


def test_error_after_the_response_began_counts() -> None:
    over = ErrorFrame("failed", exception=TypeError("'NoneType' object is not subscriptable"))
    assert attempt_error(over, has_begun=True).category == "unknown"
    assert attempt_error(over).category == "application"
    unsent = ErrorFrame("failed", exception=LLMContextConversionError(ValueError()))
    assert attempt_error(unsent, has_begun=True).category == "application"


def retry_after(value: str, **further: str) -> float | None:
    headers = {"retry-after": value, **further}
    response = httpx.Response(429, headers=headers, request=REQUEST)
    error = httpx.HTTPStatusError("busy", request=REQUEST, response=response)
    return attempt_error(ErrorFrame("failed", exception=error)).retry_after_secs


def test_retry_after_in_seconds_and_as_a_date() -> None:
    assert retry_after("2.5") == 2.5
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert retry_after(in_a_minute) == pytest.approx(60, abs=2)
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after("-3") == 0
    for nonsense in ("soon", "nan", "inf", "", "Wed, 99 Oct 2015 07:28:00 GMT"):
        assert retry_after(nonsense) is None


def test_retry_after_date_uses_the_response_clock() -> None:
    at = "Wed, 21 Oct 2015 07:28:30 GMT"
    assert retry_after(at, date="Wed, 21 Oct 2015 07:28:00 GMT") == 30
    assert retry_after(at, date="Wed, 21 Oct 2015 07:29:00 GMT") == 0
    assert retry_after(at, date="today") == 0


def test_retry_after_is_capped_at_five_minutes() -> None:
    assert retry_after("86400") == retry_after("1e300") == 300
    at = "Wed, 21 Oct 2015 07:28:30 GMT"
    assert retry_after(at, date="Tue, 20 Oct 2015 07:28:30 GMT") == 300
    assert retry_after("299") == 299


@pytest.mark.parametrize(
    ("body", "is_busy", "category"),
    [
        ({"type": "error", "error": {"type": "overloaded_error"}}, True, "unknown"),
        ({"type": "rate_limit_error", "code": None}, True, "unknown"),
        ({"type": "requests", "code": "rate_limit_exceeded"}, True, "unknown"),
        ({"code": 429}, True, "unknown"),  # as a router passes it on
        ({"type": "insufficient_quota", "code": "insufficient_quota"}, False, "quota"),
        ({"type": "error", "error": {"type": "api_error"}}, False, "unknown"),
        ("overloaded_error, perhaps", False, "unknown"),
        (None, False, "unknown"),
    ],
)
def test_load_error_in_the_stream_is_load(body: object, is_busy: bool, category: str) -> None:
    response = httpx.Response(200, request=REQUEST)
    error = anthropic.APIStatusError("failed", response=response, body=body)  # pyright: ignore[reportArgumentType]
    error_found = attempt_error(ErrorFrame("failed", exception=error))
    assert (error_found.is_busy, error_found.category) == (is_busy, category)


def test_exhausted_credit_is_not_load() -> None:
    response = httpx.Response(429, request=REQUEST)
    body = {"message": "You exceeded your quota", "type": "insufficient_quota"}
    error = openai.RateLimitError("failed", response=response, body=body)  # pyright: ignore[reportArgumentType]
    error_found = attempt_error(
        ErrorFrame("failed", exception=error, category=ErrorCategory.RATE_LIMIT)
    )
    assert (error_found.is_busy, error_found.category) == (False, "quota")


def test_google_and_amazon_load_errors() -> None:
    details = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}
    assert attempt_error(ErrorFrame("failed", exception=APIError(429, details))).is_busy
    throttled = RuntimeError("slow down")
    throttled.response = {"Error": {"Code": "ThrottlingException"}}  # pyright: ignore[reportAttributeAccessIssue]
    assert attempt_error(ErrorFrame("failed", exception=throttled)).is_busy


def test_category_without_exception_is_used() -> None:
    assert attempt_error(ErrorFrame("failed", category=ErrorCategory.RATE_LIMIT)).is_busy
    assert not attempt_error(ErrorFrame("failed", category=ErrorCategory.SERVER)).is_busy


async def test_service_retry_on_timeout_is_switched_off() -> None:
    services = [OpenAILLMService(api_key="any", retry_on_timeout=True) for _ in range(2)]
    HedgedLLMService(services)
    for service in services:
        assert not service._retry_on_timeout
        assert service._client.max_retries == 0
        await service._client.close()
