"""Runs a Redis server as a child process on a free port, without persistence."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from typing import Self

from pipecat_hedge.race import ConfigurationError

MISSING = 'Redis is missing: apt-get install redis-server, and pip install "pipecat-hedge[redis]"'
START_SECS = 10.0
POLL_SECS = 0.02


def has_redis() -> bool:
    """Whether the server and its Python client are installed."""
    return shutil.which("redis-server") is not None and find_spec("redis") is not None


class RedisProcess:
    """Runs ``redis-server`` while entered, and kills it at the end.

    Attributes:
        program: The program that runs.
        process: The server; None while it does not run.
        port: Its port, kept across restarts.
        url: Its address.
    """

    program = "redis-server"
    process: subprocess.Popen[bytes] | None = None
    options: tuple[str, ...] = ()

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, empty; returns when it listens.

        Raises:
            ConfigurationError: If it is not installed, or does not start.
        """
        if not has_redis():
            raise ConfigurationError(MISSING)
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", tempfile.gettempdir(), "--save", "", "--appendonly", "no"]
        command += self.options
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + START_SECS
        while not self._listens():
            if self.process.poll() is not None or time.monotonic() > until:
                self.kill()
                raise ConfigurationError(f"{self.program} did not start on port {self.port}")
            time.sleep(POLL_SECS)

    def kill(self) -> None:
        """Kill the server (``kill -9``)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _listens(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0
