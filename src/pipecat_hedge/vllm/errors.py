"""Explains the failures of a vLLM server, each with a remedy."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from loguru import logger
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.race.errors import HedgeError

_CLOSED = ("RemoteProtocolError", "ReadError", "WriteError")  # in httpx and httpx2
_RESTART = "see its log, and restart it if it does not recover"


class VLLMError(HedgeError):
    """A vLLM server did not answer a request; the message names the remedy.

    Attributes:
        category: Pipecat's category of the error.
        response: The HTTP response, or None if there was none.
        is_busy: Whether the server is healthy but overloaded.
    """

    def __init__(
        self,
        message: str,
        category: ErrorCategory,
        response: object = None,
        *,
        is_busy: bool = False,
    ):
        super().__init__(message)
        self.category = category
        self.response = response
        self.is_busy = is_busy


def unreachable(base_url: str, detail: str, model: str | None = None) -> VLLMError:
    """Return the error for a server that does not answer.

    Args:
        base_url: Its address.
        detail: A short cause.
        model: The requested model, for the command that starts a server.
    """
    where = urlsplit(base_url)
    port = where.port or (443 if where.scheme == "https" else 80)
    return VLLMError(
        f"no vLLM server at {base_url} ({detail}): start it with `vllm serve {model or 'MODEL'} "
        f"--port {port}`, or correct base_url",
        ErrorCategory.CONNECTIVITY,
    )


def wrong_key(base_url: str, response: object = None) -> VLLMError:
    """Return the error for a rejected API key."""
    return VLLMError(
        f"{base_url} rejects the API key. Pass the one that the server was started with "
        "(--api-key) as api_key of VLLMService",
        ErrorCategory.AUTHENTICATION,
        response,
    )


def not_served(base_url: str, model: str | None, served: Sequence[str]) -> str:
    """Return the message for a model that a server does not serve.

    Args:
        base_url: Its address.
        model: The requested model.
        served: The models that it serves; empty if unknown.
    """
    return (
        f"model {model} is not served at {base_url}; served: {', '.join(served) or 'unknown'}. "
        "Set settings.model to one of these, or omit it to use the first"
    )


def explain(
    error: Exception, base_url: str, model: str | None, served: Sequence[str] = ()
) -> Exception:
    """Replace an OpenAI client's exception by one that names the remedy.

    The server's own message may quote the prompt, so it is logged at DEBUG only.

    Args:
        error: The client's exception.
        base_url: The server's address.
        model: The requested model.
        served: The models that the server serves, if known.

    Returns:
        The error to raise: the same one if there is nothing to add.
    """
    if isinstance(error, APITimeoutError):
        return error
    if isinstance(error, APIConnectionError):
        return unreachable(base_url, cause_of(error), model)
    if isinstance(error, APIStatusError):
        return _explain_status(error, base_url, model, served)
    if isinstance(error, APIError):  # an error event inside the stream
        logger.debug(f"{base_url}: {error.message}")
        return VLLMError(f"{base_url} failed in mid-answer: {_RESTART}", ErrorCategory.SERVER)
    return error


def _explain_status(
    error: APIStatusError, base_url: str, model: str | None, served: Sequence[str]
) -> Exception:
    text, status, response = _message(error), error.status_code, error.response
    logger.debug(f"{base_url}: {text}")
    category = ErrorCategory.SERVER if status >= 500 else ErrorCategory.INVALID_REQUEST
    if (limit := re.search(r"maximum context length is (\d+) tokens", text)) is not None:
        size = re.search(r"prompt contains ((?:at least )?\d+ (?:input tokens|characters))", text)
        category = ErrorCategory.APPLICATION  # the server is healthy; a shorter context may fit
        message = (
            f"the prompt has {size[1] if size else 'too many tokens'}, the server's limit is "
            f"{limit[1]} tokens including the answer: shorten the conversation (Pipecat can "
            "summarise it), lower max_tokens, or start the server with a larger --max-model-len"
        )
    elif status == 401:
        return wrong_key(base_url, response)
    elif status == 503:
        message = (
            f"{base_url} accepts no more requests, its queue is full: start another server, or "
            "raise --max-num-queued-reqs"
        )
    elif status >= 500:
        message = f"{base_url} failed, HTTP {status}: {_RESTART}"
    elif status == 404 and "model" in text:
        message = not_served(base_url, model, served)
    elif status == 404:
        message = (
            f"{base_url} has no chat completions: base_url must be the address of vLLM's "
            "OpenAI-compatible API, such as http://localhost:8000/v1"
        )
    elif status == 400 and ("--enable-auto-tool-choice" in text or "--tool-call-parser" in text):
        message = (
            f"{base_url} was started without tool calling: start it with --enable-auto-tool-choice "
            "--tool-call-parser and the parser of its model, such as hermes"
        )
    else:
        body = error.body if isinstance(error.body, dict) else {}
        about = f", about {body['param']}" if body.get("param") else ""
        # Keep the type: on a BadRequestError Pipecat drops a file that the model cannot read.
        return type(error)(
            f"{base_url} rejects the request, HTTP {status}{about}: its message is in the log at "
            "DEBUG. Correct the settings, the tools or the messages",
            response=response,
            body=None,
        )
    return VLLMError(message, category, response, is_busy=status == 503)


def closed_while_idle(error: Exception) -> bool:
    """Whether the connection closed before the answer, as an idle connection may."""
    return any(type(cause).__name__ in _CLOSED for cause in _causes(error))


def cause_of(error: Exception) -> str:
    """Return a short cause of a failed connection."""
    causes = _causes(error)
    for kind, text in _CAUSES.items():
        if any(isinstance(cause, kind) for cause in causes):
            return text
    return str(causes[-1]) or type(causes[-1]).__name__


_CAUSES: dict[type[BaseException], str] = {
    TimeoutError: "no answer in time",
    ssl.SSLError: "no TLS: write http://, not https://",
    socket.gaierror: "no such host",
    ConnectionRefusedError: "nothing listens there",
}


def _causes(error: BaseException) -> list[BaseException]:
    """Return an exception and its causes, innermost last."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        if isinstance(cause, BaseExceptionGroup):  # one per address of the host
            cause = cause.exceptions[0]
        else:
            cause = cause.__cause__ or cause.__context__
    return causes


def _message(error: APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        return str(inner.get("message", "") if isinstance(inner, dict) else inner)
    return str(error)
