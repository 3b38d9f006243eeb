"""The simulator in a process of its own, for tests that are not asynchronous and for benchmarks."""

import json
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from types import TracebackType
from typing import Any, Self

_ADDRESS = re.compile(r"http://\S+")


class SimulatorProcess:
    """Runs ``pipecat-hedge simulate`` and stops it at the end.

    ::

        with SimulatorProcess(seed=1) as sim:
            client = OpenAI(api_key="any", base_url=sim.openai_url)

    Args:
        port: The port to listen on; 0 picks a free one.
        seed: The n-th request to a model name gets the same draw for the same seed.
        capacity: How many requests are served at once, the others wait; None is as many as come.

    Raises:
        RuntimeError: On entering, if it does not start; with what it said.
    """

    def __init__(self, port: int = 0, *, seed: int = 0, capacity: int | None = None):
        self._command = [sys.executable, "-m", "pipecat_hedge.cli", "simulate"]
        self._command += ["--port", str(port), "--seed", str(seed)]
        if capacity is not None:
            self._command += ["--capacity", str(capacity)]
        self._process: subprocess.Popen[str] | None = None
        self._url = ""

    def __enter__(self) -> Self:
        # A file, not a pipe: nobody reads along, and a full pipe would stop the process.
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        assert self._process.stdout is not None
        # The first line has the address; the process prints it once it listens, or ends.
        found = _ADDRESS.search(self._process.stdout.readline())
        if found is None:
            self._stop()
            self._said.seek(0)
            said = self._said.read().strip()
            self._said.close()
            raise RuntimeError(f"the simulator did not start: {said}")
        self._url = found[0]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()
        self._said.close()

    def _stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def kill(self) -> None:
        """End it in the middle of whatever it does, as a crash would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """``http://host:port``."""
        return self._url

    @property
    def openai_url(self) -> str:
        """The ``base_url`` for OpenAI's SDK and Pipecat's OpenAI services."""
        return f"{self._url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The ``base_url`` for Anthropic's SDK."""
        return self._url

    @property
    def google_url(self) -> str:
        """The ``base_url`` of ``HttpOptions`` for Google's SDK and Pipecat's Google service."""
        return self._url

    def ledger(self, *, open_only: bool = False, wait_secs: float = 0.0) -> dict[str, Any]:
        """What became of every request: ``{"requests": [...], "open": n}``.

        Args:
            open_only: Leave out the requests that have ended.
            wait_secs: Wait up to so long until no request is open.
        """
        address = f"{self._url}/ledger?open={int(open_only)}&wait={wait_secs:g}"
        with urllib.request.urlopen(address, timeout=wait_secs + 10) as answer:
            return json.load(answer)

    def arrivals(self, since: int = 0) -> dict[str, Any]:
        """How many requests came in each second.

        Args:
            since: From which second on.

        Returns:
            ``counts`` of whole seconds of this machine's monotonic clock, and ``first``, the second
            that the first of them is of; ``busy`` and ``waiting``, the requests that are served and
            that wait now.
        """
        address = f"{self._url}/simulator/arrivals?since={since}"
        with urllib.request.urlopen(address, timeout=10) as answer:
            return json.load(answer)

    def set_conditions(self, **told: Any) -> None:
        """Change how all requests are served from now on, whatever they ask for.

        Args:
            **told: A model's keys, such as ``fault="hang"``, ``slow=5``; and ``capacity``. What is
                not named is as usual.

        Raises:
            ValueError: If one of them is none; with what the simulator said.
        """
        body = json.dumps(told).encode()
        request = urllib.request.Request(f"{self._url}/simulator/conditions", data=body)
        try:
            urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["error"]["message"]) from None

    def clear_ledger(self) -> None:
        """Forget the requests that have ended."""
        request = urllib.request.Request(f"{self._url}/ledger", method="DELETE")
        urllib.request.urlopen(request, timeout=10).close()
