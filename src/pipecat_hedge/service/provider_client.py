"""Adapts providers' SDK clients: errors, hidden retries, rate limits and connections."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, runtime_checkable

import aiohttp
from loguru import logger
from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.frames.frames import ErrorFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.ai_service import AIService
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.utils.errors import (
    ErrorCategory,
    classify_http_exception,
    extract_http_status_code,
)

from pipecat_hedge.providers.rate_limit_headers import http_date
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.service.http_listener import install_hooks, record_mark
from pipecat_hedge.service.portable import Dialect

MAX_RETRY_AFTER_SECS = 300.0
"""A longer ``Retry-After`` is cut to this: a request is the only way to find that a provider is
well."""

AcquirePermit: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""Returns a context that holds a permit for a request; entering it raises ``NotSent``."""


@runtime_checkable
class SupportsPromptWarmUp(Protocol):
    """A service that can have its server process a prompt before it is needed."""

    async def warm(self, context: LLMContext, acquire_permit: AcquirePermit) -> None:
        """Have the server process the beginning of a conversation.

        Args:
            context: The conversation so far.
            acquire_permit: To be entered while the request is sent.

        Raises:
            NotSent: From ``acquire_permit``.
        """
        ...


def attempt_error(frame: ErrorFrame, *, has_begun: bool = False) -> AttemptError:
    """Convert a service's error frame to the race's error.

    Args:
        frame: The service's frame.
        has_begun: Whether the provider had begun to respond.
    """
    category = frame.category or ErrorCategory.UNKNOWN
    if category is ErrorCategory.UNKNOWN:
        if _is_application_error(frame.exception, has_begun=has_begun):
            category = ErrorCategory.APPLICATION
        elif _is_connection_error(frame.exception):
            category = ErrorCategory.CONNECTIVITY
    status = extract_http_status_code(frame.exception) if frame.exception is not None else None
    if status == 413:  # which Pipecat does not classify
        category = ErrorCategory.INVALID_REQUEST
    names = _error_names(frame.exception)
    if not names.isdisjoint(_NO_CREDIT):
        category = ErrorCategory.QUOTA  # OpenAI sends it with status 429
    return AttemptError(
        category=category.value,
        message=frame.error,
        permanent=category.is_permanent,
        is_of_prompt=category is ErrorCategory.INVALID_REQUEST and status != 404,
        retry_after_secs=_retry_after_secs(frame.exception),
        exception=frame.exception,
        is_busy=category is not ErrorCategory.QUOTA
        and (
            category is ErrorCategory.RATE_LIMIT
            or not names.isdisjoint(_BUSY)
            or getattr(frame.exception, "is_busy", False) is True
        ),
        is_connection=category is ErrorCategory.CONNECTIVITY
        and frame.exception is not None
        and not _is_read_timeout(frame.exception),
        is_transient=category is not ErrorCategory.QUOTA
        and _is_retried(frame.exception, has_begun=has_begun),
    )


class Rejection(Exception):
    """The error response behind an error that a service reports without it."""

    def __init__(self, response: Any):
        """Keep the response, of httpx or of aiohttp."""
        super().__init__("the provider rejected the request")
        self.response = response


def is_rejection(response: Any) -> bool:
    """Whether a response, of httpx or of aiohttp, is an error."""
    return (getattr(response, "status_code", None) or getattr(response, "status", 0)) >= 400


def exception_error(exception: Exception, *, has_begun: bool) -> AttemptError:
    """Convert an exception from a service to the race's error.

    Args:
        exception: The exception.
        has_begun: Whether the provider had begun to respond.
    """
    message = f"{type(exception).__name__}: {exception}"
    category = classify_http_exception(exception)
    frame = ErrorFrame(message, exception=exception, category=category)
    return attempt_error(frame, has_begun=has_begun)


def _is_application_error(exception: BaseException | None, *, has_begun: bool) -> bool:
    """Whether an exception would be the same with every provider.

    A context that cannot be converted and an unsupported method always are. Python's own errors are
    if nothing has come from the provider; later, its response may be the cause (null ``choices``
    make a ``TypeError``). Derived kinds (``JSONDecodeError``, pydantic's ``ValidationError``) and
    ``RuntimeError`` are charged to the provider.
    """
    if isinstance(exception, (LLMContextConversionError, NotImplementedError)):
        return True  # whatever its cause, such as a file that cannot be fetched
    if exception is None or has_begun or extract_http_status_code(exception) is not None:
        return False
    return all(type(cause) in _CODE_ERRORS for cause in _causes(exception))


