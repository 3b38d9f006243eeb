"""What a process writes for the others every second, as text. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import AfterValidator, Field, TypeAdapter

from pipecat_hedge.providers.fleet_advice import Finding

VERSION = 5
MOST_OPEN_SECS = 3600.0
"""However long another process has a breaker open."""
MOST_BALANCE = 1000.0
MOST_REQUESTS = 10**6
MOST_AGE_SECS = 30.0
"""An older reading of a server's load says nothing."""


class UnknownVersion(ValueError):
    """A document of another release."""


def _checked(finding: Finding) -> Finding:
    if not 0 <= finding.open_secs < math.inf or finding.closings < 0:
        raise ValueError("a number out of range")
    open_secs = min(finding.open_secs, MOST_OPEN_SECS)
    return replace(finding, open_secs=open_secs, reason=finding.reason[:200])


_Finding = Annotated[Finding, AfterValidator(_checked)]
_Balance = Annotated[float, Field(ge=-MOST_BALANCE, le=MOST_BALANCE)]
_Requests = Annotated[int, Field(ge=0, le=MOST_REQUESTS)]
_AgeSecs = Annotated[float, Field(ge=0, le=MOST_AGE_SECS)]


@dataclass(frozen=True, slots=True)
class Document:
    """A process's document.

    Parameters:
        providers: What it has found out about its providers, by key.
        balances: What is in its budget accounts, in requests, by budget.
        loads: Its readings of servers' load, by server: running and waiting requests, and the age
            in seconds.
        version: The version of the format.
    """

    providers: Mapping[str, _Finding] = field(default_factory=dict[str, Finding])
    balances: Mapping[float, _Balance] = field(default_factory=dict[float, float])
    loads: Mapping[str, tuple[_Requests, _Requests, _AgeSecs]] = field(
        default_factory=dict[str, tuple[int, int, float]]
    )
    version: int = VERSION

    def text(self) -> str:
        """The document as text."""
        return _ADAPTER.dump_json(self).decode()

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
                return _ADAPTER.validate_python(document)
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise ValueError(f"no document: {type(e).__name__}") from None
        raise UnknownVersion(f"version {str(version)[:20]}")


_ADAPTER = TypeAdapter(Document)
