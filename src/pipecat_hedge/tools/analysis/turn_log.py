"""Turn logs read back: lines of JSON, as ``HedgedLLMService(turn_log=...)`` appends them.

Law: a line is a turn or it is counted as none; an older log lacks fields, and a newer one has more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from pipecat_hedge.race.reports import AttemptReport, FillerReport, StageReport, TurnReport

__all__ = ["TurnLog", "as_turn"]

T = TypeVar("T")


class TurnLog:
    """A turn log that is still being written, read as far as it goes.

    Attributes:
        skipped: Lines that are no turns.
    """

    def __init__(self, path: str | Path):
        """Begin at its beginning.

        Args:
            path: The file; it need not be there yet.
        """
        self.path = Path(path)
        self.skipped = 0
        self._read = 0
        self._file: tuple[int, int] | None = None

    def new_turns(self) -> Iterator[TurnReport]:
        """The turns that have been written since the last time, in order.

        A line that is being written is left for the next time. A log that has been replaced or cut
        off, as by rotation, is read from its beginning; one that was renamed to something that
        begins as it did (``turns.jsonl.1``) is read to its end before.
        """
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self.path.open("rb"))
            except FileNotFoundError:
                file = None
            if self._file is not None and (file is None or _identity(file) != self._file):
                yield from self._rest_of_the_last()
            if file is None:
                return
            if _identity(file) != self._file:
                self._file, self._read = _identity(file), 0
            yield from self._rest_of(file)

    def _rest_of_the_last(self) -> Iterator[TurnReport]:
        """What came after the last look at a log that has another name now."""
        for path in self.path.parent.glob(f"{glob.escape(self.path.stem)}*"):
            with contextlib.suppress(OSError), path.open("rb") as file:
                if _identity(file) == self._file:
                    yield from self._rest_of(file)
                    return

    def _rest_of(self, file: BinaryIO) -> Iterator[TurnReport]:
        if file.seek(0, os.SEEK_END) < self._read:
            self._read = 0
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                return
            self._read += len(line)
            try:
                yield as_turn(json.loads(line))
            except (ValueError, TypeError, KeyError):
                self.skipped += bool(line.strip())


def _identity(file: BinaryIO) -> tuple[int, int]:
    """Which file it is, whatever it is called."""
    stat = os.fstat(file.fileno())
    return stat.st_dev, stat.st_ino


def as_turn(record: Mapping[str, Any]) -> TurnReport:
    """A turn as it was written down.

    Args:
        record: A line's object.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(record, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("a turn is an object")
    attempts = tuple(
        _known(AttemptReport, attempt, stages=_maybe(StageReport, attempt.get("stages")))
        for attempt in record["attempts"]
    )
    filler = _maybe(FillerReport, record.get("filler"))
    return _known(TurnReport, record, attempts=attempts, filler=filler)


def _maybe(kind: type[T], record: Mapping[str, Any] | None) -> T | None:
    return None if record is None else _known(kind, record)


def _known(kind: type[T], record: Mapping[str, Any], **given: Any) -> T:
    """A value of the fields that this release knows."""
    fields = {field.name for field in dataclasses.fields(cast(Any, kind))}
    return kind(**{name: record[name] for name in fields & record.keys()} | given)