def _causes(exception: BaseException | None) -> Iterator[BaseException]:
    """An exception and its causes, each once: an exception may be its own cause."""
    seen: set[int] = set()
    while exception is not None and id(exception) not in seen:
        seen.add(id(exception))
        yield exception
        exception = exception.__cause__


_CODE_ERRORS = {
    AttributeError,
    IndexError,
    KeyError,
    NameError,
    TypeError,
    UnboundLocalError,
    UnicodeEncodeError,  # encoding is of what is sent, decoding of what is received
    ValueError,
}


def _error_names(exception: BaseException | None) -> set[str]:
    """The provider's names for an error: HTTP status, type and code.

    An error in the stream has status 200 and its names in the body.
    """
    names = {str(extract_http_status_code(exception))} if exception is not None else set[str]()
    response = getattr(exception, "response", None)
    bodies = [getattr(exception, name, None) for name in ("body", "details")]
    bodies.append(response)  # Bedrock's is a dictionary
    while bodies:
        body = bodies.pop()
        if isinstance(body, dict):
            fields = {key.lower(): value for key, value in body.items() if isinstance(key, str)}  # pyright: ignore[reportUnknownVariableType]
            names |= {str(fields[key]) for key in ("type", "code", "status") if key in fields}
            bodies.append(fields.get("error"))
    return names


# Of Anthropic, OpenAI and compatible servers, Google, and Bedrock.
_BUSY = {
    "429",
    "529",
    "rate_limit_error",
    "overloaded_error",
    "rate_limit_exceeded",
    "RESOURCE_EXHAUSTED",
    "ThrottlingException",
}
_NO_CREDIT = {"402", "billing_error", "insufficient_quota"}


def _is_connection_error(exception: BaseException | None) -> bool:
    """Whether an exception that a service did not classify is a lost connection."""
    for cause in _causes(exception):
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        if isinstance(cause, OSError) or not kinds.isdisjoint(_CONNECTION_ERRORS):
            return True
    return False


def _is_retried(exception: BaseException | None, *, has_begun: bool) -> bool:
    """Whether the SDKs of OpenAI and Anthropic would send the request again."""
    status = None if exception is None else extract_http_status_code(exception)
    if status is None:
        return not has_begun and _is_connection_error(exception)
    if status >= 400 and (said := _headers(exception).get("x-should-retry")) in ("true", "false"):
        return said == "true"
    return status in (408, 409, 429) or status >= 500


def _is_read_timeout(exception: BaseException | None) -> bool:
    """Whether the connection was open and nothing came over it in time."""
    timeouts = ("ReadTimeout", "WriteTimeout")
    return any(type(cause).__name__ in timeouts for cause in _causes(exception))


# By name, so that no SDK has to be imported: the base classes in httpx and in the providers' SDKs.
_CONNECTION_ERRORS = {"TransportError", "APIConnectionError"}


def _retry_after_secs(exception: BaseException | None) -> float | None:
    """The ``Retry-After`` of the response behind an exception, in seconds, or None.

    Milliseconds (Azure's) come first, as in the SDKs. A date is compared with the response's own,
    so that a wrong local clock does no harm.
    """
    headers = _headers(exception)
    value = headers.get("retry-after", "")
    secs = _number(headers.get("retry-after-ms", "")) / 1000
    if math.isnan(secs):
        secs = _number(value)
    if math.isnan(secs) and (at := http_date(value)) is not None:
        sent_at = http_date(headers.get("date"))
        secs = at - (time.time() if sent_at is None else sent_at)
    return min(max(0.0, secs), MAX_RETRY_AFTER_SECS) if math.isfinite(secs) else None


def _headers(exception: BaseException | None) -> Mapping[str, str]:
    """The headers of the response behind an exception; empty if there is none."""
    return getattr(getattr(exception, "response", None), "headers", None) or {}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def switch_off_hidden_retries(service: AIService, *, is_alone: bool = False) -> int:
    """Make the provider's SDK report a failure at once, so that the race can replace it.

    The race retries instead, when no other provider is left. The OpenAI and Anthropic SDKs retry
    twice by default. Both offer ``with_options``; Pipecat keeps the client in ``_client`` without a
    public accessor. Pipecat's own ``retry_on_timeout`` stays on if there is no other provider.

    Args:
        service: The service.
        is_alone: Whether it is the only one in its race.

    Returns:
        How many times the SDK would have repeated a failed request.
    """
    if getattr(service, "_retry_on_timeout", False) and not is_alone:
        service._retry_on_timeout = False  # pyright: ignore[reportAttributeAccessIssue]
        logger.debug(f"{service}: retry_on_timeout switched off, the race replaces what fails")
    client = getattr(service, "_client", None)
    retries = getattr(client, "max_retries", 0)
    if not isinstance(retries, int) or retries <= 0 or not hasattr(client, "with_options"):
        return 0
    service._client = client.with_options(max_retries=0)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    logger.debug(f"{service}: SDK retries switched off, the race replaces what fails")
    return retries


