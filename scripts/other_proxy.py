"""Starts a proxy that is not ours, to measure it in the same run."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

START_SECS = 20.0


@contextmanager
def other_proxy(command: str, upstream: str) -> Iterator[tuple[str, int]]:
    """Run a command that listens on ``PORT`` and asks ``ANTHROPIC_BASE_URL``.

    Args:
        command: The command.
        upstream: The upstream's address.

    Yields:
        Its address and its process.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = {**os.environ, "PORT": str(port), "ANTHROPIC_BASE_URL": upstream}
    env.setdefault("ANTHROPIC_API_KEY", "any")
    process = subprocess.Popen(shlex.split(command), env=env, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_SECS
        while time.monotonic() < until and process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait()
