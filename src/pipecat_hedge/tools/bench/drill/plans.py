"""The drills, as values: what happens to whom, when, and what is to be seen of it.

Times are seconds since the measurement began. Trouble begins at `event_secs` and, where it ends,
ends at `return_secs`. What was usual is taken from the time before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from pipecat_hedge.tools.bench.drill.variants import VARIANTS, Variant

__all__ = [
    "ALL",
    "DRILLS",
    "FIRST",
    "PROVIDERS",
    "Act",
    "Drill",
    "Kill",
    "KillRedis",
    "KillWorker",
    "SetConditions",
    "Start",
    "StartRedis",
]

PACE = "tps=5"
"""Five tokens take a second, like eighty of a usual pace, and cost this machine less to stream."""
PROVIDERS = {
    "first": f"gpt-4.1?{PACE}",
    "second": f"claude-haiku-4-5?{PACE}",
    "third": f"gemini-3.6-flash?{PACE}",
}
"""Whom the callers ask, in this order, and the model that each is served by."""
ALL = tuple(PROVIDERS)
FIRST = ALL[:1]


@dataclass(frozen=True, slots=True)
class Kill:
    """The providers' processes are killed: connections are refused from then on.

    Parameters:
        providers: Whose.
    """

    providers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """The providers' processes are there again, all in one instant, on the ports of before.

    Parameters:
        providers: Whose.
    """

    providers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetConditions:
    """The providers behave otherwise from then on, or as usual again.

    Parameters:
        providers: Which.
        conditions: As `SimulatorProcess.set_conditions` takes them; none are the usual ones.
        of_need: The capacity of all of them together, as a share of what is needed in calm.
    """

    providers: tuple[str, ...]
    conditions: Mapping[str, Any] = field(default_factory=dict[str, Any])
    of_need: float | None = None


@dataclass(frozen=True, slots=True)
class KillRedis:
    """Redis is killed, ``kill -9``."""


@dataclass(frozen=True, slots=True)
class StartRedis:
    """Redis is there again, and empty."""


@dataclass(frozen=True, slots=True)
class KillWorker:
    """One of the workers is killed, ``kill -9``, with all of its sessions."""


Act: TypeAlias = Kill | Start | SetConditions | KillRedis | StartRedis | KillWorker


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill.

    Parameters:
        name: What the command calls it.
        summary: What happens, in a line.
        acts: What happens when, in order.
        event_secs: When the trouble begins; None in calm.
        return_secs: When it is over; None if it lasts.
        lasts_secs: How long it is measured with the hedged service.
        plain_secs: How long with the others, which have no breakers to wait for.
        broken: Who gets fewer requests while it lasts, if it is to be noticed by that.
        profiles: Model by provider, where they are not the usual ones.
        variants: Whom it is for.
        think_times: How many times as long as in other drills a caller thinks, where a machine of
            two processors would else be what is measured.
    """

    name: str
    summary: str
    acts: tuple[tuple[float, Act], ...] = ()
    event_secs: float | None = None
    return_secs: float | None = None
    lasts_secs: float = 60.0
    plain_secs: float = 60.0
    broken: tuple[str, ...] = ()
    profiles: Mapping[str, str] = field(default_factory=lambda: PROVIDERS)
    variants: tuple[Variant, ...] = tuple(VARIANTS.values())
    think_times: float = 1.0

    def secs(self, variant: Variant) -> int:
        """How long it is measured with a variant, in whole seconds."""
        return round(self.lasts_secs if variant.kind == "hedged" else self.plain_secs)

    def paced(self, pace: float) -> Drill:
        """The same with all times multiplied.

        Args:
            pace: By how much.
        """

        def scaled(secs: float | None) -> float | None:
            return None if secs is None else secs * pace

        return replace(
            self,
            acts=tuple((at * pace, act) for at, act in self.acts),
            event_secs=scaled(self.event_secs),
            return_secs=scaled(self.return_secs),
            lasts_secs=self.lasts_secs * pace,
            plain_secs=self.plain_secs * pace,
        )


def _outage(name: str, summary: str, away: Act, back: Act, broken: tuple[str, ...]) -> Drill:
    """Trouble from 15 s to 55 s; then the time in which a breaker is to have closed again."""
    return Drill(
        name,
        summary,
        acts=((15.0, away), (55.0, back)),
        event_secs=15.0,
        return_secs=55.0,
        lasts_secs=155.0,
        plain_secs=95.0,
        broken=broken,
    )


def _bad_hour(name: str, summary: str, providers: tuple[str, ...], **conditions: Any) -> Drill:
    """Trouble from 15 s on."""
    act = SetConditions(providers, conditions)
    return Drill(name, summary, acts=((15.0, act),), event_secs=15.0)


_GIVEN = Variant("hedged given", "hedged", order="given")
_SHED = Variant("hedged shed", "hedged", admission="shed")
_JAGGED = f"jagged?{PACE}&fault=hang&rate=0.023"
_DRILLS = (
    Drill("calm", "nothing happens"),
    _outage("down", "the first provider refuses connections", Kill(FIRST), Start(FIRST), FIRST),
    _outage(
        "hang",
        "the first provider accepts requests and never answers",
        SetConditions(FIRST, {"fault": "hang"}),
        SetConditions(FIRST),
        FIRST,
    ),
    replace(
        _bad_hour("slow", "the first provider is five times as slow", FIRST, slow=5),
        variants=(*VARIANTS.values(), _GIVEN),
    ),
    _bad_hour(
        "limited",
        "30 % of the first provider's requests are refused (429, retry-after 2 s)",
        FIRST,
        fault="429",
        rate=0.3,
        retry_after=2,
        headers=0.02,
    ),
    _bad_hour("all_slow", "all providers are five times as slow", ALL, slow=5),
    Drill(
        "crowded",
        "all providers together can serve 60 % of what is needed; the rest queues",
        acts=((15.0, SetConditions(ALL, of_need=0.6)),),
        event_secs=15.0,
        lasts_secs=75.0,
        plain_secs=75.0,
        variants=(*VARIANTS.values(), _SHED),
    ),
    _outage(
        "return", "all refuse connections, then all are back at once", Kill(ALL), Start(ALL), ALL
    ),
    Drill(
        "redis",
        "Redis is killed, and comes back empty",
        acts=((15.0, KillRedis()), (35.0, StartRedis())),
        event_secs=15.0,
        return_secs=35.0,
    ),
    Drill(
        "process",
        "one of the processes is killed",
        acts=((15.0, KillWorker()),),
        event_secs=15.0,
    ),
    Drill(
        "jagged",
        "every provider is the one of the jagged edges, and 2.3 % of its requests hang",
        lasts_secs=120.0,
        plain_secs=120.0,
        profiles=dict.fromkeys(ALL, _JAGGED),
        think_times=2.0,
        variants=(
            VARIANTS["bare"],
            VARIANTS["retry"],
            *(Variant(f"hedged {b:.0%}", "hedged", b) for b in (0.1, 0.2, 0.3, 0.4, 0.5)),
        ),
    ),
)
DRILLS = {drill.name: drill for drill in _DRILLS}
"""Every drill by its name, in the order in which they are run."""
