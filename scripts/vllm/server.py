"""A vLLM server in a separate process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_SECS = 300  # a large model is loaded, and compiled for its GPU
STOP_SECS = 20
MADE = ("tiny", "small")
"""The models of random weights that ``make_env.sh`` makes, 1.4 and 28 million parameters."""
BRIEF = ("--override-generation-config", '{"max_new_tokens": 24}')
"""For audible answers of a random model: short ones."""
ALWAYS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--scheduling-policy", "priority"),
    "--enable-prompt-tokens-details",
    "--enable-server-load-tracking",
)
"""Default arguments for voice; later ones override them."""
KEEP_ALIVE = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120"}
"""In seconds: the time between two turns is longer than vLLM's default of 5."""


def vllm_home() -> Path:
    """Return the folder of vLLM's environment and models; `make vllm` creates it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("VLLM_HOME") or Path(cache) / "pipecat-hedge" / "vllm")


def has_gpu() -> bool:
    """Whether an NVIDIA GPU is present; then the ordinary vLLM package is installed."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False
    return "GPU" in listed.stdout


class VLLMProcess:
    """Starts ``vllm serve`` and stops it.

    Example::

        with VLLMProcess("tiny", name="tiny") as server:
            VLLMService(base_url=server.base_url)

    Attributes:
        port: Its port, kept by ``restart``.
        log: The file with its output.
    """

    def __init__(
        self,
        model: str,
        *arguments: str,
        name: str | None = None,
        port: int | None = None,
        core: int | None = None,
    ):
        """Configure a server; nothing is started yet.

        Args:
            model: ``tiny`` or ``small``, created by ``make_env.sh``, or a model for ``vllm serve``.
            *arguments: Further arguments of ``vllm serve``.
            name: The served model's name.
            port: The port; None picks a free one.
            core: The processor core to bind to; None uses all.
        """
        self._home = vllm_home()
        self._has_gpu = has_gpu()
        self._is_made = model in MADE
        self._model = str(self._home / "models" / model) if self._is_made else model
        self._arguments: Sequence[str] = arguments
        self._name = name or model
        self._core = core
        self.port = port or _free_port()
        self.log = Path(tempfile.mkstemp(prefix="vllm-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """The address of its OpenAI-compatible API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_until_ready()
        except BaseException as error:
            self.stop()
            if not isinstance(error, Exception):
                self.log.unlink(missing_ok=True)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if not isinstance(error, Exception):  # not KeyboardInterrupt
            self.log.unlink(missing_ok=True)

    def start(self, *, name: str | None = None) -> None:
        """Start the server without waiting.

        Args:
            name: The served model's new name.
        """
        self._name = name or self._name
        command = [
            *(sys.executable, str(Path(__file__).with_name("end_with_parent.py"))),
            str(self._home / ("venv-gpu" if self._has_gpu else "venv") / "bin" / "vllm"),
            *("serve", self._model, "--host", "127.0.0.1", "--port", str(self.port)),
            *("--served-model-name", self._name),
            *(("--enforce-eager",) if self._is_made else ()),  # a third of the time to start
            *(("--gpu-memory-utilization", "0.1") if self._is_made and self._has_gpu else ()),
            *ALWAYS,
            *self._arguments,
        ]
        ours = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "PYTHONPATH": str(Path(__file__).parent / "site"),
        }
        is_cpu = self._is_made and not self._has_gpu
        if self._core is not None:
            ours["VLLM_CPU_OMP_THREADS_BIND"] = str(self._core)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                env={**KEEP_ALIVE, **os.environ, **(ours if is_cpu else {})},
                stdin=subprocess.PIPE,  # closes when this process ends: see end_with_parent
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until the server answers.

        Raises:
            RuntimeError: If it exits, or takes too long; with the end of its output.
        """
        process = self._process
        assert process is not None, "it has not been started"
        give_up_at = time.monotonic() + START_SECS
        while process.poll() is None and time.monotonic() < give_up_at:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.2)
        self.kill()
        output = self.log.read_text(errors="replace").splitlines()[-30:]
        raise RuntimeError("vLLM did not start; its output:\n" + "\n".join(output))

    def restart(self, *, name: str | None = None) -> None:
        """Restart the server on its port, and wait until it answers.

        Args:
            name: The served model's new name.
        """
        self.stop()
        self.start(name=name)
        self.wait_until_ready()

    def stop(self) -> None:
        """Terminate the server, if it runs, and kill it if necessary."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_SECS)
        self.kill()

    def kill(self) -> None:
        """Kill the server and all its processes, as in a crash."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with self._process:  # waits for its end, and closes the pipe
            self._process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
