"""The clients' keys, what each may ask for, and what it has left."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence

from pipecat_hedge.race import ConfigurationError, TurnReport
from pipecat_hedge.tools.proxy.settings import KeySettings

PREFIX = "pxh-"
"""Shows in a client's settings, or in a leak, whose key it is."""
HOUR_SECS = 3600.0
NOBODY = KeySettings(name="anyone", sha256="0" * 64, max_streams=1000)


def new_key(name: str) -> str:
    """Make a key and return it with the lines for the settings file.

    Raises:
        ConfigurationError: If the name is empty.
    """
    if not name.strip():
        raise ConfigurationError("--new-key is empty: give the client's name, such as bot")
    key = PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).hexdigest()
    quoted = json.dumps(name, ensure_ascii=False)  # as TOML writes it
    return f'{key}\n\n[[keys]]\nname = {quoted}\nsha256 = "{digest}"\n'


class Client:
    """A client and what it uses.

    An allowance is refilled evenly: each hedge takes its part of an hour, and an hour can be used
    in advance.

    Attributes:
        settings: Its settings.
        streams: Its requests that are running.
    """

    def __init__(self, settings: KeySettings):
        """Begin with everything left."""
        self.settings = settings
        self.streams = 0
        self._used_until = {"hedges": 0.0, "usd": 0.0}

    def may_use(self, model: str) -> bool:
        """Whether it may ask for a model."""
        return self.settings.models is None or model in self.settings.models

    def may_hedge(self, now: float) -> bool:
        """Whether its allowances of hedges are not used up.

        Args:
            now: The time in seconds.
        """
        per_hour, until = self.settings.hedges_per_hour, now + HOUR_SECS
        if per_hour is not None and per_hour * (until - self._used_until["hedges"]) < HOUR_SECS:
            return False
        usd = self.settings.hedge_usd_per_hour
        return usd is None or (usd > 0 and self._used_until["usd"] < until)

    def spend(self, report: TurnReport, now: float) -> None:
        """Take a race's hedges from the allowances."""
        hedges = [a for a in report.attempts if a.launch_reason == "hedge" and a.sent_secs]
        self._use("hedges", len(hedges), self.settings.hedges_per_hour, now)
        self._use("usd", sum(a.usd or 0.0 for a in hedges), self.settings.hedge_usd_per_hour, now)

    def _use(self, what: str, amount: float, per_hour: float | None, now: float) -> None:
        if per_hour:
            began = max(self._used_until[what], now)
            self._used_until[what] = began + amount * HOUR_SECS / per_hour


class Keys:
    """All clients by their keys."""

    def __init__(self, settings: Sequence[KeySettings]):
        """Prepare the clients; without any, no key is required."""
        self._clients = {bytes.fromhex(key.sha256): Client(key) for key in settings}
        self._anyone = None if settings else Client(NOBODY)

    def replace(self, settings: Sequence[KeySettings]) -> set[Client]:
        """Take new settings; clients that stay keep what they have used.

        Once keys have been asked for, they are, even if none is left.

        Returns:
            The clients whose keys are gone.
        """
        before, self._clients = self._clients, {}
        for key in settings:
            digest = bytes.fromhex(key.sha256)
            client = self._clients[digest] = before.get(digest) or Client(key)
            client.settings = key
        if settings:
            self._anyone = None
        return set(before.values()) - set(self._clients.values())

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
