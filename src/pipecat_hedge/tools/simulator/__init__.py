"""Simulated LLM providers and recognisers on loopback, for tests and benchmarks without keys."""

from pipecat_hedge.tools.simulator.behaviour import BehaviourError, parse_model, read_conditions
from pipecat_hedge.tools.simulator.ledger import LedgerEntry
from pipecat_hedge.tools.simulator.process import SimulatorProcess
from pipecat_hedge.tools.simulator.server import Simulator
from pipecat_hedge.tools.simulator.speech import Recordings
from pipecat_hedge.tools.simulator.timeline import FAULTS, SPEECH_FAULTS, tokenize

__all__ = [
    "FAULTS",
    "SPEECH_FAULTS",
    "BehaviourError",
    "LedgerEntry",
    "Recordings",
    "Simulator",
    "SimulatorProcess",
    "parse_model",
    "read_conditions",
    "tokenize",
]
