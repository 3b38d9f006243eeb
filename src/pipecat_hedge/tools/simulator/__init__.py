"""Simulated LLM providers on loopback, for tests, demonstrations and benchmarks without keys."""

from pipecat_hedge.policy.profiles import PROFILES, LatencyProfile
from pipecat_hedge.tools.simulator.ledger import Ledger, LedgerEntry
from pipecat_hedge.tools.simulator.process import SimulatorProcess
from pipecat_hedge.tools.simulator.server import Simulator

__all__ = [
    "PROFILES",
    "LatencyProfile",
    "Ledger",
    "LedgerEntry",
    "Simulator",
    "SimulatorProcess",
]
