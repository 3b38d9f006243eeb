"""Simulated LLMs, recognisers and voices on loopback, for tests and benchmarks without keys."""

from pipecat_hedge.tools.simulator.behaviour import BehaviourError, parse_model, read_conditions
from pipecat_hedge.tools.simulator.ledger import LedgerEntry
from pipecat_hedge.tools.simulator.process import SimulatorProcess
from pipecat_hedge.tools.simulator.server import Simulator
from pipecat_hedge.tools.simulator.speech import Recordings
from pipecat_hedge.tools.simulator.timeline import (
    FAULTS,
    SPEECH_FAULTS,
    VOICE_FAULTS,
    tokenize,
)
from pipecat_hedge.tools.simulator.voice_sound import LETTER_HZ, LETTER_SECS

__all__ = [
    "FAULTS",
    "LETTER_HZ",
    "LETTER_SECS",
    "SPEECH_FAULTS",
    "VOICE_FAULTS",
    "BehaviourError",
    "LedgerEntry",
    "Recordings",
    "Simulator",
    "SimulatorProcess",
    "parse_model",
    "read_conditions",
    "tokenize",
]
