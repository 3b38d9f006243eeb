"""Looks documents up while the caller speaks, and puts them into the turn's context.

A retrieval begins with an interim transcript that goes on like the one before, and again when the
words have changed meanwhile, one at a time. The latest words' documents go into the context. The
final transcript waits for them until the deadline, and then the turn goes without. The transcript
of a predicted end of turn, from which an answer is begun as well, waits in the same way, but lets
the final one pass.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, cast

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EagerEndOfTurnCancelFrame,
    EagerTranscriptionFrame,
    EndFrame,
    Frame,
    InterimTranscriptionFrame,
    LLMMessagesTransformFrame,
    TranscriptionFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContextMessage
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from pipecat_hedge.policy.arguments import require, require_number
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.retrieval.retriever import Document, Retriever, RetrieverRace
from pipecat_hedge.service.portable import AddedMessage

FEWEST_WORDS = 3
"""Words of an interim transcript before which no question can be recognised."""
CHARS_PER_TOKEN = 4
_QUESTIONS = re.compile(
    r"(?<=\?)\s+|,?\s+\b(?:and|also)\s+(?=(?:what|when|where|who|how|do|is|are|can)\b)", re.I
)
_WORDS = re.compile(r"\w+")
INSTRUCTION = "Passages that may answer the caller. Use them where they do, and no others:"


@dataclass(frozen=True, slots=True)
class RetrievalReport:
    """The retrieval of one turn.

    Parameters:
        documents: How many documents the turn got.
        retrieval_secs: How long the retrieval took that the turn used; None if none was ready.
        waited_secs: How long the final transcript was held back for it.
        retrievals: How many were begun.
    """

    documents: int
    retrieval_secs: float | None
    waited_secs: float
    retrievals: int

    @property
    def was_ready(self) -> bool:
        """Whether the documents were there before the turn ended."""
        return self.retrieval_secs is not None and self.waited_secs == 0.0

    @property
    def saved_secs(self) -> float:
        """The time that a retrieval at the turn's end would have taken longer."""
        return 0.0 if self.retrieval_secs is None else self.retrieval_secs - self.waited_secs


