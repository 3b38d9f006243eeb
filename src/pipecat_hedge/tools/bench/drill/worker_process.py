"""A worker as its parent sees it: a process that is started, watched and killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.tools.bench.drill.worker import READY, Task

__all__ = ["WorkerProcess"]


class WorkerProcess:
    """Runs `pipecat_hedge.tools.bench.drill.worker`; it ends with its parent, or when it is killed.

    Attributes:
        out: The file that it writes to.
        pid: The process's number.
    """

    def __init__(self, task: Task):
        """Start it.

        Args:
            task: What it has to do.
        """
        self.out = Path(task.out)
        self._is_killed = False
        # A file, not a pipe: nobody reads along, and a full pipe would stop the process.
        self._said = self.out.with_suffix(".err")
        with self._said.open("w", encoding="utf-8") as said:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pipecat_hedge.tools.bench.drill.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        self._process.stdin.write(task.as_json() + "\n")
        self._process.stdin.flush()

    def wait_ready(self) -> None:
        """Wait until its sessions begin.

        Raises:
            HedgeError: If it has ended instead; with what it said.
        """
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != READY:
            raise self._ended()

    def check(self) -> None:
        """See that it runs, unless it was killed.

        Raises:
            HedgeError: If it has ended; with what it said.
        """
        if not self._is_killed and self._process.poll() is not None:
            raise self._ended()

    def kill(self) -> None:
        """Kill it, ``kill -9``."""
        if not self._is_killed:
            self._is_killed = True
            self._process.kill()
            self._process.communicate()

    def _ended(self) -> HedgeError:
        said = self._said.read_text("utf-8").strip().splitlines() or ["it said nothing"]
        return HedgeError(f"a worker of the drill has ended: {said[-1]}")
