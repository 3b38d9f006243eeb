"""A real Prometheus for tests, on a port of its own, with rules that need not wait for minutes."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/rules.yml"
MISSING = "no Prometheus: apt-get install prometheus"
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason=MISSING)
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=MISSING)

MINUTE_SECS = int(os.environ.get("PROMETHEUS_MINUTE_SECS", "2"))
"""What a minute of the rules counts as; with 60 the tests of them take half an hour."""
SCRAPE_SECS = MINUTE_SECS / 4
START_SECS = 30
_MINUTES = re.compile(r"(?<=[\[ ])(\d+)(m|h|d)(?=[\]\s])")
_SECS = {"m": MINUTE_SECS, "h": 60 * MINUTE_SECS, "d": 1440 * MINUTE_SECS}


def shortened(rules: str) -> str:
    """The rules for a hurry: a minute counts as ``MINUTE_SECS``, in windows and in ``for``.

    So with 2 ``rate(...[5m])`` looks at 10 s, and ``for: 5m`` waits for 10 s; names stay.
    """
    return _MINUTES.sub(lambda found: f"{int(found[1]) * _SECS[found[2]]}s", rules)


class PrometheusServer:
    """Runs Prometheus over one target until it is left.

    Args:
        folder: Where it keeps its data.
        target: The address that serves the metrics, as ``127.0.0.1:9464``.
    """

    def __init__(self, folder: Path, target: str):
        self._folder = folder
        self._config = folder / "prometheus.yml"
        (folder / "rules.yml").write_text(shortened(RULES.read_text()))
        often = f"{SCRAPE_SECS * 1000:g}ms"
        names = ("scrape_interval", "scrape_timeout", "evaluation_interval")
        scraped = {"job_name": "voice-bots", "static_configs": [{"targets": [target]}]}
        config = {
            "global": dict.fromkeys(names, often),
            "rule_files": ["rules.yml"],
            "scrape_configs": [scraped],
        }
        self._config.write_text(json.dumps(config))

    def __enter__(self) -> Self:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log = (self._folder / "log").open("w")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={self._config}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        until = time.monotonic() + START_SECS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise RuntimeError("no Prometheus: " + (self._folder / "log").read_text()[-2000:])
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression is now: ``{"metric": labels, "value": [at, value]}`` each.

        Raises:
            ValueError: If Prometheus rejects it; with what it says.
        """
        return self._get("query", query=expression)["result"]

    def firing(self) -> dict[str, dict[str, str]]:
        """The alerts that fire, by name, with their labels."""
        return {
            alert["labels"]["alertname"]: alert["labels"]
            for alert in self._get("alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def complaints(self) -> list[str]:
        """What it had to say about the rules since it started: what it discarded, what failed."""
        log = (self._folder / "log").read_text().splitlines()
        return [each for each in log if 'component="rule manager"' in each and "err=" in each]

    def _is_ready(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/-/ready", timeout=5).close()
        except OSError:
            return False
        return True

    def _get(self, what: str, **parameters: str) -> Any:
        address = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(json.load(error)["error"]) from None
