"""The drills and the variants of the service under test, as values.

Times are seconds since the measurement began. Usual values are those before the first event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pipecat_hedge.policy import Order
from pipecat_hedge.service import AdmissionMode

ANSWER = "We are open until nine."
PACE = "tps=5"
"""At five tokens per second an answer lasts as long as a spoken one, and is cheap to stream."""
PROVIDERS = {
    "first": f"gpt-4.1?{PACE}",
    "second": f"claude-haiku-4-5?{PACE}",
    "third": f"gemini-3.6-flash?{PACE}",
}
"""The providers in their order, each with its simulated model."""
ALL = tuple(PROVIDERS)
FIRST = ALL[:1]


@dataclass(frozen=True, slots=True)
class Variant:
    """The service in the callers' pipelines.

    Parameters:
        name: Its name in tables.
        kind: ``bare`` sends one request to the first provider. ``retry`` has the SDK send up to
            three, each with a timeout of 5 s. ``hedged`` races all providers.
        budget: Extra requests per turn (``hedged``).
        order: The order of the providers (``hedged``).
        admission: Whether turns are rejected under overload (``hedged``).
    """

    name: str
    kind: Literal["bare", "retry", "hedged"]
    budget: float = 0.1
    order: Order = "learned"
    admission: AdmissionMode = "open"


BARE, RETRY, HEDGED = VARIANTS = (
    Variant("bare", "bare"),
    Variant("retry", "retry"),
    Variant("hedged", "hedged"),
)


@dataclass(frozen=True, slots=True)
class Event:
    """A change to the processes at one moment.

    Parameters:
        at_secs: The time.
        action: ``kill`` and ``start`` providers (on their previous ports), set their
            ``conditions``, kill or start Redis (it starts empty), kill one worker.
        providers: The affected providers.
        conditions: The conditions (`SimulatorProcess.set_conditions`); empty restores the usual
            ones. ``of_need`` is the capacity of all these providers together, as a share of the
            usual need.
    """

    at_secs: float
    action: Literal["kill", "start", "conditions", "kill_redis", "start_redis", "kill_worker"]
    providers: tuple[str, ...] = ()
    conditions: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Drill:
    """One drill.

    Parameters:
        name: Its name on the command line.
        summary: What happens, in a line.
        events: The events, in order. The first one is the failure.
        ends: Whether the last event ends the failure.
        hedged_secs: The measurement's length for hedged variants.
        plain_secs: The same for the others, which have no breakers to wait for.
        broken: The providers that should get no requests during the failure.
        models: The simulator's model of each provider.
        variants: The variants to run.
        think_factor: A factor on the callers' time between turns, for small machines.
    """

    name: str
    summary: str
    events: tuple[Event, ...] = ()
    ends: bool = False
    hedged_secs: float = 60.0
    plain_secs: float = 60.0
    broken: tuple[str, ...] = ()
    models: Mapping[str, str] = field(default_factory=lambda: PROVIDERS)
    variants: tuple[Variant, ...] = VARIANTS
    think_factor: float = 1.0

    @property
    def failure_secs(self) -> float | None:
        """The beginning of the failure; None if there is none."""
        return self.events[0].at_secs if self.events else None

    @property
    def return_secs(self) -> float | None:
        """The end of the failure; None if it lasts."""
        return self.events[-1].at_secs if self.ends else None

    def secs(self, variant: Variant) -> int:
        """Return the length of a variant's measurement, in whole seconds."""
        return round(self.hedged_secs if variant.kind == "hedged" else self.plain_secs)

    def paced(self, pace: float) -> Drill:
        """Return the same drill with all times multiplied by ``pace``."""
        return replace(
            self,
            events=tuple(replace(e, at_secs=e.at_secs * pace) for e in self.events),
            hedged_secs=self.hedged_secs * pace,
            plain_secs=self.plain_secs * pace,
        )


def _outage(name: str, summary: str, away: Event, back: Event) -> Drill:
    """A failure from 15 to 55 s, and 100 s more in which breakers close again."""
    events, broken = (away, back), away.providers
    return Drill(name, summary, events, True, hedged_secs=155.0, plain_secs=95.0, broken=broken)


def _degraded(name: str, summary: str, providers: tuple[str, ...], **conditions: Any) -> Drill:
    """Bad conditions from 15 s to the end."""
    return Drill(name, summary, (Event(15.0, "conditions", providers, conditions),))


_DRILLS = (
    Drill("calm", "nothing happens"),
    _outage(
        "down",
        "the first provider refuses connections",
        Event(15.0, "kill", FIRST),
        Event(55.0, "start", FIRST),
    ),
    _outage(
        "hang",
        "the first provider accepts requests and never answers",
        Event(15.0, "conditions", FIRST, {"fault": "hang"}),
        Event(55.0, "conditions", FIRST),
    ),
    replace(
        _degraded("slow", "the first provider is five times as slow", FIRST, slow=5),
        variants=(*VARIANTS, Variant("hedged given", "hedged", order="given")),
    ),
    _degraded(
        "limited",
        "30 % of the first provider's requests get a 429 (retry-after 2 s)",
        FIRST,
        fault="429",
        rate=0.3,
        retry_after=2,
        headers=0.02,
    ),
    _degraded("all_slow", "all providers are five times as slow", ALL, slow=5),
    replace(
        _degraded(
            "crowded",
            "all providers together serve 60 % of the need; the rest queues",
            ALL,
            of_need=0.6,
        ),
        hedged_secs=75.0,
        plain_secs=75.0,
        variants=(*VARIANTS, Variant("hedged shed", "hedged", admission="shed")),
    ),
    _outage(
        "return",
        "all providers refuse connections, then all return at once",
        Event(15.0, "kill", ALL),
        Event(55.0, "start", ALL),
    ),
    Drill(
        "redis",
        "Redis is killed, and comes back empty",
        (Event(15.0, "kill_redis"), Event(35.0, "start_redis")),
        ends=True,
    ),
    Drill("process", "one worker process is killed", (Event(15.0, "kill_worker"),)),
    Drill(
        "jagged",
        "all providers have the jagged-edges latencies, and 2.3 % of requests hang",
        hedged_secs=120.0,
        plain_secs=120.0,
        models=dict.fromkeys(ALL, f"jagged?{PACE}&fault=hang&rate=0.023"),
        think_factor=2.0,
        variants=(
            BARE,
            RETRY,
            *(Variant(f"hedged {b:.0%}", "hedged", b) for b in (0.1, 0.2, 0.3, 0.4, 0.5)),
        ),
    ),
)
DRILLS = {drill.name: drill for drill in _DRILLS}
"""The drills by name, in the order of execution."""
