"""Stores statistics between runs: the store protocol, a file, and a snapshot that is read only.

``shared_store.py`` has the protocol for processes that share statistics while they run.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import urlopen

from loguru import logger

from pipecat_hedge.race.errors import ConfigurationError

SNAPSHOT_SECS = 5.0
"""How long a snapshot's server may be silent."""
MOST_BYTES = 50_000_000
"""The most of a snapshot that is read."""


class StatsStore(Protocol):
    """Stores one text, such as in a file or under a Redis key."""

    def load(self) -> str | None:
        """Return the last saved text, or None if there is none. Never raises for a missing one."""
        ...

    def save(self, text: str) -> None:
        """Replace the saved text; an exception is logged as a warning."""
        ...

    def set_aside(self, why: str) -> None:
        """Move an unusable text away, for inspection."""
        ...


class FileStore:
    """Stores statistics in a file, which is replaced as a whole.

    Several processes may use one file: each replaces it with its own statistics, and the last one
    wins.
    """

    def __init__(self, path: str | Path):
        """Set the file.

        Args:
            path: The file, which need not exist; its folder is created when needed.

        Raises:
            ConfigurationError: If the path is a folder or another special file.
        """
        self.path = Path(path)
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise ConfigurationError(
                f"{self.path} is no regular file, and statistics are kept in one: "
                "name a file, or a path where there is nothing yet"
            )

    def __str__(self) -> str:
        return str(self.path)

    def load(self) -> str | None:
        """Return the file's text, or None if there is no file.

        What is no text is returned as one that cannot be read, so that the file is set aside.
        """
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
        """Replace the file atomically, so that no process reads a partial one.

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


class Snapshot:
    """Statistics that are published under a URL, such as by ``pipecat-hedge stats export``.

    They are read once, in the background: no turn waits for them. Nothing is saved there.
    """

    def __init__(self, url: str):
        """Set the address.

        Args:
            url: ``https://``; on loopback also ``http://``. A signature in the query is not logged.

        Raises:
            ConfigurationError: If it is another URL.
        """
        parts = urlsplit(url)
        is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if not (parts.scheme == "https" or (parts.scheme == "http" and is_local)):
            raise ConfigurationError(
                "url must begin with https://: statistics are not read over a plain connection"
            )
        self._url = url
        self._name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __str__(self) -> str:
        """The address without credentials."""
        return self._name

    def load(self) -> str | None:
        """Return the text, or None if it cannot be read."""
        try:
            with urlopen(self._url, timeout=SNAPSHOT_SECS) as response:
                return response.read(MOST_BYTES).decode("utf-8", "replace")
        except (OSError, ValueError) as e:  # a URL may be part of the message
            logger.warning(f"cannot read statistics at {self}: {type(e).__name__}")
            return None

    def save(self, text: str) -> None:
        """Save nothing."""

    def set_aside(self, why: str) -> None:
        """Log that it cannot be used."""
        logger.warning(f"statistics at {self} are {why}: they are not used")
