"""Runs the simulator in a separate process, for synchronous tests and benchmarks."""

import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from typing import Any, Self
from urllib.parse import urlencode

from pipecat_hedge import HedgeError
from pipecat_hedge.tools.simulator.server import ProviderUrls

_ADDRESS = re.compile(r"http://\S+")


class SimulatorError(HedgeError, RuntimeError):
    """The simulator's process did not start."""


class SimulatorProcess(ProviderUrls):
    """Runs ``pipecat-hedge simulate`` and stops it at the end.

    ::

        with SimulatorProcess(seed=1) as sim:
            client = OpenAI(api_key="any", base_url=sim.openai_url)

    Args:
        port: The port; 0 picks a free one.
        seed: The n-th request to a model name gets the same draw for the same seed.
        capacity: The number of concurrent requests; others are queued. None is no limit.

    Raises:
        SimulatorError: On entering, if it does not start; with its error output.
    """

    def __init__(self, port: int = 0, *, seed: int = 0, capacity: int | None = None):
        self._command = [sys.executable, "-m", "pipecat_hedge.cli", "simulate"]
        self._command += ["--port", str(port), "--seed", str(seed)]
        if capacity is not None:
            self._command += ["--capacity", str(capacity)]
        self._process: subprocess.Popen[str] | None = None
        self._url = ""

    def __enter__(self) -> Self:
        # A file, not a pipe: a full pipe would block the process.
        with tempfile.TemporaryFile("w+") as errors:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
            assert self._process.stdout is not None
            # The process prints its address once it listens, or exits.
            found = _ADDRESS.search(self._process.stdout.readline())
            if found is None:
                self._stop()
                errors.seek(0)
                raise SimulatorError(f"the simulator did not start: {errors.read().strip()}")
        self._url = found[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._url

    def ledger(self, *, wait_secs: float = 0.0) -> dict[str, Any]:
        """Return every request: ``{"requests": [...], "open": n, "now_secs": secs}``.

        Args:
            wait_secs: The longest wait until no request is open.
        """
        return self._call(f"/ledger?wait={wait_secs:g}", timeout_secs=wait_secs + 10)

    def clear_ledger(self) -> None:
        """Delete the ended requests."""
        self._call("/ledger", method="DELETE")

    def set_conditions(self, model: str = "", **conditions: Any) -> None:
        """Change how requests are served from now on, regardless of their model names.

        Args:
            model: The name of the model whose requests they are; empty for all models.
            **conditions: A model's keys, such as ``fault="hang"``, ``slow=5``; and ``capacity``.
                They replace the previous conditions.

        Raises:
            ValueError: If one of them is unknown; with the simulator's message.
        """
        try:
            path = f"/simulator/conditions?{urlencode({'model': model})}"
            self._call(path, body=json.dumps(conditions).encode())
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["error"]["message"]) from None

    def _call(
        self,
        path: str,
        *,
        method: str | None = None,
        body: bytes | None = None,
        timeout_secs: float = 10,
    ) -> dict[str, Any]:
        request = urllib.request.Request(f"{self._url}{path}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=timeout_secs) as response:
            return json.load(response)
