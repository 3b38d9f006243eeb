"""A request that is listened to for its first token, also when its turn no longer needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.service.service_adapter import Piece

__all__ = ["Probe"]


class Probe:
    """Stands between an attempt and its race, and times its first token; a ``AttemptSink``.

    Attributes:
        first_at: When its first usable token came, in the loop's time, or None.
        has_failed: Whether it failed, which says nothing about its latency.
        is_silent: Whether it was waited for as long as it may be silent, in vain.
    """

    def __init__(
        self,
        post: AttemptSink[Piece],
        loop: asyncio.AbstractEventLoop,
        silent_secs: float,
        is_alive: Callable[[], bool],
        learned: Callable[[], None],
    ):
        """Stand between; the time runs from now.

        Args:
            post: Where everything is handed on to.
            loop: Tells the time.
            silent_secs: How long it may be silent.
            is_alive: Whether it has begun to write, though nothing usable has come.
            learned: Called when there is nothing more to learn: at the first token, or when it has
                been silent for too long.
        """
        self._post = post
        self._loop = loop
        self._is_alive = is_alive
        self._learned = learned
        self._alarm = loop.call_later(silent_secs, self._give_up)
        self.first_at: float | None = None
        self.has_failed = False
        self.is_silent = False

    def opened(self) -> None:
        """See ``AttemptSink``."""
        self._post.opened()

    def piece(self, piece: Piece, *, usable: bool) -> None:
        """See ``AttemptSink``."""
        self._post.piece(piece, usable=usable)
        if usable:
            self._token()

    def tools(self, piece: Piece) -> None:
        """See ``AttemptSink``."""
        self._post.tools(piece)
        self._token()

    def speakable(self) -> None:
        """See ``AttemptSink``."""
        self._post.speakable()

    def failed(self, error: AttemptError) -> None:
        """See ``AttemptSink``."""
        self.has_failed = True
        self._post.failed(error)

    def close(self) -> None:
        """Put the alarm away."""
        self._alarm.cancel()

    def _token(self) -> None:
        if self.first_at is None:
            self.first_at = self._loop.time()
            self._alarm.cancel()
            self._learned()

    def _give_up(self) -> None:
        self.is_silent = not self._is_alive()
        self._learned()