def bound_requests(service: STTService, secs: float) -> None:
    """Make the SDK of a recogniser that sends segments fail within ``secs``, without retries.

    Args:
        service: The recogniser; one with another client is left as it is.
        secs: The timeout of a request, in seconds.
    """
    client = getattr(service, "_client", None)
    if hasattr(client, "with_options") and hasattr(client, "max_retries"):
        service._client = client.with_options(max_retries=0, timeout=secs)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]


def dialect_of(
    service: LLMService[Any], provider: str, *, has_short_ids: bool | None = None
) -> Dialect:
    """Return what a service's provider accepts, by its kind, settings and address.

    Args:
        service: The service.
        provider: The provider's name.
        has_short_ids: Whether ids of tool calls must be nine letters or digits; None is what is
            known of its class, address and model.
    """
    settings: Any = service.settings
    kind = service.get_llm_adapter().id_for_llm_specific_messages
    options: dict[str, Any] = {"thinking": getattr(settings, "thinking", None)}
    for name in ("additional_model_request_fields", "extra"):  # Bedrock's; those of all services
        more: Any = getattr(settings, name, None)
        options |= more if isinstance(more, Mapping) else {}
    thinking = options["thinking"]
    mode = getattr(thinking, "type", None)
    mode = thinking.get("type") if isinstance(thinking, Mapping) else mode
    reads_thoughts = True
    if kind == "anthropic":  # "when thinking is disabled, a message cannot contain thinking"
        reads_thoughts = mode not in (None, "disabled") or isinstance(
            getattr(settings, "effort", None), str
        )
    elif kind == "openai_responses":  # "can only be provided to a reasoning model"
        reads_thoughts = bool(getattr(settings, "reasoning", None)) or "reasoning" in options
    if has_short_ids is None:
        address = str(getattr(getattr(service, "_client", None), "base_url", ""))
        known = (*(each.__name__ for each in type(service).__mro__), address, str(settings.model))
        has_short_ids = _MISTRAL.search(" ".join(known)) is not None
    needs_thoughts = mode == "enabled" and kind in ("anthropic", "aws")
    return Dialect(provider, kind, has_short_ids, reads_thoughts, needs_thoughts)


_MISTRAL = re.compile(r"mistral|(?:mini|code|dev|magi|math)stral|(?:mi|pi|vo)xtral", re.IGNORECASE)
"""Mistral's services, addresses and models."""


def read_stream_in_one_task(service: LLMService[Any]) -> None:
    """Make Pipecat's Google service read each chunk in the task that is cancelled.

    Its client may be aiohttp's, which is not traced: the first chunk has the response's headers.

    Before Python 3.12 its ``asyncio.wait_for`` reads a chunk in a task of its own. A request that
    is cancelled before that task has run stays open until the next garbage collection, because the
    SDK's response and its generator refer to each other.
    """
    if not hasattr(service, "_iter_stream") or not hasattr(service, "_stream_idle_timeout_secs"):
        return

    async def iter_stream(
        response: AsyncIterator[Any], *, first_chunk_timeout: float | None
    ) -> AsyncGenerator[Any]:
        timeout_secs, is_first = first_chunk_timeout, True
        try:
            while True:
                async with asyncio.timeout(timeout_secs):
                    try:
                        chunk = await anext(response)
                    except StopAsyncIteration:
                        return
                if is_first:
                    record_mark(getattr(chunk.sdk_http_response, "headers", None) or {})
                    is_first = False
                yield chunk
                timeout_secs = service._stream_idle_timeout_secs  # pyright: ignore[reportAttributeAccessIssue]
        finally:
            if isinstance(response, AsyncGenerator):
                await response.aclose()

    service._iter_stream = iter_stream  # pyright: ignore[reportAttributeAccessIssue]


def keep_connections_open(service: LLMService[Any]) -> None:
    """Make the provider's SDK keep an idle connection until the server closes it.

    httpx closes connections that are idle for 5 s, less than most pauses between turns. The SDKs of
    OpenAI and Anthropic create such a client unless they are given one. There is no public setting
    on an existing client, so its pool is changed. An httpx client that the user provided is left
    unchanged.
    """
    client = getattr(getattr(service, "_client", None), "_client", None)
    if type(client).__name__ != _SDK_DEFAULT_CLIENT:
        return
    for pool in _connection_pools(client):
        if hasattr(pool, "_keepalive_expiry"):
            pool._keepalive_expiry = None
            logger.debug(f"{service}: connections stay open between turns")


