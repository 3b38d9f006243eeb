"""`make vllm`: how a server is started, and that it ends with what started it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
VLLM = """\
    #!{python}
    import http.server, os, sys
    port = int(sys.argv[sys.argv.index("--port") + 1])
    with open({notes!r}, "w") as notes:
        print(os.getpid(), sys.argv[-1], os.environ.get("VLLM_API_KEY"), sep="\\n", file=notes)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
STARTER = """\
    import sys, threading
    from scripts.vllm.server import VLLMProcess
    server = VLLMProcess("tiny", "last argument")
    starter = threading.Thread(target=server.start)  # a thread that ends before the process does
    starter.start()
    starter.join()
    server.wait_until_ready()
    print("ready", flush=True)
    sys.stdin.read()
    server.stop()
"""


@pytest.mark.parametrize("end", ["killed", "terminated", "stopped"])
def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path, end: str) -> None:
    """However that ends; the key in VLLM_API_KEY has reached it."""
    notes = tmp_path / "notes"
    command = tmp_path / "venv" / "bin" / "vllm"
    command.parent.mkdir(parents=True)
    command.write_text(
        textwrap.dedent(VLLM).format(python=sys.executable, notes=str(notes)), encoding="utf-8"
    )
    command.chmod(0o755)
    env = {
        **os.environ,
        "VLLM_HOME": str(tmp_path),
        "VLLM_API_KEY": "secret",
        "TMPDIR": str(tmp_path),
        "PATH": str(tmp_path),  # no nvidia-smi
    }
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARTER)],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdin is not None
        assert starter.stdout.readline() == b"ready\n"
        pid, argument, key = notes.read_text().splitlines()
        assert (argument, key) == ("last argument", "secret")
        watched = os.pidfd_open(int(pid))
        if end == "stopped":
            starter.stdin.close()
        else:
            starter.send_signal(signal.SIGKILL if end == "killed" else signal.SIGTERM)
        starter.wait(30)
    try:
        assert select.select([watched], [], [], 30)[0], "the server still runs"
    finally:
        os.close(watched)
