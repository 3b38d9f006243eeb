"""Taking back the beginning of a sentence that nobody will finish, before it is spoken.

A text-to-speech that speaks by sentences speaks one when it sees the next begin, so a beginning
has been handed to it when an answer breaks off. It has not been spoken: it waits for its other
half, and would be spoken alone when the answer ends. No frame of Pipecat takes it back short of an
interruption, which would also stop the sentence being spoken; so a frame of our own travels
behind the text, and what collects the sentences forgets the beginning when the frame reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakSet

from pipecat.frames.frames import ControlFrame, Frame
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.utils.text.base_text_aggregator import BaseTextAggregator

__all__ = ["RetractText", "RetractTextFrame"]

_AGGREGATORS = ("_text_aggregator", "_skipped_text_aggregator")
"""Where Pipecat's services and processors collect sentences, spoken ones and silent ones."""


@dataclass
class RetractTextFrame(ControlFrame):
    """The last text that was pushed is not to be spoken.

    Parameters:
        text: The text, from the last whole sentence on.
    """

    text: str = ""


class RetractText:
    """Has processors that collect sentences obey ``RetractTextFrame``."""

    def __init__(self) -> None:
        """Begin with none."""
        self._attached: WeakSet[FrameProcessor] = WeakSet()

    def attach(self, processor: FrameProcessor) -> None:
        """Have ``processor`` obey; once is enough, and more do no harm."""
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
        # Only what was taken back: an aggregator with rules of its own may hold more.
        if aggregator.text.text.strip() == frame.text.strip():
            await aggregator.reset()
