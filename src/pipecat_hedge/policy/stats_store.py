"""Where statistics are kept between runs: a seam, and the file that fills it by default.

Where processes share them while they run is another seam, ``shared_store.py``.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from loguru import logger

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["FileStore", "StatsStore"]


class StatsStore(Protocol):
    """Keeps one text, such as in a file or under a key of Redis."""

    def load(self) -> str | None:
        """The text kept last, or None if there is none. Never raises for a missing one."""
        ...

    def save(self, text: str) -> None:
        """Keep a text in place of the one before; whatever it raises is a warning."""
        ...

    def set_aside(self, why: str) -> None:
        """Put away a text that could not be used, for a person to look at."""
        ...


class FileStore:
    """Keeps statistics in a file, which is replaced as a whole.

    Several processes may use one file: each replaces it with what it knows, the last one counts.
    """

    def __init__(self, path: str | Path):
        """Name the file.

        Args:
            path: Where it is or will be; its folder is made when needed.

        Raises:
            ConfigurationError: If there is something else than a file.
        """
        self.path = Path(path)
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise ConfigurationError(
                f"{self.path} is no regular file, and statistics are kept in one: "
                "name a file, or a path where there is nothing yet"
            )

    def __str__(self) -> str:
        """The path."""
        return str(self.path)

    def load(self) -> str | None:
        """The file's text, or None if there is no file."""
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            return "not text"
        except OSError as e:
            logger.warning(f"cannot read statistics at {self.path}: {e.strerror}")
            return None

    def save(self, text: str) -> None:
        """Replace the file in one step, so that nobody ever reads half of it.

        Raises:
            OSError: If it cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, self.path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def set_aside(self, why: str) -> None:
        """Rename the file, so that it is neither used nor lost."""
        aside = self.path.with_name(f"{self.path.name}.set-aside")
        try:
            os.replace(self.path, aside)
        except OSError as e:
            logger.warning(f"statistics at {self.path} are {why}, and stay there: {e.strerror}")
        else:
            logger.warning(f"statistics at {self.path} are {why}: set aside as {aside}")
