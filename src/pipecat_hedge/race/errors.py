"""Everything that pipecat-hedge raises: one tree, rooted at ``HedgeError``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

__all__ = [
    "INCOMPLETE_CALL",
    "SHED",
    "AllProvidersFailed",
    "AttemptError",
    "ConfigurationError",
    "HedgeError",
]

INCOMPLETE_CALL = "incomplete_call"
"""The category of an answer that was cut off inside a tool call."""
SHED = "shed"
"""The category of an attempt that was not made, because there was no room for it."""


@dataclass(frozen=True, slots=True)
class AttemptError:
    """Why one attempt gave no answer.

    Parameters:
        category: The value of Pipecat's ``ErrorCategory`` (``"rate_limit"``, ``"server"``, …), or
            ``"empty"`` for an answer that ended without a usable token, or ``"shed"`` for an
            attempt that was not made, because there was no room for it.
        message: What the provider's service said, for a person to read. May quote the provider;
            never logged at INFO or above.
        permanent: Whether the same request will fail again until something is changed.
        retry_after_secs: How long the provider asked to be left alone, if it said so; five minutes
            at most.
        exception: The exception behind it, if there was one.
        is_busy: Whether the provider refused for load: it works, and has too much to do. Credit
            that is used up is another matter.
        is_connection: Whether the connection failed: DNS, refused, reset, or a connect timeout.
        is_transient: Whether the request failed before anything came, in a way that the providers'
            SDKs retry by themselves: connection errors, 408, 409, 429 and 5xx.
    """

    category: str
    message: str = field(repr=False)
    permanent: bool = False
    retry_after_secs: float | None = None
    exception: BaseException | None = field(default=None, repr=False)
    is_busy: bool = False
    is_connection: bool = False
    is_transient: bool = False


class HedgeError(Exception):
    """The root of everything that pipecat-hedge raises."""


class ConfigurationError(HedgeError, ValueError):
    """An argument that cannot work; the message names it and the remedy."""


class AllProvidersFailed(HedgeError):
    """Every attempt of a turn failed.

    Attributes:
        causes: One ``(provider, error)`` an attempt, in the order of their launch; the errors say
            their category and no text of the provider's, which is in the log at DEBUG.
        reason: Why nobody was asked, where that is so.
    """

    def __init__(
        self,
        causes: Sequence[tuple[str, AttemptError]],
        *,
        broke_off: bool = False,
        reason: str = "",
    ):
        """Say what each provider answered.

        Args:
            causes: One ``(provider, error)`` an attempt, in the order of their launch. Empty when
                no provider could be asked at all.
            broke_off: Whether an answer had begun, and nobody continued it.
            reason: Why nobody was asked, where that is so; by default that there was no room.
        """
        self.causes = tuple(
            (provider, replace(error, message="", exception=None)) for provider, error in causes
        )
        if not reason and causes and all(error.category == SHED for _, error in causes):
            reason = causes[-1][1].message
        self.reason = reason
        details = ", ".join(f"{provider}: {error.category}" for provider, error in self.causes)
        summary = (
            "the answer broke off and was not continued" if broke_off else "no provider answered"
        )
        super().__init__(f"{summary} ({details or reason or 'no provider was available'})")
