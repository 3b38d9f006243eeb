"""`pipecat-hedge simulate` and the simulator in a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from pipecat_hedge import cli
from pipecat_hedge.tools.simulator import SimulatorProcess

pytestmark = pytest.mark.live

COMMAND = [sys.executable, "-m", "pipecat_hedge.cli", "simulate"]


def post(url: str, model: str, secs: float = 10) -> bytes:
    messages = [{"role": "user", "content": "do you deliver"}]
    body = json.dumps({"model": model, "messages": messages, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/chat/completions", data=body)
    with urllib.request.urlopen(request, timeout=secs) as response:
        return response.read()


def test_a_process_of_its_own():
    """The context manager finds a free port, shows the ledger and stops the process."""
    with SimulatorProcess(seed=3) as sim:
        assert b"[DONE]" in post(sim.openai_url, "fixed?ttft=0")
        with pytest.raises(TimeoutError):
            post(sim.openai_url, "fixed?fault=hang", 0.3)
        ledger = sim.ledger(wait_secs=2)
        assert [entry["outcome"] for entry in ledger["requests"]] == ["completed", "aborted"]
        assert sim.ledger(open_only=True) == {"requests": [], "open": 0}
        sim.clear_ledger()
        assert sim.ledger()["requests"] == []
        assert (sim.anthropic_url, sim.google_url) == (sim.url, sim.url)
    with pytest.raises(OSError, match="refused"):
        sim.ledger()


def test_a_process_that_cannot_start():
    """If the process ends instead of listening, what it said is in the error."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RuntimeError, match=f"(?s)did not start: .*port {port} on 127.0.0.1 is in"
        ):
            SimulatorProcess(port).__enter__()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_with_open_streams(number: signal.Signals):
    """A signal stops it within a second, with status 0, though a stream is open."""
    process = subprocess.Popen(
        [*COMMAND, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    port = int(line.split("127.0.0.1:")[1].split()[0])
    with socket.create_connection(("127.0.0.1", port)) as sock:
        body = json.dumps(
            {"model": "fixed?fault=headers_then_silence", "messages": [{}], "stream": 1}
        )
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        sock.sendall((head + body).encode())
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        process.send_signal(number)
        _, said = process.communicate(timeout=2)
    assert process.returncode == 0
    assert "Traceback" not in said


def test_port_in_use(capsys: pytest.CaptureFixture[str]):
    """A port in use is one line that names it and the remedy, and exit status 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["simulate", "--port", str(port)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        f"pipecat-hedge simulate: port {port} on 127.0.0.1 is in use; "
        "stop the other process or choose another port (0: a free one)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["simulate", "--port", "70000"], "expected a number from 0 to 65535, got 70000"),
        (
            ["simulate", "--port", "http"],
            "argument --port: expected a number from 0 to 65535, got http",
        ),
        (["simulate", "--capacity", "0"], "expected a whole number, 1 or more, got 0"),
        (["simulate", "--seed", "x"], "argument --seed: invalid int value"),
        ([], "required: COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
    ],
)
def test_bad_arguments(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str):
    """A bad argument is named, with exit status 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_help_lists_everything(capsys: pytest.CaptureFixture[str]):
    """The help names every profile, key and fault."""
    with pytest.raises(SystemExit):
        cli.main(["simulate", "--help"])
    said = capsys.readouterr().out
    for word in ("gemma-4-31b-baseten", "jagged-after", "retry_after", "cut_in_tool", "--seed"):
        assert word in said
