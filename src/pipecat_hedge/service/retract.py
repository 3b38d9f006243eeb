"""Retracts the start of an unfinished sentence before it is spoken.

A text-to-speech that speaks whole sentences holds the start of the next one. If the answer breaks
off there, the start would be spoken at the end. Pipecat has no frame to retract it except an
interruption, which also stops the current sentence. So a frame of our own follows the text, and the
sentence aggregator drops the start when it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakSet

from pipecat.frames.frames import ControlFrame, Frame
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.utils.text.base_text_aggregator import BaseTextAggregator

_AGGREGATORS = ("_text_aggregator", "_skipped_text_aggregator")
"""The attributes in which Pipecat's processors keep their sentence aggregators."""


@dataclass
class RetractTextFrame(ControlFrame):
    """The last text that was pushed must not be spoken.

    Parameters:
        text: The text since the last whole sentence.
    """

    text: str = ""


class RetractText:
    """Makes sentence-collecting processors handle ``RetractTextFrame``."""

    def __init__(self) -> None:
        """Start without processors."""
        self._attached: WeakSet[FrameProcessor] = WeakSet()

    def attach(self, processor: FrameProcessor) -> None:
        """Make ``processor`` handle the frame; repeated calls do nothing."""
        if processor not in self._attached:
            self._attached.add(processor)
            processor.add_event_handler("on_before_process_frame", _forget)


async def _forget(processor: FrameProcessor, frame: Frame) -> None:
    if not isinstance(frame, RetractTextFrame):
        return
    for name in _AGGREGATORS:
        aggregator = getattr(processor, name, None)
        if not isinstance(aggregator, BaseTextAggregator):
            continue
        # Only the retracted text: an aggregator with rules of its own may hold more.
        if aggregator.text.text.strip() == frame.text.strip():
            await aggregator.reset()
