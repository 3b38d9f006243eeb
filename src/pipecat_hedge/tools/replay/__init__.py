"""A caller made of recordings: calls a bot over WebRTC, speaks, and measures what it hears.

Nothing here is loaded before it is used: the pytest plugin is imported in every test run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.tools.replay.audio import (
        RATE,
        Recording,
        Utterance,
        load_manifest,
        one_utterance,
        read_samples,
        utterances,
    )
    from pipecat_hedge.tools.replay.bots import Bot, BotFailed, CallableBot, CommandBot
    from pipecat_hedge.tools.replay.conversation import Conversation, TurnResult
    from pipecat_hedge.tools.replay.peer import Caller, CallError, HungUp, Network, Said
    from pipecat_hedge.tools.replay.report import check_folder, print_table, write_report
    from pipecat_hedge.tools.replay.rtvi import Message
    from pipecat_hedge.tools.replay.run import Call, Replay, replay
    from pipecat_hedge.tools.replay.summary import Figures, Summary, summarise

__all__ = [
    "RATE",
    "Bot",
    "BotFailed",
    "Call",
    "CallError",
    "CallableBot",
    "Caller",
    "CommandBot",
    "Conversation",
    "Figures",
    "HungUp",
    "Message",
    "Network",
    "Recording",
    "Replay",
    "Said",
    "Summary",
    "TurnResult",
    "Utterance",
    "check_folder",
    "load_manifest",
    "one_utterance",
    "print_table",
    "read_samples",
    "replay",
    "summarise",
    "utterances",
    "write_report",
]

_MODULES = ("audio", "rtvi", "peer", "bots", "conversation", "run", "summary", "report")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            found = import_module(f"{__name__}.{module}")
            if name in found.__all__:
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
