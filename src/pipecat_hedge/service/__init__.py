"""The hedged LLM service: one processor in the pipeline, several providers behind it."""

from pipecat_hedge.service.admission import Admission, AdmissionMode
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.candidates import Candidates, ProviderMember, choose_candidates
from pipecat_hedge.service.composition import default_store, write_logs
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.known_answers import KnownAnswers, Question
from pipecat_hedge.service.metrics import HedgeMetricsData
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.service.sentences import is_whole_sentence
from pipecat_hedge.service.stages import Stages
from pipecat_hedge.service.token_budget import TokenBudget
from pipecat_hedge.service.turn import CONTINUE
from pipecat_hedge.service.turn_planner import TurnPlanner, breaker_report, state_of
from pipecat_hedge.service.turn_report import report_drained, report_turn
from pipecat_hedge.service.wires import WireEvent, WireReader, is_rare, parsed

__all__ = [
    "CONTINUE",
    "Admission",
    "AdmissionMode",
    "AttemptStats",
    "Candidates",
    "EventHub",
    "HedgeMetricsData",
    "HedgedLLMService",
    "KnownAnswers",
    "Provider",
    "ProviderAttempt",
    "ProviderMember",
    "ProviderRace",
    "ProviderStats",
    "Question",
    "Stages",
    "TokenBudget",
    "TurnPlanner",
    "WireEvent",
    "WireReader",
    "breaker_report",
    "choose_candidates",
    "default_store",
    "is_rare",
    "is_whole_sentence",
    "parsed",
    "report_drained",
    "report_turn",
    "state_of",
    "write_logs",
]
