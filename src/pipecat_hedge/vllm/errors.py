"""What a vLLM server's refusals mean, and what to do about each."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from loguru import logger
from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.vllm.server import ServerUnreachable, VLLMServer

__all__ = ["VLLMError", "explain", "failed_in_mid_answer", "nothing_answers", "wrong_key"]


class VLLMError(HedgeError):
    """A request that a vLLM server did not answer; the message says what to do.

    Attributes:
        category: Why, in Pipecat's words.
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
        """Say what happened.

        Args:
            message: What happened, and the remedy.
            category: Why.
            response: The HTTP response, where there was one.
            is_busy: Whether the server works, and has too much to do.
        """
        super().__init__(message)
        self.category = category
        self.response = response
        self.is_busy = is_busy


def nothing_answers(server: VLLMServer, why: str = "", model: str | None = None) -> VLLMError:
    """The error of a server that is not there.

    Args:
        server: The server.
        why: What was found in its place.
        model: What was to be asked for; None if nobody has said.
    """
    where = urlsplit(server.base_url)
    if not why or why == "nothing listens there":
        found = f"nothing listens on {server.base_url}"
    else:
        found = f"no vLLM can be asked at {server.base_url} ({why})"
    port = where.port or (443 if where.scheme == "https" else 80)
    command = f"vllm serve {model or 'MODEL'} --port {port}"
    return VLLMError(
        f"{found}: start it with `{command}`, or correct base_url",
        ErrorCategory.CONNECTIVITY,
    )


async def explain(error: Exception, server: VLLMServer, model: str | None) -> Exception:
    """Put a failed request into words that help.

    Args:
        error: What the client raised.
        server: Whom it had asked.
        model: What it had asked for.

    Returns:
        What to raise in its place: the error itself if there is nothing to add.
    """
    if isinstance(error, APIConnectionError) and not isinstance(error, APITimeoutError):
        refused = _is_caused_by(error, ConnectionRefusedError)
        return nothing_answers(server, "" if refused else _innermost(error), model)
    if isinstance(error, APIStatusError):
        return await _refused(error, server, model)
    return error


def wrong_key(server: VLLMServer, response: object = None) -> VLLMError:
    """The error of a server that was started with another key.

    Args:
        server: The server.
        response: Its answer, where there was one.
    """
    return VLLMError(
        f"{server.base_url} does not know the key that it was sent. Give VLLMService, as its "
        "argument api_key, the one that the server was started with (--api-key)",
        ErrorCategory.AUTHENTICATION,
        response,
    )


async def _refused(error: APIStatusError, server: VLLMServer, model: str | None) -> Exception:
    """What an answer other than 200 means."""
    said, status, response, where = _message(error), error.status_code, error.response, server
    if (limit := re.search(r"maximum context length is (\d+) tokens", said)) is not None:
        message = await _too_long(int(limit[1]), said, error, server)
        # Another context may fit, so this says nothing about the server.
        return VLLMError(message, ErrorCategory.APPLICATION, response)
    if status == 401:
        return wrong_key(server, response)
    if status == 404 and "model" in said:
        told = await _not_served(server, model)
        return VLLMError(told, ErrorCategory.INVALID_REQUEST, response)
    if status == 404:
        return VLLMError(
            f"{where.base_url} has no chat completions: base_url must be the address of vLLM's "
            "OpenAI-compatible API, as http://localhost:8000/v1",
            ErrorCategory.INVALID_REQUEST,
            response,
        )
    if status == 503:
        return VLLMError(
            f"{where.base_url} takes no more requests, its queue is full: start another server, "
            "or raise --max-num-queued-reqs",
            ErrorCategory.SERVER,
            response,
            is_busy=True,
        )
    if status == 400 and ("--enable-auto-tool-choice" in said or "--tool-call-parser" in said):
        return VLLMError(
            f"{where.base_url} was started without tools: start it with --enable-auto-tool-choice "
            "--tool-call-parser and the parser of its model, as hermes",
            ErrorCategory.INVALID_REQUEST,
            response,
        )
    if status == 400 and "priority" in said.lower():
        return VLLMError(
            f"{where.base_url} takes no priorities: start it with --scheduling-policy priority, "
            "or pass priority=None",
            ErrorCategory.INVALID_REQUEST,
            response,
        )
    if status >= 500:
        _keep_words(server, said)
        return VLLMError(
            f"{where.base_url} has failed, HTTP {status}: see its log, and start it again if it "
            "does not come back",
            ErrorCategory.SERVER,
            response,
        )
    # Its own words may quote the request, and errors are logged. The kind stays what it is, since
    # Pipecat takes a file out of the conversation that no server would accept.
    _keep_words(server, said)
    body = error.body if isinstance(error.body, dict) else {}
    about = f", about {body['param']}" if body.get("param") else ""
    told = (
        f"{where.base_url} refuses the request, HTTP {status}{about}: what it says is in the log "
        "at DEBUG. Correct the settings, the tools or the messages"
    )
    return type(error)(told, response=response, body=None)


def failed_in_mid_answer(server: VLLMServer, error: APIError) -> VLLMError:
    """The error of a server that sent an error in place of the rest of an answer.

    Args:
        server: The server.
        error: What the client raised.
    """
    _keep_words(server, error.message)
    return VLLMError(
        f"{server.base_url} has failed in mid-answer: see its log, and start it again if it does "
        "not come back",
        ErrorCategory.SERVER,
    )


def _keep_words(server: VLLMServer, said: str) -> None:
    logger.debug(f"{server.base_url} says: {said}")


async def _not_served(server: VLLMServer, model: str | None) -> str:
    try:
        names = ", ".join(served.name for served in await server.models(again=True))
    except ServerUnreachable:
        names = ""
    served = f"served: {names}" if names else "what it serves, it does not say"
    return (
        f"model {model} is not served at {server.base_url}; {served}. Name one of these in "
        "settings.model, or leave it out to ask for the first"
    )


async def _too_long(limit: int, said: str, error: APIStatusError, server: VLLMServer) -> str:
    # The server stops counting at its limit; asked for it alone, it counts to the end.
    size = await server.count_tokens(error.request.content)
    prompt = re.search(r"prompt contains (?:at least )?(\d+) (input tokens|characters)", said)
    if size is not None:
        told = f"has {size:,} tokens"
    elif prompt is not None:
        told = f"has at least {int(prompt[1]):,} {prompt[2].removeprefix('input ')}"
    else:
        told = "is too long"
    return (
        f"the prompt {told}, the server's limit is {limit:,} tokens with the answer: shorten the "
        "conversation (Pipecat can summarise it), lower max_tokens, or start the server with a "
        "larger --max-model-len"
    )


def _message(error: APIStatusError) -> str:
    body = error.body
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message", "") if isinstance(inner, dict) else inner
        return str(message)
    return str(error)


def _chain(error: BaseException) -> list[BaseException]:
    chain = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None:
        if cause in chain:
            break
        chain.append(cause)
    return chain


def _is_caused_by(error: BaseException, kind: type[BaseException]) -> bool:
    return any(isinstance(cause, kind) for cause in _chain(error))


def _innermost(error: BaseException) -> str:
    cause = _chain(error)[-1]
    return str(cause) or type(cause).__name__
