"""Calls a voice bot over WebRTC with recordings, and measures what the caller hears.

Names are imported on first use: the pytest plugin is loaded in every test run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.tools.replay.audio import (
        RATE,
        Recording,
        Utterance,
        load_manifest,
        read_samples,
        utterances,
    )
    from pipecat_hedge.tools.replay.bots import CommandBot
    from pipecat_hedge.tools.replay.conversation import TurnResult
    from pipecat_hedge.tools.replay.peer import Caller, CallError, Network
    from pipecat_hedge.tools.replay.report import check_folder, write_report
    from pipecat_hedge.tools.replay.rtvi import Message
    from pipecat_hedge.tools.replay.run import Call, Replay, replay
    from pipecat_hedge.tools.replay.summary import Summary, summarise

__all__ = [
    "RATE",
    "Call",
    "CallError",
    "Caller",
    "CommandBot",
    "Message",
    "Network",
    "Recording",
    "Replay",
    "Summary",
    "TurnResult",
    "Utterance",
    "check_folder",
    "load_manifest",
    "read_samples",
    "replay",
    "summarise",
    "utterances",
    "write_report",
]

_MODULES = ("audio", "rtvi", "peer", "conversation", "bots", "summary", "report", "run")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    return next(getattr(module, name) for module in modules if hasattr(module, name))
