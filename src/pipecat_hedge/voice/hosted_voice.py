"""Hosts a text-to-speech service: it synthesises, and says nothing itself.

A request is a ``TTSSpeakFrame`` with a context of its own. What the service would queue in its
audio contexts is taken from it on the instance.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
from loguru import logger
from pipecat.audio.utils import create_stream_resampler, detect_speech_onset
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    StartFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.tts_service import (
    InterruptibleTTSService,
    TTSService,
    WebsocketTTSService,
)
from pipecat.utils.context.word_timestamp_tracker import WordTimestamp
from pipecat.utils.errors import ErrorCategory

from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.providers.permits import Permit
from pipecat_hedge.race.errors import AttemptError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.pipecat_private import (
    allow_silence,
    connect,
    connect_one_by_one,
    disconnect,
    forget_text,
    has_connection,
    has_no_reader,
    on_connection_lost,
    pauses_for_audio,
)
from pipecat_hedge.service.provider_client import (
    Rejection,
    attempt_error,
    capture_responses,
    exception_error,
    is_rejection,
    report_responses,
)
from pipecat_hedge.voice.spoken_words import (
    CHAR_SECS,
    ENOUGH_CHARS,
    is_rest,
    said_chars,
    spoken_length,
)

SILENCE_SECS = 3.0
"""The longest time in which no other voice is asked, as ``silence_secs`` of ``HedgePolicy``."""
LATE_SECS = 1.0
"""A voice that is silent for longer, and for longer than in its last hundred sentences, is late."""
ONSET_SECS = 0.2
"""The audio that is searched for the beginning of speech; Pipecat's detector needs 0.05 s of it."""
LEAST_PART = 0.6
"""A sentence without an end or word times is whole if it sounds for this part of its usual time."""
_CLOSED = AttemptError(ErrorCategory.CONNECTIVITY.value, "the connection was closed")
_EMPTY = AttemptError("empty", "ended without a sound")


class Synthesis:
    """One request: a text, and what has come of it.

    Attributes:
        voice: Who was asked.
        text: The text.
        asked_at: When, in the loop's time.
        audible_at: When its first audible audio came; None if none has.
        audio_secs: The audio that has come.
        words: The words that have been timed, with their seconds from the start of the audio.
        is_ended: Whether the service has said that it is whole.
        error: Why it failed; None if it has not.
        heard_at: When its latest audio came.
        rejection: The latest error response over HTTP; None without one.
        is_sent: Whether the service has got it, at ``sent_at``: it may wait for an earlier one.
        permit: That of the request, to learn from it.
    """

    def __init__(
        self,
        voice: HostedVoice,
        text: str,
        changed: Callable[[], None],
        sent: Callable[[], None],
    ):
        self.voice, self.text = voice, text
        self.context_id = str(uuid.uuid4())
        self.asked_at = asyncio.get_running_loop().time()
        self.audible_at: float | None = None
        self.heard_at = self.asked_at
        self.audio_secs = 0.0
        self.words: list[tuple[str, float]] = []
        self.is_ended = False
        self.error: AttemptError | None = None
        self.rejection: Any = None
        self.sent_at = self.asked_at
        self.is_sent = False
        self.has_context = False  # as far as the service knows
        self.permit: Permit | None = None
        self._items: deque[TTSAudioRawFrame | WordTimestamp] = deque()
        self._ahead: deque[WordTimestamp] = deque()  # words whose sound has not come
        self._searched = b""
        self._resampler = create_stream_resampler(clear_after_secs=None)
        self._changed, self._sent = changed, sent

    def take(self) -> list[TTSAudioRawFrame | WordTimestamp]:
        """The audio and words that have come since the last call."""
        taken = list(self._items)
        self._items.clear()
        return taken

    def send(self) -> None:
        """The service gets it now."""
        self.is_sent, self.sent_at = True, asyncio.get_running_loop().time()
        self._sent()

    @property
    def has_more(self) -> bool:
        """Whether something has come that was not taken."""
        return bool(self._items)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.is_ended or self.error is not None

    @property
    def said(self) -> int:
        """How many characters of the text its audio has; see ``said_chars``."""
        return said_chars(self.text, self.words, self.audio_secs, self.voice.char_secs)

    @property
    def is_said(self) -> bool:
        """Whether its audio has all of the text, by the words or, without any, by its length."""
        usual_secs = self.voice.char_secs * spoken_length(self.text)
        if not self.words and self.audio_secs >= LEAST_PART * usual_secs:
            return True
        return not is_rest(self.text, self.said)

    def fail(self, error: AttemptError) -> None:
        """Nothing more comes."""
        if not self.is_over:
            self.error = error
            self._changed()

    def take_response(self, response: Any) -> None:
        """Note a response over HTTP: services drop the one behind an error."""
        if is_rejection(response):
            self.rejection = response

    async def end(self, sample_rate: int) -> None:
        """The service says that it is whole."""
        if not self.is_over:
            self._take_audio(await self._resampler.flush(), sample_rate)
            self._take_words(math.inf)
            self.is_ended = self.audible_at is not None
            self.error = None if self.is_ended else _EMPTY
            self._changed()

    async def append(self, item: Frame | WordTimestamp, sample_rate: int) -> None:
        """Take what the service has sent."""
        if isinstance(item, TTSAudioRawFrame):
            await self._append_audio(item, sample_rate)
        elif isinstance(item, WordTimestamp):
            self.words.append((item.word, item.timestamp))
            self._ahead.append(item)
            self._take_words(self.audio_secs)
        elif isinstance(item, TTSStoppedFrame):
            await self.end(sample_rate)
        self._changed()

    def _take_words(self, until_secs: float) -> None:
        """Only those that are heard: another request says the others, if this one breaks off."""
        while self._ahead and self._ahead[0].timestamp < until_secs:
            self._items.append(self._ahead.popleft())

    async def _append_audio(self, frame: TTSAudioRawFrame, sample_rate: int) -> None:
        if frame.num_channels > 1:
            samples = np.frombuffer(frame.audio, np.int16).reshape(-1, frame.num_channels)
            frame.audio = samples.mean(axis=1).astype(np.int16).tobytes()
        audio = await self._resampler.resample(frame.audio, frame.sample_rate, sample_rate)
        self._take_audio(audio, sample_rate)

    def _take_audio(self, audio: bytes, sample_rate: int) -> None:
        if not audio:
            return
        self.heard_at = asyncio.get_running_loop().time()
        frame = TTSAudioRawFrame(audio, sample_rate, 1)
        self.audio_secs += frame.num_frames / sample_rate
        self._take_words(self.audio_secs)
        self._items.append(frame)
        if self.audible_at is None:
            self._searched += audio
            if detect_speech_onset(self._searched, sample_rate) is not None:
                self.audible_at, self._searched = self.heard_at, b""
            else:
                self._searched = self._searched[-2 * int(ONSET_SECS * sample_rate) :]


