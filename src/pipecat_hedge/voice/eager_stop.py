"""Begins to answer when the caller falls silent, before the recogniser's final transcript.

Final transcripts of ordinary recognisers come 0.25 to 1 s after the end of speech (median time to
final transcript in pipecat-ai/stt-benchmark). In this time the answer to the interim transcript is
generated, and held by Pipecat's speculation gate. The final transcript confirms it, if it says the
same, or withdraws it. Recognisers that predict the end of a turn themselves (Deepgram Flux) have
Pipecat's ``EagerUserTurnStopStrategy``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    InterimTranscriptionFrame,
    LLMMessagesAppendFrame,
    LLMMessagesTransformFrame,
    LLMMessagesUpdateFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameProcessorSetup
from pipecat.turns.types import ProcessFrameResult, UserTurnSpeculation
from pipecat.turns.user_stop import (
    BaseUserTurnStopStrategy,
    EagerMatchPolicy,
    NormalizedMatch,
    UserTurnStoppedParams,
)
from pipecat.turns.user_turn_strategies import default_user_turn_stop_strategies

MOST_TRIES = 3
"""Speculations in one turn. A caller who pauses often would otherwise cost a request per pause."""
_CONTEXT_CHANGES = (LLMMessagesAppendFrame, LLMMessagesTransformFrame, LLMMessagesUpdateFrame)
_REASONS = (
    *(VADUserStoppedSpeakingFrame, InterimTranscriptionFrame, TranscriptionFrame),
    *_CONTEXT_CHANGES,
)
"""Frames after which an answer may be begun."""
_DECISIONS = ("on_user_turn_inference_triggered", "on_user_turn_stopped")


class EagerStopStrategy(BaseUserTurnStopStrategy):
    """Speculates at the end of speech, and leaves the end of the turn to another strategy.

    Example::

        LLMUserAggregatorParams(
            user_turn_strategies=UserTurnStrategies(stop=[EagerStopStrategy()])
        )

    A turn costs up to three requests instead of one, to the first provider alone. Tools do not run
    before the turn has ended: Pipecat withdraws a speculation that calls one.
    """

    def __init__(
        self,
        inner: BaseUserTurnStopStrategy | None = None,
        *,
        match_policy: EagerMatchPolicy | None = None,
        is_ready: Callable[[str], bool] = lambda text: True,
        **kwargs: Any,
    ):
        """Wrap the strategy that ends turns.

        Args:
            inner: Decides when a turn has ended. Defaults to Pipecat's default, which analyses the
                caller's voice.
            match_policy: Whether the final transcript says the same as the one that was answered.
                Defaults to ``NormalizedMatch``, which ignores case and punctuation.
            is_ready: Whether a transcript can be answered, such as the ``is_ready_for`` of a
                ``RetrievalProcessor``. It is asked again when the context changes.
            **kwargs: Further arguments of ``BaseUserTurnStopStrategy``.
        """
        super().__init__(**kwargs)
        self._inner = inner or default_user_turn_stop_strategies()[0]
        self._match_policy = match_policy or NormalizedMatch()
        self._is_ready = is_ready
        self._finals: list[str] = []
        self._interim = ""
        self._is_silent = False
        self._tries = 0
        self._speculation: UserTurnSpeculation | None = None
        self._is_confirmed = False
        self._inner.add_event_handler("on_user_turn_inference_triggered", self._on_inference)
        self._inner.add_event_handler("on_user_turn_stopped", self._on_stopped)

    @property
    def resolves_proposed_turn_stop_frames(self) -> bool:
        """What the wrapped strategy does with proposals."""
        return self._inner.resolves_proposed_turn_stop_frames

    def add_event_handler(self, event_name: str, handler: Any) -> None:
        """Subscribe to this strategy's decisions, or to the wrapped one's other events."""
        if event_name not in _DECISIONS:
            self._inner.add_event_handler(event_name, handler)
        super().add_event_handler(event_name, handler)

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up the wrapped strategy."""
        await super().setup(setup)
        await self._inner.setup(setup)

    async def cleanup(self) -> None:
        """Clean up the wrapped strategy."""
        await super().cleanup()
        await self._inner.cleanup()

    async def handle_user_turn_started(self) -> None:
        """Begin a turn."""
        await self._begin()
        await self._inner.handle_user_turn_started()

    async def handle_user_turn_stopped(self) -> None:
        """Discard the state of a turn that has ended."""
        await self._begin()
        await self._inner.handle_user_turn_stopped()

    async def process_frame(self, frame: Frame) -> ProcessFrameResult | None:
        """Speculate at the end of speech, and again if the transcript or the context changes."""
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._is_silent = False
            await self._withdraw()
        elif isinstance(frame, EagerEndOfTurnCancelFrame):  # the answer wanted a tool
            self._speculation, self._tries = None, MOST_TRIES
        elif isinstance(frame, _CONTEXT_CHANGES):  # such as with documents for this turn
            await self._withdraw()
        elif isinstance(frame, InterimTranscriptionFrame):
            self._interim = frame.text
        elif isinstance(frame, TranscriptionFrame):
            self._finals.append(frame.text)
            self._interim = ""
        result = await self._inner.process_frame(frame)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            self._is_silent = True
        if self._is_silent and isinstance(frame, _REASONS):
            await self._speculate()
        return result

    @property
    def _text(self) -> str:
        return " ".join(text.strip() for text in (*self._finals, self._interim) if text.strip())

    async def _begin(self) -> None:
        await self._withdraw()
        self._finals, self._interim, self._tries = [], "", 0
        self._is_silent = self._is_confirmed = False

    async def _speculate(self) -> None:
        """Answer what has been recognised, unless that is being answered already."""
        text = self._text
        if not text or self._is_confirmed or self._is_answered(text):
            return
        await self._withdraw()
        if self._tries < MOST_TRIES and self._is_ready(text):
            self._tries += 1
            self._speculation = UserTurnSpeculation(text=text)
            await self.trigger_user_turn_inference_triggered(speculation=self._speculation)

    def _is_answered(self, text: str) -> bool:
        return self._speculation is not None and self._match_policy.matches(
            self._speculation.text, text
        )

    async def _withdraw(self) -> None:
        if self._speculation is not None:
            self._speculation = None
            await self.trigger_user_turn_speculation_cancelled()

    # ---- the wrapped strategy's decisions

    async def _on_inference(
        self, _: BaseUserTurnStopStrategy, speculation: UserTurnSpeculation | None
    ) -> None:
        self._is_confirmed = self._is_answered(self._text)
        if self._is_confirmed:
            self._speculation = None
            return
        await self._withdraw()
        self._tries = MOST_TRIES  # the turn's own answer is on its way
        await self.trigger_user_turn_inference_triggered(speculation=speculation)

    async def _on_stopped(self, _: BaseUserTurnStopStrategy, params: UserTurnStoppedParams) -> None:
        await self.trigger_user_turn_finalized(
            enable_user_speaking_frames=params.enable_user_speaking_frames,
            confirms_speculation=self._is_confirmed,
        )
