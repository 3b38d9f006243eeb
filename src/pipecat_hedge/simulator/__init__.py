"""Simulated LLM providers on loopback, for tests, demonstrations and benchmarks without keys."""

from pipecat_hedge.profiles import PROFILES, LatencyProfile
from pipecat_hedge.simulator.ledger import Ledger, LedgerEntry
from pipecat_hedge.simulator.process import SimulatorProcess
from pipecat_hedge.simulator.server import Simulator

__all__ = [
    "PROFILES",
    "LatencyProfile",
    "Ledger",
    "LedgerEntry",
    "Simulator",
    "SimulatorProcess",
]
