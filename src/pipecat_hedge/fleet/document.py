"""What a process writes for the others every second, as text. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pipecat_hedge.limits.fleet_advice import Finding

__all__ = ["VERSION", "Document", "UnknownVersion"]

VERSION = 5
MOST_OPEN_SECS = 3600.0
"""However long another process has a breaker open."""
MOST_BALANCE = 1000.0
MOST_REQUESTS = 10**6
MOST_AGE_SECS = 30.0
"""An older reading of a server's load says nothing."""


class UnknownVersion(ValueError):
    """A document of another release."""


@dataclass(frozen=True, slots=True)
class Document:
    """A process's document.

    Parameters:
        findings: What it has found out about its providers, by key.
        balances: What is in its budget accounts, in requests, by budget.
        loads: Its readings of servers' load, by server: running and waiting requests, and the age
            in seconds.
    """

    findings: Mapping[str, Finding] = field(default_factory=dict[str, Finding])
    balances: Mapping[float, float] = field(default_factory=dict[float, float])
    loads: Mapping[str, tuple[int, int, float]] = field(
        default_factory=dict[str, tuple[int, int, float]]
    )

    def text(self) -> str:
        """The document as text."""
        providers = {key: asdict(finding) for key, finding in self.findings.items()}
        balances = {repr(budget): balance for budget, balance in self.balances.items()}
        document = {
            "version": VERSION,
            "providers": providers,
            "balances": balances,
            "loads": self.loads,
        }
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def of(cls, text: str) -> Document:
        """Read a document.

        Args:
            text: As ``text`` makes it.

        Raises:
            UnknownVersion: If it is of another version.
            ValueError: If it is something else.
        """
        try:
            document = json.loads(text)
            version = document["version"]
            if version == VERSION:
                return cls(
                    {str(key): _finding(each) for key, each in document["providers"].items()},
                    {float(b): _number(each) for b, each in document["balances"].items()},
                    {str(key): _load(*each) for key, each in document["loads"].items()},
                )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise ValueError(f"no document: {type(e).__name__}") from None
        raise UnknownVersion(f"version {str(version)[:20]}")


def _finding(saved: Mapping[str, Any]) -> Finding:
    found, secs, closings = saved["found"], float(saved["open_secs"]), saved["closings"]
    if found not in ("well", "down", "unsure") or not 0 <= secs < math.inf:
        raise ValueError("what was found")
    if not isinstance(closings, int) or isinstance(closings, bool) or closings < 0:
        raise ValueError("closings")
    return Finding(found, min(secs, MOST_OPEN_SECS), str(saved["reason"])[:200], closings)


def _load(running: Any, waiting: Any, age_secs: Any) -> tuple[int, int, float]:
    load = int(running), int(waiting), float(age_secs)
    if not (0 <= load[0] <= MOST_REQUESTS and 0 <= load[1] <= MOST_REQUESTS):
        raise ValueError("load")
    if not 0 <= load[2] <= MOST_AGE_SECS:
        raise ValueError("age")
    return load


def _number(value: Any) -> float:
    number = float(value)
    if not abs(number) <= MOST_BALANCE:
        raise ValueError("balance")
    return number
