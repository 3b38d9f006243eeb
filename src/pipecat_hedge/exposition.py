"""Metrics as Prometheus reads them, of this process or of all that write to one folder.

Where ``PROMETHEUS_MULTIPROC_DIR`` is set, the processes of a server write their metrics there, and
whichever of them is asked answers for all: that is ``prometheus_client``'s multiprocess mode. What
it leaves to its user is done here: the gauges of a process that has ended are dropped, however it
ended and whoever asks, and a folder that is not there is an error that says so.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from loguru import logger
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from pipecat_hedge.errors import ConfigurationError
from pipecat_hedge.prometheus_process import has_ended

__all__ = ["expose", "multiprocess_dir", "of_all_processes"]

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
MANY_PROCESSES = 100
"""A scrape reads what each process has ever written, some 2 ms each; from so many on it is said."""
_LIVE_GAUGE = re.compile(r"gauge_live\w*_(\d+)\.db")
_told_of_many = set[Path]()


def multiprocess_dir() -> Path | None:
    """The folder to which the processes of this server write; None if this process is alone.

    Raises:
        ConfigurationError: If there is no such folder.
    """
    told = os.environ.get(VARIABLE)
    return None if told is None else _checked(Path(told), VARIABLE)


def expose(accept: str = "", registry: Collector | None = None) -> tuple[bytes, str]:
    """The metrics, as the body of an answer and its content type.

    Takes some milliseconds: serve it from a thread (``asyncio.to_thread``).

    Args:
        accept: The request's ``Accept`` header.
        registry: What to tell of; by default every process that writes to
            ``PROMETHEUS_MULTIPROC_DIR`` where that is set, else ``prometheus_client``'s own.

    Raises:
        ConfigurationError: If the folder is not there.
    """
    if registry is None:
        folder = multiprocess_dir()
        registry = REGISTRY if folder is None else of_all_processes(folder)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def of_all_processes(folder: str | Path) -> CollectorRegistry:
    """What the processes have written, without the gauges of those that have ended.

    Args:
        folder: Where they write.

    Raises:
        ConfigurationError: If there is no such folder.
    """
    registry = CollectorRegistry()
    registry.register(_Folder(_checked(Path(folder), "the folder of the processes' metrics")))
    return registry


class _Folder(Collector):
    """What is in a folder, at each look."""

    def __init__(self, path: Path):
        self._path = path

    def collect(self) -> Iterable[Metric]:
        files = list(self._path.glob("*.db"))
        gauges: dict[int, list[Path]] = {}
        for file in files:
            if (found := _LIVE_GAUGE.fullmatch(file.name)) is not None:
                gauges.setdefault(int(found[1]), []).append(file)
        ended = {file for pid in gauges if self._is_over(pid, gauges[pid]) for file in gauges[pid]}
        self._tell_of_many(sum(file.name.startswith("counter_") for file in files))
        return MultiProcessCollector.merge([str(file) for file in files if file not in ended])

    def _is_over(self, pid: int, files: Iterable[Path]) -> bool:
        """Whether a process has ended; then what it said of itself is removed, for certain."""
        ended = has_ended(self._path, pid)
        if ended is None:  # no recorder's: then only its number tells, and only where it was given
            return not _is_alive(pid)
        if ended:
            for file in files:
                with contextlib.suppress(OSError):  # somebody else has, or may
                    file.unlink()
        return ended

    def _tell_of_many(self, processes: int) -> None:
        if processes >= MANY_PROCESSES and self._path not in _told_of_many:
            _told_of_many.add(self._path)
            logger.warning(
                f"{processes} processes have written metrics to {self._path}, and each makes every "
                "scrape longer: where processes come and go with calls, write turn logs and serve "
                "them with pipecat-hedge metrics turns.jsonl"
            )


def _checked(path: Path, name: str) -> Path:
    if not path.is_dir():
        raise ConfigurationError(
            f"{name} is {path}, and there is no such folder: make an empty one before the first "
            "process starts"
        )
    return path


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True
