"""What the race must know of a provider's SDK: how it fails, that it retries, what headers tell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias, runtime_checkable

from loguru import logger
from pipecat.adapters.llm.base_llm_adapter import LLMContextConversionError
from pipecat.frames.frames import ErrorFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import LLMService
from pipecat.utils.errors import (
    ErrorCategory,
    classify_http_exception,
    extract_http_status_code,
)

from pipecat_hedge.limits.rate_limit_headers import RateLimits, http_date, parse_rate_limits
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.service.http_listener import install_hooks

__all__ = [
    "AcquirePermit",
    "SupportsPromptWarmUp",
    "attempt_error",
    "capture_rate_limits",
    "exception_error",
    "http_client",
    "keep_connections_open",
    "keepalive_expiry",
    "open_connection",
    "switch_off_hidden_retries",
    "trace_client",
]


MAX_RETRY_AFTER_SECS = 300.0
"""Who asks to be left alone for longer is asked again all the same: nothing else would find out
that it is well again, or that it was a mistake."""

AcquirePermit: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
"""AcquirePermit to send a request, for as long as it takes; entering it raises ``Rejected``."""


@runtime_checkable
class SupportsPromptWarmUp(Protocol):
    """A service that can have its server read a prompt before it is needed."""

    async def warm(self, context: LLMContext, acquire_permit: AcquirePermit) -> None:
        """Have the server read the beginning of a conversation.

        Args:
            context: The conversation so far.
            acquire_permit: To be entered around what is sent, and only while it is.

        Raises:
            Rejected: By ``acquire_permit``.
        """
        ...


def attempt_error(frame: ErrorFrame, *, has_begun: bool = False) -> AttemptError:
    """Put a service's error frame into the race's words.

    Args:
        frame: The frame that the service pushed.
        has_begun: Whether the provider had begun to respond.
    """
    category = frame.category or ErrorCategory.UNKNOWN
    if category is ErrorCategory.UNKNOWN:
        if _is_application_error(frame.exception, has_begun=has_begun):
            category = ErrorCategory.APPLICATION
        elif _is_connection_error(frame.exception):
            category = ErrorCategory.CONNECTIVITY
    names = _error_names(frame.exception)
    if not names.isdisjoint(_NO_CREDIT):
        category = ErrorCategory.QUOTA  # OpenAI says so under 429
    return AttemptError(
        category=category.value,
        message=frame.error,
        permanent=category.is_permanent,
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


def exception_error(exception: Exception, *, has_begun: bool) -> AttemptError:
    """Put an exception that a service let through into the race's words.

    Args:
        exception: The exception.
        has_begun: Whether the provider had begun to respond.
    """
    message = f"{type(exception).__name__}: {exception}"
    category = classify_http_exception(exception)
    frame = ErrorFrame(message, exception=exception, category=category)
    return attempt_error(frame, has_begun=has_begun)


def _is_application_error(exception: BaseException | None, *, has_begun: bool) -> bool:
    """Whether an exception was none of the provider's doing: it would be the same at every one.

    A context that cannot be converted and a method that a service does not have never are. Errors
    that Python itself raises in whatever code goes wrong are not, as long as nothing has come from
    the provider: from then on what they stumbled over may be what it sent (``choices`` that are
    null make a ``TypeError``). Kinds derived from those are left to the provider in any case: they
    are errors of reading (``JSONDecodeError``, pydantic's ``ValidationError``). ``RuntimeError`` is
    too, which services raise in a provider's name. To excuse a provider wrongly costs each turn one
    failure, which is replaced at once; to blame one wrongly shuts it to every caller.
    """
    if isinstance(exception, (LLMContextConversionError, NotImplementedError)):
        return True  # whatever is behind it: a file that cannot be fetched is no provider's either
    if exception is None or has_begun or extract_http_status_code(exception) is not None:
        return False
    return all(type(cause) in _CODE_ERRORS for cause in _causes(exception))


def _causes(exception: BaseException | None) -> Iterator[BaseException]:
    """An exception and its causes, each once: a service may have raised it from itself."""
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
    UnicodeEncodeError,  # of what was to be sent; to decode is to read
    ValueError,
}


def _error_names(exception: BaseException | None) -> set[str]:
    """What the provider calls its error: HTTP status, type and code, wherever its SDK has them.

    An error in the stream comes under status 200 and says it in its body alone.
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


# Anthropic's, OpenAI's and its likes', Google's, Bedrock's.
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
    """Whether a service that did not classify an exception has lost its connection."""
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
    return status in (408, 409, 429) or status >= 500


def _is_read_timeout(exception: BaseException | None) -> bool:
    """Whether the connection stood, and nothing came over it in time."""
    timeouts = ("ReadTimeout", "WriteTimeout")
    return any(type(cause).__name__ in timeouts for cause in _causes(exception))


# By name, so that no SDK has to be imported: the base classes in httpx and in the providers' SDKs.
_CONNECTION_ERRORS = {"TransportError", "APIConnectionError"}


def _retry_after_secs(exception: BaseException | None) -> float | None:
    """The ``Retry-After`` of the HTTP response behind an exception, if it carries one.

    A date is compared with the response's own, so that a clock that is wrong here does no harm.
    """
    headers = getattr(getattr(exception, "response", None), "headers", None)
    if headers is None or (value := headers.get("retry-after")) is None:
        return None
    try:
        secs = float(value)
    except ValueError:
        if (at := http_date(value)) is None:
            return None
        sent_at = http_date(headers.get("date"))
        secs = at - (time.time() if sent_at is None else sent_at)
    return min(max(0.0, secs), MAX_RETRY_AFTER_SECS) if math.isfinite(secs) else None


def switch_off_hidden_retries(service: LLMService[Any], *, is_alone: bool = False) -> int:
    """Have the provider's SDK report a failure at once, so that the race can replace it.

    What is switched off the race does instead, once nobody else is left to ask. The OpenAI and
    Anthropic SDKs retry twice by themselves. Both offer ``with_options`` for this; Pipecat keeps
    the client in ``_client`` and has no public way to it. Pipecat's own ``retry_on_timeout`` asks a
    second time where the race would ask somebody else; where there is nobody else it is left on.

    Args:
        service: The service.
        is_alone: Whether it is the only one in its race.

    Returns:
        How often the SDK would have sent a failed request again.
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


def keep_connections_open(service: LLMService[Any]) -> None:
    """Have the provider's SDK keep an idle connection until the server closes it.

    The SDKs of OpenAI and Anthropic make an httpx client where they are given none, and httpx lets
    go of what has been idle for 5 s. Callers speak and listen for longer than that between two
    turns, so that nearly every turn would open a connection. Pipecat gives OpenAI's SDK a client
    that keeps them, and Anthropic's none. There is no public way to say so to a client that exists,
    and another in its place would not be closed with the SDK's, so its pool is told. An httpx
    client that was given is left alone: somebody chose it.
    """
    client = getattr(getattr(service, "_client", None), "_client", None)
    if type(client).__name__ != _SDK_DEFAULT_CLIENT:
        return
    transports = [getattr(client, "_transport", None), *getattr(client, "_mounts", {}).values()]
    for transport in transports:
        pool = getattr(transport, "_pool", None)
        if hasattr(pool, "_keepalive_expiry"):
            pool._keepalive_expiry = None  # pyright: ignore[reportOptionalMemberAccess]
            logger.debug(f"{service}: connections stay open between turns")


_SDK_DEFAULT_CLIENT = "AsyncHttpxClientWrapper"
"""What both SDKs call the client that they make themselves."""


def http_client(service: LLMService[Any]) -> Any:
    """The httpx client that a service asks through; None if it has another kind, or hides it.

    The SDKs of OpenAI and Anthropic keep it in ``_client``, which several services may share and
    which several of the SDK's own clients do; Google's has one where it was given one in
    ``HttpOptions(httpx_async_client=...)``.
    """
    sdk = getattr(service, "_client", None)
    theirs = getattr(getattr(sdk, "_api_client", None), "_async_httpx_client", None)
    client = theirs or getattr(sdk, "_client", None)
    is_httpx = "AsyncClient" in {kind.__name__ for kind in type(client).__mro__}
    return client if is_httpx else None


def keepalive_expiry(client: Any) -> float | None:
    """After how long an httpx client itself closes an idle connection; None if it does not.

    Args:
        client: The client, or None.
    """
    pool = getattr(getattr(client, "_transport", None), "_pool", None)
    return getattr(pool, "_keepalive_expiry", None)


def trace_client(service: LLMService[Any]) -> None:
    """Have the service's client tell when a request's parts come and go, and its headers.

    A service without an httpx client is left alone.
    """
    client = http_client(service)
    if client is None:
        return
    hooks = client.event_hooks["response"]
    if _read_rate_limit not in hooks:
        hooks.append(_read_rate_limit)
    install_hooks(client)


@contextmanager
def capture_rate_limits(
    callback: Callable[[RateLimits | None], None],
) -> Generator[None, None, None]:
    """Tell of the responses to the requests made inside, and of the rate limits they speak of.

    Args:
        callback: Told as soon as a response has begun, refusals included; None where it speaks of
            no rate limit.
    """
    token = _rate_limit_callback.set(callback)
    try:
        yield
    finally:
        _rate_limit_callback.reset(token)


# In a context variable, because a client is shared and a response does not say who asked.
_rate_limit_callback: ContextVar[Callable[[RateLimits | None], None] | None] = ContextVar(
    "rate_limit_callback", default=None
)


async def _read_rate_limit(response: Any) -> None:
    callback = _rate_limit_callback.get()
    if callback is not None:
        callback(parse_rate_limits(response.headers, time.time()))


async def open_connection(service: LLMService[Any]) -> None:
    """Have a service's client connect, TLS and all, so that the first turn finds it done.

    Lists the provider's models, which costs nothing and whose answer does not matter; the SDKs of
    OpenAI, Anthropic and Google offer it. A service with another client is left alone.
    """
    client = getattr(service, "_client", None)
    client = getattr(client, "aio", client)  # Google's: the client itself would block the loop
    models = getattr(client, "models", None)
    if models is None or _ASYNC_CLIENTS.isdisjoint(k.__name__ for k in type(client).__mro__):
        return
    # Where it is offered, unread: to make objects of a hundred models takes 2 ms of the loop.
    await getattr(models, "with_raw_response", models).list()


# By name, so that no SDK has to be imported: the first is OpenAI's and Anthropic's base class.
_ASYNC_CLIENTS = {"AsyncAPIClient", "AsyncClient"}
