"""How busy this machine is: by the drill's own processes, and by whoever else works on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["Processors"]

PROC = Path("/proc")
IDLE = slice(3, 5)
"""Idle, and waiting for a disk; then six more, the guests' times being in the users' already."""
USUAL = 8
TIMES_OF_ONE = slice(11, 13)
"""Of what follows a process's name: its time in user mode and in the kernel."""


class Processors:
    """Tells how much of all processors was in use since it was asked last."""

    def __init__(self) -> None:
        """Begin now."""
        self._all, self._idle = _times()
        self._own: dict[int, int] = {}

    def shares(self, pids: Iterable[int]) -> tuple[float, float] | None:
        """The share of all processors that was in use, and what of it by the processes named.

        Args:
            pids: The drill's processes; one that is new counts from the next time on.

        Returns:
            Both; None where the system does not say.
        """
        everything, idle = _times()
        own = {pid: ticks for pid in pids if (ticks := _times_of(pid)) is not None}
        passed, slept = everything - self._all, idle - self._idle
        spent = sum(ticks - self._own.get(pid, ticks) for pid, ticks in own.items())
        self._all, self._idle, self._own = everything, idle, own
        return None if passed <= 0 else (1.0 - slept / passed, spent / passed)


def _times() -> tuple[int, int]:
    """All time of all processors since the start, and the idle part, in ticks."""
    if not (PROC / "stat").exists():
        return 0, 0
    with (PROC / "stat").open() as file:
        ticks = [int(word) for word in file.readline().split()[1 : USUAL + 1]]
    return sum(ticks), sum(ticks[IDLE])


def _times_of(pid: int) -> int | None:
    """A process's time, in ticks; None if it has ended."""
    with suppress(OSError):
        told = (PROC / str(pid) / "stat").read_text()
        return sum(map(int, told.rpartition(")")[2].split()[TIMES_OF_ONE]))
    return None
