"""A bot that can be called, and what becomes of a call when the bot fails.

Law: whoever waits for a bot that has failed waits no longer, and learns why.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from pipecat_hedge.tools.replay.caller import CallError

__all__ = ["Bot", "BotFailed"]

SHOWN_LINES = 40
_SAID = "the bot said:"


class BotFailed(CallError):
    """A bot that did not start, or ended in mid-call; the message says why, the cause is its own.

    The last lines of its output, where it has any, are in the exception's notes.
    """


class Bot:
    """A bot at an address; this one runs already, and goes on running.

    Attributes:
        url: Its address; empty while it does not run.
    """

    def __init__(self, url: str = ""):
        """Take a bot that runs already.

        Args:
            url: Its address, such as ``http://127.0.0.1:7860``.
        """
        self.url = url
        self._failure: tuple[str, BaseException | None] | None = None
        self._told = False
        self._waiting: set[asyncio.Timeout] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    @property
    def is_running(self) -> bool:
        """Whether it can be called."""
        return bool(self.url)

    @property
    def output(self) -> str:
        """What it has written, the end of it; empty if that is not known."""
        return ""

    def annotate(self, error: BaseException) -> None:
        """Add the last lines of the bot's output to an error's notes, once.

        Args:
            error: What went wrong.
        """
        noted: list[str] = getattr(error, "__notes__", [])
        if self.output and not any(note.startswith(_SAID) for note in noted):
            lines = self.output.splitlines()[-SHOWN_LINES:]
            error.add_note("\n".join((_SAID, *(f"  {line}" for line in lines))))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Do something with the bot that ends when the bot fails.

        Raises:
            BotFailed: If it has failed, or does so meanwhile.
        """
        self._tell()
        patience = asyncio.timeout(None)
        try:
            async with patience:
                self._waiting.add(patience)
                yield
        except TimeoutError:
            if patience.expired():
                self._tell()
            raise
        finally:
            self._waiting.discard(patience)

    def _fail(self, why: str, cause: BaseException | None = None) -> None:
        """End whatever waits for the bot; the first failure is the one that is told."""
        if self._failure is None:
            self._failure = (why, cause)
            now = asyncio.get_running_loop().time()
            for patience in self._waiting:
                patience.reschedule(now)

    def _tell(self) -> None:
        if self._failure is not None:
            self._told = True
            why, cause = self._failure
            error = BotFailed(why)
            self.annotate(error)
            raise error from cause
