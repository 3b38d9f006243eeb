"""The hedged LLM service: one processor in the pipeline, several providers behind it."""

from pipecat_hedge.service.admission_terms import AdmissionMode
from pipecat_hedge.service.attempt_stats import AttemptStats
from pipecat_hedge.service.candidates import TurnMembers
from pipecat_hedge.service.composition import default_store, store_named, write_logs
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.known_answers import KnownAnswers, Question
from pipecat_hedge.service.member import Member
from pipecat_hedge.service.metrics import HedgeMetricsData
from pipecat_hedge.service.planned_turn import TurnSpec
from pipecat_hedge.service.provider import Provider
from pipecat_hedge.service.provider_race import ProviderAttempt, ProviderRace
from pipecat_hedge.service.provider_states import breaker_report, states_of
from pipecat_hedge.service.provider_stats import VERSION as STATS_VERSION
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.service.sentences import is_whole_sentence
from pipecat_hedge.service.stages import Stages
from pipecat_hedge.service.token_budget import TokenBudget
from pipecat_hedge.service.turn import CONTINUE
from pipecat_hedge.service.turn_report import TurnRecord, report_drained, report_turn
from pipecat_hedge.service.wires import WireEvent, WireReader, is_rare, parsed

__all__ = [
    "CONTINUE",
    "STATS_VERSION",
    "AdmissionMode",
    "AttemptStats",
    "EventHub",
    "HedgeMetricsData",
    "HedgedLLMService",
    "KnownAnswers",
    "Member",
    "Provider",
    "ProviderAttempt",
    "ProviderRace",
    "ProviderStats",
    "Question",
    "Stages",
    "TokenBudget",
    "TurnMembers",
    "TurnRecord",
    "TurnSpec",
    "WireEvent",
    "WireReader",
    "breaker_report",
    "default_store",
    "is_rare",
    "is_whole_sentence",
    "parsed",
    "report_drained",
    "report_turn",
    "shared_stats",
    "states_of",
    "store_named",
    "write_logs",
]
