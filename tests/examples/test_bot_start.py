"""What `make bot` says when it cannot start: one line that names the remedy, and status 2."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples.voice_bot.__main__ import main
from examples.voice_bot.choices import SETTINGS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def taken() -> Iterator[int]:
    """A port in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


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


def test_a_port_in_use_is_named_with_the_remedy(taken: int) -> None:
    ended = start("--port", str(taken))
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"port {taken} on 127.0.0.1 is not available (Address already in use)" in ended.stderr
    assert f"make bot PORT={taken + 1}" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ([], {"ANTHROPIC_API_KEY": ""}, "ANTHROPIC_API_KEY is set but empty: fill it in"),
        (["--port", "70000"], {}, "port 70000 does not exist"),
        (["--host", "no.such.host.invalid"], {}, "host no.such.host.invalid is not known"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    arguments: list[str],
    settings: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PYTHON_DOTENV_DISABLED", "1")
    for setting in SETTINGS:
        monkeypatch.delenv(setting.name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["voice_bot", *arguments])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("voice bot: ")
    assert message in line


def test_help_needs_no_port(taken: int) -> None:
    """The runner's options and ours are listed although nothing can be served."""
    ended = start("--help", "--port", str(taken))
    assert ended.returncode == 0
    assert "--loopback-only" in ended.stdout


def test_a_folder_that_cannot_be_written_to_is_named_with_the_remedy() -> None:
    """The environment's; only root may write to /."""
    nobody = 65534 if os.geteuid() == 0 else None
    with open(ROOT / "scripts/make_env.sh") as script:
        ended = subprocess.run(
            ["sh", "-s", "demo"],
            stdin=script,
            cwd="/",
            env={"PATH": os.environ["PATH"], "PYTHON": sys.executable, "VENV": "/no/such/.venv"},
            user=nobody,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert ended.returncode == 1
    assert ended.stderr == (
        "pipecat-hedge: no permission to write to /. "
        "Name a folder of yours for the environment: make VENV=/path/to/folder\n"
    )


def test_a_bot_without_keys_names_them_all_before_it_starts() -> None:
    keys = dict.fromkeys(("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CARTESIA_API_KEY"), "")
    ended = subprocess.run(
        [sys.executable, "examples/hedged_bot.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHON_DOTENV_DISABLED": "1", "DEEPGRAM_API_KEY": "any"} | keys,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr == (
        "hedged_bot: set ANTHROPIC_API_KEY, OPENAI_API_KEY, CARTESIA_API_KEY, "
        "in the environment or in .env\n"
    )
