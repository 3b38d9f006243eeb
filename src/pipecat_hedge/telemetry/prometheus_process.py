"""This process among those that write to one folder: it is alive, and how things stand with it.

Law: who has ended is told by the kernel, to whoever can see the folder; a reader takes nothing from
a process that lives.

A process's number says nothing in another container, where it is nobody's or somebody else's; and a
time at which it was last seen says nothing of one that was merely held up. A lock on a file is let
go of by the kernel when its process ends, however it ends, and by nothing else. So each process
holds one, and whoever reads tries it.

How things stand is written down every few seconds, by a thread, and whether there are calls or not:
a breaker that has closed overnight has to be seen to.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

try:
    import fcntl
except ImportError:  # there is no such lock on Windows
    fcntl = None

__all__ = ["BEAT_SECS", "ProcessBeat", "has_ended"]

BEAT_SECS = 5.0
"""How often it is written down how things stand: a third of the usual interval at which metrics are
read."""


def _lock_file(folder: Path, pid: int) -> Path:
    return folder / f"pipecat_hedge_{pid}.lock"


def has_ended(folder: Path, pid: int) -> bool | None:
    """Whether a process that has written to a folder has ended; None if it has left no word.

    Args:
        folder: The folder.
        pid: The process's number, as it knows itself.
    """
    if fcntl is None:
        return None
    try:
        file = os.open(_lock_file(folder, pid), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


class ProcessBeat:
    """Says that the process is alive, and writes down how things stand, until it is closed."""

    def __init__(self, folder: Path, beat: Callable[[], None]):
        """Begin, here and in every process that is forked from this one.

        Args:
            folder: Where the processes write.
            beat: Called every ``BEAT_SECS``, from a thread of its own.
        """
        self._folder, self._beat = folder, beat
        self._lock: int | None = None
        self._is_closed = False
        self._begin()
        me = weakref.ref(self)

        def forked() -> None:
            if (beat := me()) is not None and not beat._is_closed:
                beat._begin()

        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=forked)

    def close(self) -> None:
        """End it; until the process ends it still counts as alive."""
        self._is_closed = True
        self._over.set()
        self._thread.join()

    def _begin(self) -> None:
        self._hold()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pipecat-hedge metrics", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        over = self._over
        while not over.wait(BEAT_SECS):
            with contextlib.suppress(Exception):  # the next time is another try
                self._beat()

    def _hold(self) -> None:
        """Hold the lock of this process. A parent's is the parent's: or it would seem to live."""
        if fcntl is None:
            return
        if self._lock is not None:
            os.close(self._lock)
        path = _lock_file(self._folder, os.getpid())
        new = path.with_suffix(".new")
        self._lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        new.replace(path)  # nobody sees it unlocked
