"""Metrics as Prometheus reads them, of this process or of all that write to one folder.

Where ``PROMETHEUS_MULTIPROC_DIR`` is set, the processes of a server write their metrics there, and
whichever of them is asked answers for all: that is ``prometheus_client``'s multiprocess mode. What
it leaves to its user is done here: the gauges of a process that has ended are dropped, however it
ended, and a folder that is not there is an error that says so.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from pipecat_hedge.errors import ConfigurationError

__all__ = ["expose", "multiprocess_dir", "of_all_processes"]

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_LIVE_GAUGE = re.compile(r"gauge_live\w*_(\d+)\.db")


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
    path = _checked(Path(folder), "the folder of the processes' metrics")
    for file in path.glob("gauge_live*.db"):
        found = _LIVE_GAUGE.fullmatch(file.name)
        if found is not None and not _is_alive(int(found[1])):
            mark_process_dead(int(found[1]), str(path))
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(path))
    return registry


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
