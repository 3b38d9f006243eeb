"""Voice-side timing: the wait for transcripts, fillers while an answer is late, turns' latencies.

Names are imported on first use: not all of them need Pipecat.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipecat_hedge.voice.audio_file import read_audio
    from pipecat_hedge.voice.eager_stop import EagerStopStrategy
    from pipecat_hedge.voice.filler import FillerProcessor
    from pipecat_hedge.voice.hedged_stt import HedgedSTTService
    from pipecat_hedge.voice.hedged_tts import HedgedTTSService, Voice
    from pipecat_hedge.voice.transcript_timing import TranscriptTiming
    from pipecat_hedge.voice.turn_latency import TurnLatencyObserver
    from pipecat_hedge.voice.turn_timeline import TurnLatency

__all__ = [
    "EagerStopStrategy",
    "FillerProcessor",
    "HedgedSTTService",
    "HedgedTTSService",
    "TranscriptTiming",
    "TurnLatency",
    "TurnLatencyObserver",
    "Voice",
    "read_audio",
]

_MODULES = {
    "audio_file": ("read_audio",),
    "eager_stop": ("EagerStopStrategy",),
    "filler": ("FillerProcessor",),
    "hedged_stt": ("HedgedSTTService",),
    "hedged_tts": ("HedgedTTSService", "Voice"),
    "transcript_timing": ("TranscriptTiming",),
    "turn_latency": ("TurnLatencyObserver",),
    "turn_timeline": ("TurnLatency",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
