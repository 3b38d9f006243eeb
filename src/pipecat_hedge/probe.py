"""A request that is made to see how a provider does, and ended when it has shown it."""

from __future__ import annotations

from collections.abc import Callable

from pipecat_hedge.contender import Piece
from pipecat_hedge.errors import AttemptError
from pipecat_hedge.racing import Post

__all__ = ["Probe"]


class Probe:
    """Stands between an attempt and its race, and times its first token; a ``Post``.

    Attributes:
        first_at: When its first usable token came, in the clock's time, or None.
        has_failed: Whether it failed, which says nothing about its latency.
    """

    def __init__(self, post: Post[Piece], clock: Callable[[], float], seen: Callable[[], None]):
        """Stand between.

        Args:
            post: Where everything is handed on to.
            clock: Tells the time, in seconds.
            seen: Called at the first token.
        """
        self._post = post
        self._clock = clock
        self._seen = seen
        self.first_at: float | None = None
        self.has_failed = False

    def opened(self) -> None:
        """See ``Post``."""
        self._post.opened()

    def piece(self, piece: Piece, *, usable: bool) -> None:
        """See ``Post``."""
        self._post.piece(piece, usable=usable)
        if usable:
            self._token()

    def tools(self, piece: Piece) -> None:
        """See ``Post``."""
        self._post.tools(piece)
        self._token()

    def speakable(self) -> None:
        """See ``Post``."""
        self._post.speakable()

    def failed(self, error: AttemptError) -> None:
        """See ``Post``."""
        self.has_failed = True
        self._post.failed(error)

    def _token(self) -> None:
        if self.first_at is None:
            self.first_at = self._clock()
            self._seen()
