"""One turn as a race: a pure state machine, and its drivers in real and virtual time."""

from pipecat_hedge.race.attempt import Attempt
from pipecat_hedge.race.continuation import Continuation
from pipecat_hedge.race.driver import AttemptSink
from pipecat_hedge.race.errors import (
    AllProvidersFailed,
    AttemptError,
    ConfigurationError,
    HedgeError,
    missing_extra,
)
from pipecat_hedge.race.events import (
    AttemptOutcome,
    Commit,
    Continue,
    InFlight,
    Launch,
    LaunchDecision,
    LaunchReason,
    Slot,
    StreamBroken,
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
    SpeechReport,
    StageReport,
    Tier,
    TranscriptReport,
    TurnReport,
)
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.race.usable import is_usable_text
from pipecat_hedge.race.virtual import Latency, run_virtual

__all__ = [
    "TIERS",
    "AllProvidersFailed",
    "Attempt",
    "AttemptError",
    "AttemptOutcome",
    "AttemptReport",
    "AttemptSink",
    "BreakerReport",
    "Commit",
    "ConfigurationError",
    "Continuation",
    "Continue",
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
    "SpeechReport",
    "StageReport",
    "StreamBroken",
    "TaskScope",
    "Tier",
    "TranscriptReport",
    "TurnOutcome",
    "TurnReport",
    "Waiting",
    "is_usable_text",
    "missing_extra",
    "run_virtual",
]
