"""Says what a vLLM server's failures mean, and what to do about each."""

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

__all__ = [
    "VLLMError",
    "cause_of",
    "closed_while_idle",
    "explain",
    "not_served",
    "unreachable",
    "wrong_key",
]

_CLOSED = ("RemoteProtocolError", "ReadError", "WriteError")  # in httpx and httpx2
_RESTART = "see its log, and start it again if it does not come back"


class VLLMError(HedgeError):
    """A request that a vLLM server did not answer; the message says what to do.

    Attributes:
        category: Pipecat's category of the error.
        response: The HTTP response, or None if there was none.
        is_busy: Whether the server works, and has too much to do.
    """

    def __init__(
        self,
        message: str,
        category: ErrorCategory,
        response: object = None,
        *,
        is_busy: bool = False,
    ):
        """Describe the failure.

        Args:
            message: What happened, and the remedy.
            category: Pipecat's category of the error.
            response: The HTTP response, if there was one.
            is_busy: Whether the server works, and has too much to do.
        """
        super().__init__(message)
        self.category = category
        self.response = response
        self.is_busy = is_busy


def unreachable(base_url: str, detail: str, model: str | None = None) -> VLLMError:
    """The error for a server that does not answer.

    Args:
        base_url: Its address.
        detail: What was found there.
        model: The model that was requested, for the command that starts a server.
    """
    where = urlsplit(base_url)
    port = where.port or (443 if where.scheme == "https" else 80)
    return VLLMError(
        f"no vLLM answers at {base_url} ({detail}): start it with `vllm serve {model or 'MODEL'} "
        f"--port {port}`, or correct base_url",
        ErrorCategory.CONNECTIVITY,
    )


def wrong_key(base_url: str, response: object = None) -> VLLMError:
    """The error for a server that was started with another key.

    Args:
        base_url: Its address.
        response: Its HTTP response, if there was one.
    """
    return VLLMError(
        f"{base_url} refuses the key that it was sent: pass the one that the server was started "
        "with (--api-key) to VLLMService, as its argument api_key",
        ErrorCategory.AUTHENTICATION,
        response,
    )


def not_served(base_url: str, model: str | None, served: Sequence[str]) -> str:
    """The message for a model that a server does not serve.

    Args:
        base_url: Its address.
        model: The model that was requested.
        served: The models that it serves; empty if it does not list them.
    """
    return (
        f"model {model} is not served at {base_url}; served: {', '.join(served) or 'unknown'}. "
        "Name one of these in settings.model, or leave it out to use the first"
    )


def explain(
    error: Exception, base_url: str, model: str | None, served: Sequence[str] = ()
) -> Exception:
    """Replace what the OpenAI client raised by an error that says what to do.

    The server's own message may quote the prompt, so it is logged at DEBUG only.

    Args:
        error: What the client raised.
        base_url: The server's address.
        model: The model that was requested.
        served: The models that the server serves, if known.

    Returns:
        The error to raise: the same one if there is nothing to add.
    """
    if isinstance(error, APITimeoutError):
        return error
    if isinstance(error, APIConnectionError):
        return unreachable(base_url, cause_of(error), model)
    if isinstance(error, APIStatusError):
        return _explain_refusal(error, base_url, model, served)
    if isinstance(error, APIError):  # sent in the stream, in place of the rest of the answer
        logger.debug(f"{base_url} says: {error.message}")
        return VLLMError(f"{base_url} has failed in mid-answer: {_RESTART}", ErrorCategory.SERVER)
    return error


def _explain_refusal(
    error: APIStatusError, base_url: str, model: str | None, served: Sequence[str]
) -> Exception:
    text, status, response = _message(error), error.status_code, error.response
    logger.debug(f"{base_url} says: {text}")
    category = ErrorCategory.SERVER if status >= 500 else ErrorCategory.INVALID_REQUEST
    if (limit := re.search(r"maximum context length is (\d+) tokens", text)) is not None:
        size = re.search(r"prompt contains ((?:at least )?\d+ (?:input tokens|characters))", text)
        category = ErrorCategory.APPLICATION  # the server is well, and another context may fit
        message = (
            f"the prompt has {size[1] if size else 'too many tokens'}, the server's limit is "
            f"{limit[1]} tokens with the answer: shorten the conversation (Pipecat can summarise "
            "it), lower max_tokens, or start the server with a larger --max-model-len"
        )
    elif status == 401:
        return wrong_key(base_url, response)
    elif status == 503:
        message = (
            f"{base_url} takes no more requests, its queue is full: start another server, or raise "
            "--max-num-queued-reqs"
        )
    elif status >= 500:
        message = f"{base_url} has failed, HTTP {status}: {_RESTART}"
    elif status == 404 and "model" in text:
        message = not_served(base_url, model, served)
    elif status == 404:
        message = (
            f"{base_url} has no chat completions: base_url must be the address of vLLM's "
            "OpenAI-compatible API, as http://localhost:8000/v1"
        )
    elif status == 400 and ("--enable-auto-tool-choice" in text or "--tool-call-parser" in text):
        message = (
            f"{base_url} was started without tools: start it with --enable-auto-tool-choice "
            "--tool-call-parser and the parser of its model, as hermes"
        )
    else:
        body = error.body if isinstance(error.body, dict) else {}
        about = f", about {body['param']}" if body.get("param") else ""
        # The type stays: on a BadRequestError Pipecat removes a file that no server would accept.
        return type(error)(
            f"{base_url} refuses the request, HTTP {status}{about}: its message is in the log at "
            "DEBUG. Correct the settings, the tools or the messages",
            response=response,
            body=None,
        )
    return VLLMError(message, category, response, is_busy=status == 503)


def closed_while_idle(error: Exception) -> bool:
    """Whether a connection was closed before its request was answered, as an idle one may be.

    Args:
        error: What the client raised.
    """
    return any(type(cause).__name__ in _CLOSED for cause in _causes(error))


def cause_of(error: Exception) -> str:
    """Why a server could not be reached, in a few words.

    Args:
        error: What an HTTP client raised.
    """
    causes = _causes(error)
    for kind, text in _CAUSES.items():
        if any(isinstance(cause, kind) for cause in causes):
            return text
    return str(causes[-1]) or type(causes[-1]).__name__


_CAUSES: dict[type[BaseException], str] = {
    TimeoutError: "no answer in time",
    ssl.SSLError: "no TLS is spoken there: write http://, not https://",
    socket.gaierror: "no such host",
    ConnectionRefusedError: "nothing listens there",
}


def _causes(error: BaseException) -> list[BaseException]:
    """An error and what caused it, the innermost last."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        if isinstance(cause, BaseExceptionGroup):  # one for each of a host's addresses
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