_SDK_DEFAULT_CLIENT = "AsyncHttpxClientWrapper"
"""The class name of the client that both SDKs create themselves."""


async def close_idle_connections(service: LLMService[Any]) -> None:
    """Close the idle connections of a service's httpx client, if it has one.

    Requests on their way are left alone. The next one opens a connection.
    """
    for pool in _connection_pools(http_client(service)):
        for connection in getattr(pool, "connections", ()):
            if connection.is_idle():
                await connection.aclose()


def _connection_pools(client: Any) -> list[Any]:
    """The connection pools of an httpx client, which has no public access to them."""
    transports = [getattr(client, "_transport", None), *getattr(client, "_mounts", {}).values()]
    pools = (getattr(transport, "_pool", None) for transport in transports)
    return [pool for pool in pools if pool is not None]


def http_client(service: AIService) -> Any:
    """A service's httpx client; None if it uses another kind, or hides it.

    The SDKs of OpenAI and Anthropic keep it in ``_client``, which services may share. Google's has
    one if it was given in ``HttpOptions(httpx_async_client=...)``.
    """
    sdk = getattr(service, "_client", None)
    google_client = getattr(getattr(sdk, "_api_client", None), "_async_httpx_client", None)
    client = google_client or getattr(sdk, "_client", None)
    is_httpx = "AsyncClient" in {kind.__name__ for kind in type(client).__mro__}
    return client if is_httpx else None


def base_url(service: LLMService[Any]) -> str:
    """The address of a service's API; empty if its SDK is not OpenAI's, Anthropic's or Google's."""
    sdk = getattr(service, "_client", None)
    google_options = getattr(getattr(sdk, "_api_client", None), "_http_options", None)
    return str(getattr(google_options or sdk, "base_url", None) or "")


def keepalive_expiry(client: Any) -> float | None:
    """The seconds after which an httpx client closes an idle connection; None if it does not."""
    pool = getattr(getattr(client, "_transport", None), "_pool", None)
    return getattr(pool, "_keepalive_expiry", None)


def trace_client(service: LLMService[Any]) -> None:
    """Make the service's httpx client report a request's stages and headers, if it has one."""
    if (client := http_client(service)) is not None:
        install_hooks(client)


def report_responses(service: AIService) -> None:
    """Make a service's client, httpx's or aiohttp's, report to ``capture_responses``."""
    client, session = http_client(service), getattr(service, "_session", None)
    if client is not None and _read_response not in client.event_hooks["response"]:
        client.event_hooks["response"].append(_read_response)
    if isinstance(session, aiohttp.ClientSession) and _trace not in session.trace_configs:
        session.trace_configs.append(_trace)


@contextmanager
def capture_responses(callback: Callable[[Any], None]) -> Generator[None, None, None]:
    """Call ``callback`` for every response within the context.

    Args:
        callback: Called with a response as soon as it begins, also with a rejection, but not with a
            redirect.
    """
    token = _response_callback.set(callback)
    try:
        yield
    finally:
        _response_callback.reset(token)


# A context variable, because a client is shared and a response does not name its attempt.
_response_callback: ContextVar[Callable[[Any], None] | None] = ContextVar(
    "response_callback", default=None
)


async def _read_response(response: Any) -> None:
    callback = _response_callback.get()
    # A redirect is not the provider's answer: if its target fails, nothing has begun.
    if callback is not None and not getattr(response, "has_redirect_location", False):
        callback(response)


async def _read_aiohttp_response(_session: object, _context: object, end: Any) -> None:
    await _read_response(end.response)


_trace = aiohttp.TraceConfig()
_trace.on_request_end.append(_read_aiohttp_response)
_trace.freeze()


async def open_connection(service: LLMService[Any]) -> None:
    """Open a service's connection, TLS included, so that the first turn need not.

    Lists the provider's models, which is free, and ignores the result; the SDKs of OpenAI,
    Anthropic and Google offer it. A service with another client is skipped.
    """
    client = getattr(service, "_client", None)
    client = getattr(client, "aio", client)  # Google's synchronous client would block the loop
    models = getattr(client, "models", None)
    if models is None or _ASYNC_CLIENTS.isdisjoint(k.__name__ for k in type(client).__mro__):
        return
    # Unparsed if possible: to create objects for a hundred models blocks the loop for 2 ms.
    await getattr(models, "with_raw_response", models).list()


# By name, so that no SDK has to be imported: the first is OpenAI's and Anthropic's base class.
_ASYNC_CLIENTS = {"AsyncAPIClient", "AsyncClient"}
