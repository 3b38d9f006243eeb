"""Runs a Redis server as a child process on a free port, without persistence."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pipecat_hedge.race import ConfigurationError

if TYPE_CHECKING:
    import redis

MISSING = 'Redis is missing: apt-get install redis-server, and pip install "pipecat-hedge[redis]"'
START_SECS = 10.0
POLL_SECS = 0.02


def has_redis() -> bool:
    """Whether the server and its Python client are installed."""
    return shutil.which("redis-server") is not None and find_spec("redis") is not None


class RedisProcess:
    """Runs ``redis-server`` while entered, and kills it at the end.

    Attributes:
        port: Its port, kept across restarts.
        url: Its address.
    """

    _process: subprocess.Popen[bytes] | None = None
    _control: redis.Redis | None = None

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"

    @property
    def control(self) -> redis.Redis:
        """A connection, which also works after a restart."""
        if self._control is None:
            import redis

            self._control = redis.Redis(port=self.port, decode_responses=True, socket_timeout=20)
        return self._control

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()
        if self._control is not None:
            self._control.close()

    def start(self) -> None:
        """Start the server, empty; returns when it listens.

        Raises:
            ConfigurationError: If it is not installed, or does not start.
        """
        if not has_redis():
            raise ConfigurationError(MISSING)
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", tempfile.gettempdir(), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_SECS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise ConfigurationError(f"redis-server did not start on port {self.port}")
            time.sleep(POLL_SECS)

    def kill(self) -> None:
        """Kill the server (``kill -9``)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """Stop the server: it accepts connections and does not answer."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Continue after ``hang``."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0