class RetrievalProcessor(FrameProcessor):
    """Stands between speech recognition and the user's aggregator.

    Event handlers available:

    - on_retrieval: Called with a ``RetrievalReport`` for each final transcript.

    Example::

        retrieval = RetrievalProcessor(FolderRetriever("documents"))
        pipeline = Pipeline([..., stt, retrieval, user_aggregator, llm, tts, ...])
    """

    def __init__(
        self,
        retriever: Retriever | Sequence[Retriever],
        *,
        deadline_secs: float = 0.25,
        max_tokens: int = 1_500,
        instruction: str = INSTRUCTION,
        policy: HedgePolicy | None = None,
        **kwargs: Any,
    ):
        """Create the processor.

        Args:
            retriever: Finds the documents; or several that find the same, which are hedged.
            deadline_secs: How long a final transcript waits for documents, in seconds.
            max_tokens: The most tokens of all documents, estimated from their length. They are
                taken by rank until it is reached.
            instruction: The text before the documents.
            policy: When the next of several retrievers is asked. Defaults to
                ``HedgePolicy.after(0.1)``.
            **kwargs: Further arguments of ``FrameProcessor``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        super().__init__(**kwargs)
        for name, value in (("deadline_secs", deadline_secs), ("max_tokens", max_tokens)):
            remedy = "leave it out for the default"
            require_number(name, value, "positive and finite", remedy, lambda x: 0 < x < math.inf)
        require("policy", policy, HedgePolicy, "write HedgePolicy.after(0.1)")
        remedy = "give the text before the documents"
        require("instruction", instruction, str, remedy, may_be_none=False)
        retrievers = retriever if isinstance(retriever, Sequence) else [retriever]
        for each in retrievers:
            if not hasattr(each, "retrieve"):
                raise ConfigurationError(
                    f"retriever must have a method retrieve(query), got {each!r}: write "
                    'FolderRetriever("documents")'
                )
        self._retriever = RetrieverRace(retrievers, policy or HedgePolicy.after(0.1))
        self._deadline_secs, self._max_chars = deadline_secs, max_tokens * CHARS_PER_TOKEN
        self._instruction = instruction
        self._finals: list[str] = []
        self._interim: list[str] = []
        self._wanted: Sequence[str] = ()
        self._query: list[str] = []
        self._retrieval: asyncio.Task[None] | None = None
        self._found: Sequence[Document] = ()
        self._ready_for: Sequence[str] = ()
        self._took_secs: float | None = None
        self._retrievals = 0
        self._held: asyncio.Task[None] | None = None  # forwards a predicted transcript
        self._message: LLMContextMessage | None = None
        self._register_event_handler("on_retrieval")

    def is_ready_for(self, text: str) -> bool:
        """Whether what was found for a transcript is in the context; see ``EagerStopStrategy``."""
        return _bare(text.split()) == self._ready_for

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Retrieve for transcripts, and forward all frames."""
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            await self._finish(frame)
        elif isinstance(frame, EagerTranscriptionFrame):
            await self._drop_held()
            self._held = asyncio.create_task(self._hold(frame), name=f"{self}: holds a transcript")
            return
        elif isinstance(frame, EagerEndOfTurnCancelFrame):
            await self._drop_held()
        elif isinstance(frame, InterimTranscriptionFrame):
            await self._follow(frame.text)
        elif isinstance(frame, UserStoppedSpeakingFrame):
            self._finals, self._interim, self._query, self._wanted = [], [], [], ()
            self._found, self._took_secs, self._retrievals, self._ready_for = (), None, 0, ()
        elif isinstance(frame, (EndFrame, CancelFrame)):
            await self._close()
        await self.push_frame(frame, direction)

    async def cleanup(self) -> None:
        """End the retrieval in progress."""
        await self._close()
        await super().cleanup()

    async def _follow(self, interim: str) -> None:
        """Retrieve for an interim transcript, if it goes on like the one before."""
        before, self._interim = self._interim, interim.split()
        is_stable = _bare(self._interim[: len(before) - 1]) == _bare(before[:-1])
        words = [*self._finals, *self._interim]
        if before and is_stable and len(words) >= FEWEST_WORDS and _bare(words) != self._query:
            self._wanted = words
            if self._retrieval is None or self._retrieval.done():
                self._begin()

    async def _finish(self, frame: TranscriptionFrame) -> None:
        """Have the documents of a turn ready, and report them."""
        self._finals += frame.text.split()
        self._interim = []
        if not self._finals:
            return
        await self._drop_held()
        waited_secs = await self._wait_for(self._finals)
        report = RetrievalReport(len(self._found), self._took_secs, waited_secs, self._retrievals)
        await self._call_event_handler("on_retrieval", report)

    async def _hold(self, predicted: EagerTranscriptionFrame) -> None:
        """Forward the transcript of a predicted end of turn when its documents are ready."""
        await self._wait_for([*self._finals, *predicted.text.split()])
        await self.push_frame(predicted)

    async def _wait_for(self, words: Sequence[str]) -> float:
        """Have the documents for a transcript in the context, or go without at the deadline.

        Returns:
            How long it took, in seconds.
        """
        if _bare(words) != self._query:
            await self._cancel()
            self._wanted = words
            self._begin()
        retrieval, loop = self._retrieval, asyncio.get_running_loop()
        began = loop.time()
        if retrieval is not None and not retrieval.done():
            await asyncio.wait([retrieval], timeout=self._deadline_secs)
            await self._cancel()
        if self._ready_for != self._query:  # it failed, or the deadline came first
            await self._put_into_context()
        return loop.time() - began

    def _begin(self) -> None:
        self._retrieval = asyncio.create_task(self._run(), name=f"{self}: retrieves")

    async def _run(self) -> None:
        """Retrieve until the latest words have been looked up."""
        while (words := self._wanted) and (query := _bare(words)) != self._query:
            self._query = query
            self._retrievals += 1
            await self._look_up(" ".join(words))
        await self._put_into_context()

    async def _look_up(self, text: str) -> None:
        loop = asyncio.get_running_loop()
        began, questions = loop.time(), [each for each in _QUESTIONS.split(text) if each.strip()]
        answers = await asyncio.gather(
            *(self._retriever.retrieve(question) for question in questions), return_exceptions=True
        )
        found = [each for each in answers if not isinstance(each, BaseException)]
        for error in answers:
            if isinstance(error, BaseException):
                logger.warning(f"{self}: a retrieval failed: {type(error).__name__}")
        if not found:
            return
        by_rank = chain.from_iterable(zip_longest(*found))
        self._found = self._within_budget(dict.fromkeys(each for each in by_rank if each))
        self._took_secs = loop.time() - began

    def _within_budget(self, ranked: Iterable[Document]) -> list[Document]:
        kept, chars = list[Document](), 0
        for document in ranked:
            chars += len(document.text) + len(document.source)
            if chars > self._max_chars:
                break
            kept.append(document)
        return kept

    async def _put_into_context(self) -> None:
        """Replace the documents of before; those of earlier turns would crowd the prompt."""
        self._ready_for = self._query
        before, documents = self._message, self._found
        if before is None and not documents:
            return
        after: list[LLMContextMessage] = []
        if documents:
            passages = (f"[{d.source}] {d.text}" if d.source else d.text for d in documents)
            text = "\n\n".join([self._instruction, *passages])
            after.append(cast("LLMContextMessage", AddedMessage(role="developer", content=text)))
        self._message = after[0] if after else None
        await self.push_frame(
            LLMMessagesTransformFrame(lambda messages: [*_without(messages, before), *after])
        )

    async def _close(self) -> None:
        await self._drop_held()
        await self._cancel()
        await self._retriever.close()

    async def _cancel(self) -> None:
        task, self._retrieval = self._retrieval, None
        await _end(task)

    async def _drop_held(self) -> None:
        task, self._held = self._held, None
        await _end(task)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task])


def _without(
    messages: list[LLMContextMessage], message: LLMContextMessage | None
) -> list[LLMContextMessage]:
    return [each for each in messages if each is not message]


def _bare(words: Sequence[str]) -> list[str]:
    """Return words without case and punctuation."""
    bare = ("".join(_WORDS.findall(word)).casefold() for word in words)
    return [word for word in bare if word]
