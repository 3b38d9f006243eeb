"""The clients' keys, what each may ask for, and what it has left."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Mapping, Sequence

from pipecat_hedge.race import TurnReport
from pipecat_hedge.tools.proxy.settings import KeySettings

__all__ = ["Client", "Keys", "new_key"]

PREFIX = "pxh-"
"""Shows in a client's settings, or in a leak, whose key it is."""
HOUR_SECS = 3600.0
NOBODY = KeySettings(name="anyone", sha256="0" * 64, max_streams=1000)


def new_key(name: str) -> str:
    """Make a key and return it with the lines for the settings file."""
    key = PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'{key}\n\n[[keys]]\nname = "{name}"\nsha256 = "{digest}"\n'


class Client:
    """A client and what it uses.

    Attributes:
        settings: Its settings.
        streams: Its requests that are running.
    """

    def __init__(self, settings: KeySettings):
        """Begin with everything left."""
        self.settings = settings
        self.streams = 0
        self._hedges = _Allowance(settings.hedges_per_hour)
        self._usd = _Allowance(settings.hedge_usd_per_hour)

    def may_hedge(self, now: float) -> bool:
        """Whether its allowance of hedges is not used up.

        Args:
            now: The time in seconds.
        """
        return self._hedges.left(now) >= 1.0 and self._usd.left(now) > 0.0

    def spend(self, report: TurnReport, now: float) -> None:
        """Take a race's hedges from the allowance."""
        hedges = [a for a in report.attempts if a.launch_reason == "hedge" and a.sent_secs]
        self._hedges.take(len(hedges), now)
        self._usd.take(sum(a.usd or 0.0 for a in hedges), now)


class _Allowance:
    """An amount that is refilled evenly within an hour; a token bucket."""

    def __init__(self, per_hour: float | None):
        self._most = math.inf if per_hour is None else per_hour
        self._left, self._at = self._most, 0.0

    def left(self, now: float) -> float:
        if math.isfinite(self._most):
            refilled = (now - self._at) * self._most / HOUR_SECS
            self._left, self._at = min(self._left + refilled, self._most), now
        return self._left

    def take(self, amount: float, now: float) -> None:
        self._left = self.left(now) - amount


class Keys:
    """All clients by their keys."""

    def __init__(self, settings: Sequence[KeySettings]):
        """Prepare the clients; without any, nobody is asked for a key."""
        self._clients = {bytes.fromhex(key.sha256): Client(key) for key in settings}
        self._anyone = None if settings else Client(NOBODY)

    def client(self, headers: Mapping[str, str]) -> Client | None:
        """Return the client whose key a request carries; None if it carries none that is known.

        Every key is compared in constant time.
        """
        if self._anyone is not None:
            return self._anyone
        bearer = headers.get("Authorization", "")
        key = headers.get("x-api-key") or bearer.removeprefix("Bearer ").strip()
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        found = None
        for known, client in self._clients.items():
            if hmac.compare_digest(known, digest):
                found = client
        return found
