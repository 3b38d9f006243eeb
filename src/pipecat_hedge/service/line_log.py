"""A log file with one record per line, readable by its owner only. Its errors never end a call."""

from __future__ import annotations

import os
from pathlib import Path

from loguru import logger

from pipecat_hedge.policy.arguments import require
from pipecat_hedge.race.errors import ConfigurationError

_failing: set[Path] = set()
"""The files whose last line could not be written: a full disk is one warning, not one per turn."""


def _own(path: str, flags: int) -> int:
    """Open a file; a new one is readable by its owner only."""
    return os.open(path, flags, 0o600)


class LineLog:
    """Appends lines to a file, or to nothing."""

    def __init__(self, field: str, path: str | Path | None):
        """Check that the file can be created.

        Args:
            field: The argument's name, for the error.
            path: The file; None writes nothing.

        Raises:
            ConfigurationError: If its folder does not exist, or it is one.
        """
        require(field, path, (str, os.PathLike), "give a file's path, or None to write nothing")
        self._path = None if path is None else Path(path)
        if self._path is not None and not self._path.parent.is_dir():
            raise ConfigurationError(
                f"{field}: there is no folder {self._path.parent}: make it first"
            )
        if self._path is not None and self._path.is_dir():
            raise ConfigurationError(f"{field}: {self._path} is a folder: name a file in it")

    def __bool__(self) -> bool:
        """Whether there is a file."""
        return self._path is not None

    def append(self, line: str) -> None:
        """Append a line, given without its end. Synchronous, so that lines keep their order."""
        if self._path is None:
            return
        try:
            with open(
                self._path, "a", encoding="utf-8", errors="backslashreplace", opener=_own
            ) as file:
                file.write(line + "\n")
        except OSError as e:  # a full disk must not end a call
            if self._path not in _failing:
                _failing.add(self._path)
                logger.warning(f"cannot write to {self._path}, logged once: {e.strerror}")
        else:
            _failing.discard(self._path)
