"""Everything that pipecat-hedge raises: one tree, rooted at ``HedgeError``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["AllProvidersFailed", "AttemptError", "ConfigurationError", "HedgeError"]


@dataclass(frozen=True, slots=True)
class AttemptError:
    """Why one attempt gave no answer.

    Parameters:
        category: The value of Pipecat's ``ErrorCategory`` (``"rate_limit"``, ``"server"``, …), or
            ``"empty"`` for an answer that ended without a usable token.
        message: What the provider's service said, for a person to read. May quote the provider;
            never logged at INFO or above.
        permanent: Whether the same request will fail again until something is changed.
        retry_after_secs: How long the provider asked to be left alone, if it said so.
        exception: The exception behind it, if there was one.
    """

    category: str
    message: str
    permanent: bool = False
    retry_after_secs: float | None = None
    exception: BaseException | None = None


class HedgeError(Exception):
    """The root of everything that pipecat-hedge raises."""


class ConfigurationError(HedgeError, ValueError):
    """An argument that cannot work; the message names it and the remedy."""


class AllProvidersFailed(HedgeError):
    """Every attempt of a turn failed.

    Attributes:
        causes: One ``(provider, error)`` an attempt, in the order of their launch.
    """

    def __init__(self, causes: Sequence[tuple[str, AttemptError]], *, broke_off: bool = False):
        """Say what each provider answered.

        Args:
            causes: One ``(provider, error)`` an attempt, in the order of their launch. Empty when
                no provider could be asked at all.
            broke_off: Whether an answer had begun, and nobody continued it.
        """
        self.causes = tuple(causes)
        told = ", ".join(f"{provider}: {error.category}" for provider, error in self.causes)
        what = "the answer broke off, nobody continued it" if broke_off else "no provider answered"
        super().__init__(f"{what} ({told or 'none could be asked'})")
