"""The seam between what a simulated provider does and how one provider's protocol writes it."""

import json
from dataclasses import dataclass
from typing import Any, Protocol

from pipecat_hedge.tools.simulator.prompt import Prompt
from pipecat_hedge.tools.simulator.timeline import Event


@dataclass(frozen=True, slots=True)
class HttpError:
    """An error as a provider answers it.

    Parameters:
        status: The HTTP status.
        body: The JSON body.
        headers: Headers besides the content type.
    """

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class RateLimit:
    """What a response is to tell of its provider's rate limit.

    Parameters:
        requests_left: Requests that may still be made; None tells nothing of them.
        tokens_left: Tokens that may still be sent; None tells nothing of them.
        reset_secs: In how long the limits are whole again.
    """

    requests_left: int | None
    tokens_left: int | None
    reset_secs: float


class Encoder(Protocol):
    """Writes one response. Made for each request, because protocols number their blocks."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a successful response, besides the content type."""
        ...

    def encode(self, event: Event) -> bytes:
        """The bytes of one event in a stream; may be empty."""
        ...

    def whole(self, events: list[Event]) -> bytes:
        """The body of an answer that is not streamed, from all its events."""
        ...


class Wire(Protocol):
    """One provider's protocol."""

    name: str

    def read_prompt(self, body: dict[str, Any], *, stream: bool) -> Prompt:
        """What a request body asks.

        Args:
            body: The JSON object of the request.
            stream: Whether the address asks for a stream, where it is the address that does.

        Raises:
            PromptError: If the body is not one that the provider would accept.
        """
        ...

    def encoder(self, prompt: Prompt, model: str, number: int) -> Encoder:
        """A writer for one response.

        Args:
            prompt: What the request asks.
            model: The model name to answer with.
            number: The request's number in the ledger, for its ids.
        """
        ...

    def error(
        self, status: int, message: str | None, number: int, retry_after_secs: float | None = None
    ) -> HttpError:
        """An error status in the provider's form.

        Args:
            status: The HTTP status.
            message: What is wrong; None for the provider's usual words.
            number: The request's number in the ledger, for its id.
            retry_after_secs: For the ``retry-after`` header; None sends none.
        """
        ...

    def rate_limit_headers(self, rate_limit: RateLimit) -> dict[str, str]:
        """The headers of any response that tell of a rate limit, in the provider's form.

        Args:
            rate_limit: What to tell.
        """
        ...


GARBAGE = b'data: {"id":"broken","choi\n\n'
"""An event that is framed correctly and whose data is not JSON."""

MESSAGES = {
    400: "The request is invalid (simulated).",
    401: "The API key is invalid (simulated).",
    402: "The account is out of credit (simulated).",
    403: "The API key may not use this model (simulated).",
    404: "The model does not exist (simulated).",
    422: "The request cannot be processed (simulated).",
    429: "Too many requests (simulated).",
    500: "Internal error (simulated).",
    503: "The service is unavailable (simulated).",
    529: "Overloaded (simulated).",
}
"""What a refusal says."""


def dumps(value: Any) -> bytes:
    """Compact JSON in UTF-8; what UTF-8 cannot write (half a surrogate pair) becomes ``?``."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")


def retry_after_header(retry_after_secs: float | None) -> dict[str, str]:
    """The ``retry-after`` header, if one is to be sent."""
    return {} if retry_after_secs is None else {"retry-after": f"{retry_after_secs:g}"}
