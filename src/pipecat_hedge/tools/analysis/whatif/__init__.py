"""What another policy would have done to the turns of yesterday, and at what cost."""

from pipecat_hedge.tools.analysis.whatif.answer import Answer, Outcome
from pipecat_hedge.tools.analysis.whatif.question import Costs, Question
from pipecat_hedge.tools.analysis.whatif.reading import (
    Measured,
    ReadingError,
    Recorded,
    read_latencies,
)
from pipecat_hedge.tools.analysis.whatif.replaying import what_if

__all__ = [
    "Answer",
    "Costs",
    "Measured",
    "Outcome",
    "Question",
    "ReadingError",
    "Recorded",
    "read_latencies",
    "what_if",
]
