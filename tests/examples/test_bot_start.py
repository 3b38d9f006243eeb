"""What `make bot` says when it cannot start: one line that names the remedy, and status 2."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from examples.voice_bot.choices import SETTINGS

ROOT = Path(__file__).parents[2]


def start(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    ours = {setting.name for setting in SETTINGS}
    env = {name: value for name, value in os.environ.items() if name not in ours}
    return subprocess.run(
        [sys.executable, "-m", "examples.voice_bot", *arguments],
        cwd=ROOT,
        env=env | {"PYTHON_DOTENV_DISABLED": "1"} | settings,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_port_in_use_is_named_with_the_remedy() -> None:
    """One line, no traceback, status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = start("--port", str(port))
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"port {port} on 127.0.0.1 is not available (Address already in use)" in ended.stderr
    assert f"make bot PORT={port + 1}" in ended.stderr


def test_an_empty_key_is_named_with_the_remedy() -> None:
    """At the start, not on the first call."""
    ended = start(ANTHROPIC_API_KEY="")
    assert ended.returncode == 2
    assert ended.stderr.startswith("voice bot: ANTHROPIC_API_KEY is set but empty: fill it in")
    assert ended.stderr.count("\n") == 1


def test_a_port_and_a_host_that_do_not_exist() -> None:
    """Refused in one line."""
    assert "port 70000 does not exist" in start("--port", "70000").stderr
    ended = start("--host", "no.such.host.invalid")
    assert "host no.such.host.invalid is not known" in ended.stderr
    assert ended.returncode == 2


def test_help_needs_no_port() -> None:
    """The runner's options and ours are listed although nothing can be served."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = start("--help", "--port", str(taken.getsockname()[1]))
    assert ended.returncode == 0
    assert "--loopback-only" in ended.stdout
