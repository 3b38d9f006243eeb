"""Metrics as Prometheus reads them, of this process or of all that write to one folder.

Where ``PROMETHEUS_MULTIPROC_DIR`` is set, the processes of a server write their metrics there, and
whichever of them is asked answers for all: that is ``prometheus_client``'s multiprocess mode. What
it leaves to its user is done here: the gauges of a process that has ended are dropped, however it
ended and whoever asks, and a folder that is not there is an error that says so.

Who prefers protobuf gets it (``prometheus_protobuf.py``), and native histograms with it: no text
has them in a way that Prometheus reads. Everybody else gets text, and classic histograms.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from loguru import logger
from prometheus_client import REGISTRY, CollectorRegistry, Metric
from prometheus_client.exposition import ThreadingWSGIServer, choose_encoder
from prometheus_client.exposition import make_wsgi_app as make_text_app
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.telemetry.origins import AllowedOrigins, is_loopback
from pipecat_hedge.telemetry.prometheus_process import has_ended
from pipecat_hedge.telemetry.prometheus_protobuf import CONTENT_TYPE, MESSAGE, encode
from pipecat_hedge.telemetry.time_histogram import with_natives

__all__ = [
    "expose",
    "make_wsgi_app",
    "multiprocess_dir",
    "of_all_processes",
    "start_http_server",
]

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
MANY_PROCESSES = 100
"""A scrape reads what each process has ever written, some 2 ms each; from so many on it is said."""
_LIVE_GAUGE = re.compile(r"gauge_live\w*_(\d+)\.db")
_MESSAGES = (MESSAGE, "delimited")
_TEXTS = ("application/openmetrics-text", "text/plain")
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
    registry = _registry() if registry is None else registry
    if _prefers_protobuf(accept):
        return encode(registry), CONTENT_TYPE
    encode_text, content_type = choose_encoder(accept)
    return encode_text(registry), content_type


def make_wsgi_app(
    registry: Collector | None = None, *, is_local: bool = False
) -> Callable[..., Iterable[bytes]]:
    """``prometheus_client.make_wsgi_app`` that speaks protobuf too, and to no other web pages.

    Args:
        registry: What to tell of; see ``expose``.
        is_local: Whether it is served to this machine alone; then who asks has to know it by a name
            of this machine.

    Raises:
        ConfigurationError: If the folder of several processes is not there.
    """
    registry = _registry() if registry is None else registry
    in_text = make_text_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
        if (refusal := _refusal(environ, is_local)) is not None:
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [refusal.encode()]
        is_whole = environ["REQUEST_METHOD"] == "GET" and not environ.get("QUERY_STRING")
        if not is_whole or not _prefers_protobuf(environ.get("HTTP_ACCEPT", "")):
            return in_text(environ, start_response)
        body = encode(registry)
        start_response("200 OK", [("Content-Type", CONTENT_TYPE)])
        return [body]

    return app


def start_http_server(
    port: int, addr: str = "0.0.0.0", registry: Collector | None = None
) -> tuple[WSGIServer, threading.Thread]:
    """``prometheus_client.start_http_server`` that speaks protobuf too, without TLS.

    Args:
        port: Where to listen; 0 picks a free port.
        addr: The address to listen at; by default every IPv4 address of the machine.
        registry: What to tell of; see ``expose``.

    Returns:
        The server, and the daemon thread in which it serves until its ``shutdown``.

    Raises:
        ConfigurationError: If the folder of several processes is not there.
        OSError: If the address cannot be had.
    """
    app = make_wsgi_app(registry, is_local=is_loopback(addr))
    kind = _IPv6Server if ":" in addr else ThreadingWSGIServer
    server = make_server(addr, port, app, kind, _SilentHandler)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    return server, thread


def _refusal(environ: dict[str, Any], is_local: bool) -> str | None:
    origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST")
    hosts = [] if host is None else [host]
    return AllowedOrigins().refusal([] if origin is None else [origin], hosts if is_local else None)


class _IPv6Server(ThreadingWSGIServer):
    address_family = socket.AF_INET6


class _SilentHandler(WSGIRequestHandler):
    """A scrape every few seconds is nothing to write about."""

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


def _registry() -> Collector:
    folder = multiprocess_dir()
    return REGISTRY if folder is None else of_all_processes(folder)


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
        read = MultiProcessCollector.merge([str(file) for file in files if file not in ended])
        return with_natives(read)

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


def _prefers_protobuf(accept: str) -> bool:
    """Whether no other format that is spoken here is wanted more (RFC 9110, section 12.5.1)."""
    wanted: dict[bool, float] = {}
    for told in accept.split(","):
        media_type, *parameters = (part.strip() for part in told.split(";"))
        pairs = {name: value for name, _, value in (part.partition("=") for part in parameters)}
        is_protobuf = media_type == "application/vnd.google.protobuf"
        if is_protobuf and (pairs.get("proto"), pairs.get("encoding")) != _MESSAGES:
            continue
        try:
            weight = float(pairs.get("q", "1"))
        except ValueError:
            continue
        if is_protobuf or media_type in _TEXTS:
            wanted[is_protobuf] = max(weight, wanted.get(is_protobuf, 0.0))
    return wanted.get(True, 0.0) > 0 and wanted[True] >= wanted.get(False, 0.0)


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
