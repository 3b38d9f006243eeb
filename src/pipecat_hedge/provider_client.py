"""What a provider's SDK does that the race must know of: how it fails, and that it retries."""

from __future__ import annotations

import math
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol, runtime_checkable

from loguru import logger
from pipecat.frames.frames import ErrorFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import LLMService
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.errors import AttemptError

__all__ = ["ReadsAhead", "attempt_error", "open_connection", "switch_off_hidden_retries"]


@runtime_checkable
class ReadsAhead(Protocol):
    """A service that can have its server read a prompt before it is needed."""

    async def warm(self, context: LLMContext) -> None:
        """Have the server read the beginning of a conversation.

        Args:
            context: The conversation so far.
        """
        ...


def attempt_error(frame: ErrorFrame) -> AttemptError:
    """Put a service's error frame into the race's words.

    Args:
        frame: The frame that the service pushed.
    """
    category = frame.category or ErrorCategory.UNKNOWN
    if category is ErrorCategory.UNKNOWN and _is_connection_error(frame.exception):
        category = ErrorCategory.CONNECTIVITY
    return AttemptError(
        category=category.value,
        message=frame.error,
        permanent=category.is_permanent,
        retry_after_secs=_retry_after_secs(frame.exception),
        exception=frame.exception,
    )


def _is_connection_error(exception: BaseException | None) -> bool:
    """Whether a service that did not classify an exception has lost its connection."""
    while exception is not None:
        kinds = {kind.__name__ for kind in type(exception).__mro__}
        if isinstance(exception, OSError) or not kinds.isdisjoint(_CONNECTION_ERRORS):
            return True
        exception = exception.__cause__
    return False


# By name, so that no SDK has to be imported: the base classes in httpx and in the providers' SDKs.
_CONNECTION_ERRORS = {"TransportError", "APIConnectionError"}


def _retry_after_secs(exception: BaseException | None) -> float | None:
    """The ``Retry-After`` of the HTTP response behind an exception, if it carries one."""
    headers = getattr(getattr(exception, "response", None), "headers", None)
    value = headers.get("retry-after") if headers is not None else None
    if value is None:
        return None
    try:
        secs = float(value)
    except ValueError:
        try:
            at = parsedate_to_datetime(value)
        except ValueError:
            return None
        secs = (at - datetime.now(at.tzinfo)).total_seconds()
    return max(0.0, secs) if math.isfinite(secs) else None


def switch_off_hidden_retries(service: LLMService[Any]) -> None:
    """Have the provider's SDK report a failure at once, so that the race can replace it.

    The OpenAI and Anthropic SDKs retry twice by themselves. Both offer ``with_options`` for this;
    Pipecat keeps the client in ``_client`` and has no public way to it. Pipecat's own
    ``retry_on_timeout`` asks a second time where the race would ask somebody else.
    """
    if getattr(service, "_retry_on_timeout", False):
        service._retry_on_timeout = False  # pyright: ignore[reportAttributeAccessIssue]
        logger.debug(f"{service}: retry_on_timeout switched off, the race replaces what fails")
    client = getattr(service, "_client", None)
    if getattr(client, "max_retries", 0) and hasattr(client, "with_options"):
        service._client = client.with_options(max_retries=0)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        logger.debug(f"{service}: SDK retries switched off, the race replaces what fails")


async def open_connection(service: LLMService[Any]) -> None:
    """Have a service's client connect, TLS and all, so that the first turn finds it done.

    Lists the provider's models, which costs nothing and whose answer does not matter; the SDKs of
    OpenAI, Anthropic and Google offer it. A service with another client is left alone.

    Args:
        service: The service.
    """
    client = getattr(service, "_client", None)
    client = getattr(client, "aio", client)  # Google's: the client itself would block the loop
    models = getattr(client, "models", None)
    if models is None or _ASYNC_CLIENTS.isdisjoint(k.__name__ for k in type(client).__mro__):
        return
    await models.list()


# By name, so that no SDK has to be imported: the first is OpenAI's and Anthropic's base class.
_ASYNC_CLIENTS = {"AsyncAPIClient", "AsyncClient"}