class HostedVoice:
    """A service that synthesises for another one.

    Attributes:
        name: The voice's name.
        service: The service.
        speaker: The number of the person that is heard: voices of the same number sound alike.
        open: Its unfinished requests, by context.
        first_sound_secs: The times to the first sound of its last sentences.
        char_secs: What a character takes it.
    """

    def __init__(
        self,
        name: str,
        service: TTSService,
        speaker: int,
        held_back: Callable[[HostedVoice, float], None],
    ):
        """Host a service.

        Args:
            name: The voice's name.
            service: The service.
            speaker: The number of the person that is heard.
            held_back: Called with the voice and the seconds of a ``Retry-After``.
        """
        self.name, self.service, self.speaker = name, service, speaker
        self._held_back = held_back
        self.open: dict[str, Synthesis] = {}
        self.first_sound_secs: deque[float] = deque(maxlen=100)
        self.char_secs = CHAR_SECS
        self._asking: Synthesis | None = None
        self._sample_rate = 0
        self._queue: list[Synthesis | Frame] = []  # what the service is to get, in order
        self._is_busy = False  # with the first of them
        self._tasks: dict[str, TaskScope] = {}
        self._scope = TaskScope()
        self._is_ending = False
        self._is_free = asyncio.Event()
        for method in (
            *("create_context_id", "create_audio_context", "append_to_audio_context"),
            *("remove_audio_context", "audio_context_available", "get_audio_contexts"),
            *("get_active_audio_context_id", "has_active_audio_context"),
            *("remove_active_audio_context", "reset_active_audio_context", "push_frame"),
        ):
            setattr(service, method, getattr(self, f"_{method}"))
        on_connection_lost(service, self._connection_closed)
        connect_one_by_one(service)
        allow_silence(service)

    @property
    def backend(self) -> Backend:
        """Its name in what is learned, with the model and voice, as in ``sonic-3/7c5a``."""
        settings: Any = self.service.settings
        named = (getattr(settings, "model", None), getattr(settings, "voice", None))
        model = "/".join(each for each in named if isinstance(each, str)) or None
        return Backend(self.name, model, measures="speech")

    def learn_pace(self, asked: Synthesis) -> None:
        """Learn what a character takes from a text that was said to its end.

        In a short one, the silence around it would count as much as its words.
        """
        if (length := spoken_length(asked.text)) < ENOUGH_CHARS:
            return
        rate = asked.audio_secs / length
        weight = 1.0 if self.char_secs == CHAR_SECS else 0.2
        self.char_secs += weight * (rate - self.char_secs)

    @property
    def late_secs(self) -> float:
        """When another voice is asked at the latest, whatever it costs."""
        return min(max((LATE_SECS, *self.first_sound_secs)), SILENCE_SECS)

    @property
    def one_at_a_time(self) -> bool:
        """Whether the service cannot tell whose audio it gets, so that requests must wait."""
        service = self.service
        return isinstance(service, InterruptibleTTSService) or pauses_for_audio(service)

    @property
    def hides_silence(self) -> bool:
        """Whether a silent request keeps others from being answered until it is given up."""
        return self.one_at_a_time and isinstance(self.service, WebsocketTTSService)

    def is_at(self, asked: Synthesis) -> bool:
        """Whether the service still works at a request, and others wait: over HTTP, to its end."""
        return self._asking is asked

    async def setup(self, setup: FrameProcessorSetup, sample_rate: int) -> None:
        """Set the service up; its audio is brought to a sample rate."""
        self._sample_rate = sample_rate
        await self.service.setup(setup)

    def start(self, frame: StartFrame) -> None:
        """Start the service; nothing waits for its handshake."""
        self._scope.start(self._process(frame), name=f"starts {self.name}")

    async def end(self, frame: EndFrame | CancelFrame) -> None:
        """End the service; a handshake that hangs would hold up the end."""
        self._is_ending = True
        await self._scope.close()
        await self._process(frame)

    async def update(self, frame: Frame) -> None:
        """Change its settings, once the sentences before have been asked of it."""
        await asyncio.sleep(0)  # they queue for their turn by then
        self._scope.start(self._update(frame), name=f"updates {self.name}")

    async def _update(self, frame: Frame) -> None:
        async with self._turn_of(frame):
            try:
                await self._process(frame)
            except Exception as error:
                logger.warning(f"{self.name}: settings not changed: {type(error).__name__}")
                logger.debug(f"{self.name}: {error}")

    async def close(self) -> None:
        """Release its resources."""
        await self._scope.close()
        await self.service.cleanup()

    async def _process(self, frame: Frame) -> None:
        await self.service.process_frame(frame, FrameDirection.DOWNSTREAM)

    # ---- requests

    def ask(
        self,
        text: str,
        changed: Callable[[], None],
        sent: Callable[[], None],
        *,
        is_urgent: bool = False,
    ) -> Synthesis:
        """Ask for a text.

        Args:
            text: The text.
            changed: Called when something has come of it.
            sent: Called when the service gets it: it may have to wait for an earlier one.
            is_urgent: Whether those that wait are for what is said after it.
        """
        asked = Synthesis(self, text, changed, sent)
        scope = self._tasks[asked.context_id] = TaskScope()
        work = self._send(asked, is_urgent=is_urgent)
        scope.start(work, name=f"{self.name} synthesises")
        return asked

    @asynccontextmanager
    async def _turn_of(
        self, item: Synthesis | Frame, *, is_urgent: bool = False
    ) -> AsyncIterator[None]:
        """Wait until the service has got what is before an item, and can tell its audio."""
        self._queue.insert(0 if is_urgent else len(self._queue), item)
        try:
            while not self._is_turn_of(item):
                self._is_free.clear()
                await self._is_free.wait()
            self._is_busy = True
            try:
                yield
            finally:
                self._is_busy = False
        finally:
            self._queue.remove(item)
            self._is_free.set()

    def _is_turn_of(self, item: Synthesis | Frame) -> bool:
        must_wait = self.one_at_a_time and self.open and isinstance(item, Synthesis)
        return not self._is_busy and self._queue[0] is item and not must_wait

    async def _send(self, asked: Synthesis, *, is_urgent: bool) -> None:
        async with self._turn_of(asked, is_urgent=is_urgent):
            if is_unread := has_no_reader(self.service):
                await disconnect(self.service)
            self.open[asked.context_id] = asked
            asked.send()
            self._asking = asked
            report_responses(self.service)
            try:
                if not self.service.is_usable:
                    await self.service.set_usable(True)
                with capture_responses(asked.take_response):
                    if is_unread:
                        await connect(self.service)
                    if not asked.is_over:
                        await self._process(TTSSpeakFrame(asked.text, append_to_context=False))
            except Exception as error:
                self._fail(exception_error(error, has_begun=asked.audio_secs > 0), asked)
            finally:
                self._asking = None
                # Where services count the seconds of a turn, they do until they push its end.
                await type(self.service).push_frame(self.service, TTSStoppedFrame())

    async def finish(self, asked: Synthesis) -> None:
        """End a request, whatever has come of it; nothing of it stays in the service."""
        if (scope := self._tasks.pop(asked.context_id, None)) is None:
            return
        await scope.close()
        if asked.is_sent:
            service = self.service
            hook = "completed" if asked.is_ended else "interrupted"
            try:
                await getattr(service, f"on_audio_context_{hook}")(context_id=asked.context_id)
            except Exception as error:
                logger.debug(f"{self.name}: {error}")
            forget_text(service, asked.context_id, self.open.keys() - {asked.context_id})
            is_dirty = self.one_at_a_time and not asked.is_ended and has_connection(service)
            if is_dirty and not self._is_ending:
                self._scope.start(self._reconnect(asked), name=f"reconnects {self.name}")
                return
            del self.open[asked.context_id]
        self._is_free.set()

    async def _reconnect(self, asked: Synthesis) -> None:
        """Late audio of a request would be taken for the next one's, which waits for this."""
        try:
            await disconnect(self.service)
            with suppress(Exception):  # some would tell their server that the context is over
                # ElevenLabs' clock of words has gone on with what came since the interruption.
                await self.service.on_audio_context_completed(context_id=asked.context_id)
            await connect(self.service)
        except Exception as error:
            logger.debug(f"{self.name}: {error}")
        finally:
            del self.open[asked.context_id]
            self._is_free.set()

    # ---- in place of the service's methods

    def _create_context_id(self) -> str:
        return str(uuid.uuid4()) if self._asking is None else self._asking.context_id

    async def _create_audio_context(self, context_id: str) -> None:
        if context_id in self.open:
            self.open[context_id].has_context = True

    def _audio_context_available(self, context_id: str) -> bool:
        """Whether the service has created it: before that, it sends the context's settings."""
        asked = self.open.get(context_id)
        return asked is not None and asked.has_context and not asked.is_over

    def _get_audio_contexts(self) -> list[str]:
        return [each for each in self.open if self._audio_context_available(each)]

    def _get_active_audio_context_id(self) -> str | None:
        return next(iter(self._get_audio_contexts()), None)

    def _has_active_audio_context(self) -> bool:
        return bool(self._get_audio_contexts())

    async def _append_to_audio_context(
        self, context_id: str | None, frame: Frame | WordTimestamp | None
    ) -> None:
        asked = self.open.get(context_id or "")
        if asked is None or asked.is_over:
            return
        asked.has_context = True
        if frame is None:
            await asked.end(self._sample_rate)
        elif isinstance(frame, ErrorFrame):
            self._take_error(frame, asked)
        else:
            await asked.append(frame, self._sample_rate)

    async def _remove_audio_context(self, context_id: str | None) -> None:
        await self._append_to_audio_context(context_id, None)

    async def _remove_active_audio_context(self) -> None:
        await self._remove_audio_context(self._get_active_audio_context_id())

    async def _connection_closed(self) -> None:
        for asked in list(self.open.values()):
            asked.fail(_CLOSED)

    def _reset_active_audio_context(self) -> None:
        pass

    async def _push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        if isinstance(frame, ErrorFrame):
            # It names no request. One that speaks shows by itself that it has ended.
            silent = [each for each in self.open.values() if each.audible_at is None]
            first = silent[0] if silent else None
            self._take_error(frame, self._asking if self._asking in silent else first)

    def _take_error(self, frame: ErrorFrame, asked: Synthesis | None) -> None:
        if frame.exception is None and asked is not None and asked.rejection is not None:
            frame.exception = Rejection(asked.rejection)
        self._fail(
            attempt_error(frame, has_begun=asked is not None and asked.audio_secs > 0), asked
        )

    def _fail(self, error: AttemptError, asked: Synthesis | None) -> None:
        logger.debug(f"{self.name}: {error.message}")
        if error.retry_after_secs is not None:
            self._held_back(self, error.retry_after_secs)
        if asked is not None:
            asked.fail(error)
