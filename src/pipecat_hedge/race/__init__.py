"""One turn as a race: a pure state machine, and its drivers in real and virtual time."""

from typing import TYPE_CHECKING, Any

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.errors import (
    SHED,
    AllProvidersFailed,
    AttemptError,
    ConfigurationError,
    HedgeError,
    missing_extra,
)
from pipecat_hedge.race.events import (
    AttemptOutcome,
    InFlight,
    Launch,
    LaunchDecision,
    LaunchReason,
    Slot,
    TurnOutcome,
    Waiting,
)
from pipecat_hedge.race.race import Race
from pipecat_hedge.race.reports import (
    TIERS,
    AttemptReport,
    BreakerReport,
    DrainedAnswer,
    FillerReport,
    ProviderState,
    ServerLoad,
    StageReport,
    Tier,
    TurnReport,
)
from pipecat_hedge.race.virtual import Latency, run_virtual

if TYPE_CHECKING:
    from pipecat_hedge.race.task_scope import TaskScope

__all__ = [
    "SHED",
    "TIERS",
    "AllProvidersFailed",
    "Attempt",
    "AttemptError",
    "AttemptOutcome",
    "AttemptReport",
    "BreakerReport",
    "ConfigurationError",
    "DrainedAnswer",
    "FillerReport",
    "HedgeError",
    "InFlight",
    "Latency",
    "Launch",
    "LaunchDecision",
    "LaunchReason",
    "ProviderState",
    "Race",
    "ServerLoad",
    "Slot",
    "StageReport",
    "TaskScope",
    "Tier",
    "TurnOutcome",
    "TurnReport",
    "Waiting",
    "missing_extra",
    "run_virtual",
]


def __getattr__(name: str) -> Any:
    if name != "TaskScope":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only what runs tasks loads asyncio; whatif runs none.
    from pipecat_hedge.race.task_scope import TaskScope

    return TaskScope
