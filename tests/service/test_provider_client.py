"""How a provider's failure becomes a race error."""

from __future__ import annotations

import json

import anthropic
import httpx
import openai
import pytest
from google.genai.errors import APIError
from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.frames.frames import ErrorFrame
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.race import AttemptError
from pipecat_hedge.service.provider_client import attempt_error

REQUEST = httpx.Request("POST", "http://127.0.0.1/v1")


def found(
    exception: Exception | None, category: ErrorCategory | None = None, *, has_begun: bool = False
) -> AttemptError:
    frame = ErrorFrame("failed", exception=exception, category=category)
    return attempt_error(frame, has_begun=has_begun)


def caused(exception: Exception, by: Exception) -> Exception:
    exception.__cause__ = by
    return exception


OWN = RuntimeError("failed")
UNREADABLE = json.JSONDecodeError("Expecting value", "<html>", 0)
CONVERSION = LLMContextConversionError(ValueError("no such file"))
CATEGORIES: dict[str, list[Exception | None]] = {
    "connectivity": [
        anthropic.APIConnectionError(request=REQUEST),  # pyright: ignore[reportArgumentType]
        httpx.RemoteProtocolError("cut"),
        httpx.ConnectTimeout("slow"),
        ConnectionResetError(),
        TimeoutError(),
        caused(RuntimeError("failed"), ConnectionResetError()),
    ],
    "application": [
        CONVERSION,
        caused(LLMContextConversionError(OSError()), ConnectionResetError()),
        NotImplementedError("run_inference() not supported"),
        TypeError("Object of type Caller is not JSON serializable"),
        ValueError("extra: no such parameter"),
        caused(ValueError("no such tool"), KeyError("weather")),
        AttributeError("model"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    ],
    "unknown": [
        None,
        UNREADABLE,
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        caused(ValueError("no answer"), UNREADABLE),
        RuntimeError("the model is not loaded"),
        caused(OWN, OWN),
    ],
}


@pytest.mark.parametrize(
    ("category", "exception"), [(name, each) for name in CATEGORIES for each in CATEGORIES[name]]
)
def test_exception_is_classified(category: str, exception: Exception | None) -> None:
    assert found(exception).category == category
    assert found(exception, ErrorCategory.SERVER).category == "server", "as the service says"


def test_error_after_the_response_began_counts() -> None:
    error = TypeError("'NoneType' object is not subscriptable")
    assert found(error, has_begun=True).category == "unknown"
    assert found(CONVERSION, has_begun=True).category == "application"


AT = "Wed, 21 Oct 2015 07:28:30 GMT"


def retry_after(value: str, date: str | None = None) -> float | None:
    headers = {"retry-after": value} | ({} if date is None else {"date": date})
    response = httpx.Response(429, headers=headers, request=REQUEST)
    return found(httpx.HTTPStatusError("busy", request=REQUEST, response=response)).retry_after_secs


@pytest.mark.parametrize(
    ("value", "date", "secs"),
    [
        ("2.5", None, 2.5),
        ("-3", None, 0),
        ("299", None, 299),
        ("86400", None, 300),
        ("1e300", None, 300),
        *[(text, None, None) for text in ("soon", "nan", "inf", "", AT.replace("21", "99"))],
        (AT, None, 0),
        (AT, "Wed, 21 Oct 2015 07:28:00 GMT", 30),
        (AT, "Wed, 21 Oct 2015 07:29:00 GMT", 0),
        (AT, "Tue, 20 Oct 2015 07:28:30 GMT", 300),
        (AT, "today", 0),
    ],
)
def test_retry_after_is_read(value: str, date: str | None, secs: float | None) -> None:
    """A date counts by the response's clock, and five minutes are the most."""
    assert retry_after(value, date) == secs


def rejected(status: int, **headers: str) -> AttemptError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    response = httpx.Response(status, headers=named, request=REQUEST)
    return found(httpx.HTTPStatusError("no", request=REQUEST, response=response))


def test_retry_after_in_milliseconds_comes_first() -> None:
    assert rejected(429, retry_after="3", retry_after_ms="2400").retry_after_secs == 2.4
    assert rejected(429, retry_after="3", retry_after_ms="soon").retry_after_secs == 3


def test_server_says_whether_to_retry() -> None:
    assert rejected(424, x_should_retry="true").is_transient
    assert not rejected(503, x_should_retry="false").is_transient
    assert rejected(503, x_should_retry="perhaps").is_transient


QUOTA = {"type": "insufficient_quota", "code": "insufficient_quota"}


@pytest.mark.parametrize(
    ("status", "body", "is_busy", "category"),
    [
        (200, {"type": "error", "error": {"type": "overloaded_error"}}, True, "unknown"),
        (200, {"type": "rate_limit_error", "code": None}, True, "unknown"),
        (200, {"type": "requests", "code": "rate_limit_exceeded"}, True, "unknown"),
        (200, {"code": 429}, True, "unknown"),  # as a router passes it on
        (200, QUOTA, False, "quota"),
        (429, QUOTA, False, "quota"),
        (200, {"type": "error", "error": {"type": "api_error"}}, False, "unknown"),
        (200, "overloaded_error, perhaps", False, "unknown"),
        (200, None, False, "unknown"),
    ],
)
def test_load_is_told_from_exhausted_credit(
    status: int, body: object, is_busy: bool, category: str
) -> None:
    response = httpx.Response(status, request=REQUEST)
    error = openai.APIStatusError("failed", response=response, body=body)  # pyright: ignore[reportArgumentType]
    given = ErrorCategory.RATE_LIMIT if status == 429 else None
    assert (found(error, given).is_busy, found(error, given).category) == (is_busy, category)


def test_google_and_amazon_load_errors() -> None:
    details = {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}}
    throttled = RuntimeError("slow down")
    throttled.response = {"Error": {"Code": "ThrottlingException"}}  # pyright: ignore[reportAttributeAccessIssue]
    assert found(APIError(429, details)).is_busy
    assert found(throttled).is_busy
    assert found(None, ErrorCategory.RATE_LIMIT).is_busy
    assert not found(None, ErrorCategory.SERVER).is_busy
