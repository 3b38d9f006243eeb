"""The errors that pipecat-hedge raises: one tree, rooted at ``HedgeError``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

INCOMPLETE_CALL = "incomplete_call"
"""The category of an answer that was cut off within a tool call."""


@dataclass(frozen=True, slots=True)
class AttemptError:
    """Why one attempt gave no answer.

    Parameters:
        category: The value of Pipecat's ``ErrorCategory`` (``"rate_limit"``, ``"server"``, …),
            or ``"empty"`` for an answer without a usable token.
        message: The service's message. May quote the provider; never logged at INFO or above.
        permanent: Whether the same request will fail again until something is changed.
        is_of_prompt: Whether a permanent error is that of this prompt (400, 413, 422), and not of
            the key, the permission or the model.
        retry_after_secs: The provider's ``Retry-After``, at most five minutes; None without one.
        exception: The underlying exception, if there is one.
        is_busy: Whether the provider rejected the request for load (429, 529). Exhausted credit is
            not load.
        is_connection: Whether the connection failed: DNS, refused, reset, or connect timeout.
        is_transient: Whether the request failed before any response, in a way that the providers'
            SDKs retry: connection errors, 408, 409, 429 and 5xx.
    """

    category: str
    message: str = field(repr=False)
    permanent: bool = False
    is_of_prompt: bool = False
    retry_after_secs: float | None = None
    exception: BaseException | None = field(default=None, repr=False)
    is_busy: bool = False
    is_connection: bool = False
    is_transient: bool = False


class HedgeError(Exception):
    """The base class of all errors that pipecat-hedge raises."""


class ConfigurationError(HedgeError, ValueError):
    """An invalid argument; the message names it and the remedy."""


def missing_extra(what: str, package: str, extra: str) -> ConfigurationError:
    """The error of a feature whose package is not installed: one line that names the extra."""
    return ConfigurationError(f'{what} needs {package}: pip install "pipecat-hedge[{extra}]"')


class AllProvidersFailed(HedgeError):
    """Every attempt of a turn failed.

    Attributes:
        causes: A pair ``(provider, error)`` per attempt, in the order of launch. The errors carry
            their category and no text of the provider, which is logged at DEBUG.
        reason: Why no request was sent; empty if one was.
    """

    def __init__(
        self,
        causes: Sequence[tuple[str, AttemptError]],
        *,
        broke_off: bool = False,
        reason: str = "",
    ):
        """Build the message from the attempts' errors.

        Args:
            causes: A pair ``(provider, error)`` per attempt, in the order of launch. Empty if no
                request was sent.
            broke_off: Whether an answer had begun and was not continued.
            reason: Why no request was sent; empty if one was.
        """
        self.causes = tuple(
            (provider, replace(error, message="", exception=None)) for provider, error in causes
        )
        self.reason = reason
        details = ", ".join(f"{provider}: {error.category}" for provider, error in self.causes)
        summary = (
            "the answer broke off and was not continued" if broke_off else "no provider answered"
        )
        super().__init__(f"{summary} ({details or reason or 'no provider was available'})")
