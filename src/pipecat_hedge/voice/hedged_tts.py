"""A text-to-speech service with several voices: a sentence that stays silent is asked again.

The outer service is the one that Pipecat sees: it cuts the text into sentences, and keeps the order
of audio and words. Each sentence is a request of its own to a voice; another voice is asked if it
stays silent for longer than that is worth (``PricedDelay``), but not before the caller would hear
the silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    ControlFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseStartFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.utils.context.word_timestamp_tracker import WordTimestamp

from pipecat_hedge.policy.arguments import require, require_flag, require_number
from pipecat_hedge.policy.budget_accounts import BudgetAccounts
from pipecat_hedge.policy.priced_delay import PricedDelay
from pipecat_hedge.providers.backends import Backend
from pipecat_hedge.providers.permits import Permit, Terms
from pipecat_hedge.providers.standing import Standing
from pipecat_hedge.providers.verdict import Verdict
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.events import InFlight, Waiting
from pipecat_hedge.race.reports import SpeechReport
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.pipeline_search import upstream_of
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.voice.hosted_voice import SILENCE_SECS, HostedVoice, Synthesis
from pipecat_hedge.voice.playout import Playout
from pipecat_hedge.voice.spoken_words import CHAR_SECS, is_rest, said_chars

GIVE_UP_SECS = 10.0
"""A silent sentence is left out after this, or when the next one can be heard, but not within
``SILENCE_SECS`` of a request for it: voices over HTTP may be late, and Pipecat waits for them."""
PAUSE_SECS = 0.3
"""A voice that has not said that a sentence is whole: the next one follows after this."""
LULL_SECS = 0.2
"""A voice in the middle of a sentence that sends nothing for so long may have stopped."""
NEVER_SECS = 3600.0
"""Pipecat ends a context without audio; here every sentence has its own limit."""
LEAST_PART = 0.6
"""A sentence without an end or word times is whole if it sounds for this part of its usual time."""
_TERMS = Terms()
_FIXED = {
    *("push_text_frames", "push_stop_frames", "push_start_frame", "stop_frame_timeout_s"),
    "max_consecutive_zero_audio_contexts",
}
_Step: TypeAlias = Literal["ask", "go on", "end", "leave out"]


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """A text-to-speech service of a ``HedgedTTSService``.

    Parameters:
        name: Its name in reports and logs, unique in the service.
        service: The service.
        same_voice: Whether it sounds like the first one. Another voice speaks only from the start
            of a turn on, and then for the rest of the call.
    """

    name: str
    service: TTSService
    same_voice: bool = False

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ConfigurationError: If one is invalid; the message names it and the remedy.
        """
        require("name", self.name, str, 'write Voice("cartesia", ...)', may_be_none=False)
        require(
            "service", self.service, TTSService, "give a text-to-speech service", may_be_none=False
        )
        require_flag("same_voice", self.same_voice)


@dataclass
class _SentenceEnd(ControlFrame):
    """Behind a sentence's audio.

    Parameters:
        slot: The sentence's slot in Pipecat's sequencer.
        is_whole: Whether all of it was heard.
        at_secs: Its end, in seconds from the start of the context's audio.
    """

    slot: Any = None
    is_whole: bool = False
    at_secs: float = 0.0


@dataclass
class _Turn:
    """What is reported of a turn; see ``SpeechReport``."""

    began_at: float
    is_interruptible: bool
    number: int | None = None
    voice: str | None = None
    sentences: int = 0
    rescued: int = 0
    left_out: int = 0
    first_at: float | None = None
    silent_secs: float = 0.0
    characters: int = 0
    extra_characters: int = 0

    def begin(self, at: float, dry_at: float) -> None:
        """A sentence begins to play, after what was played until ``dry_at``."""
        if self.first_at is None:
            self.first_at = at
        else:
            self.silent_secs += max(0.0, at - dry_at)

    def end(self, sentence: _Sentence, *, is_whole: bool) -> None:
        """A sentence has ended."""
        self.left_out += not is_whole
        if sentence.winner is not None:
            self.voice = sentence.winner.voice.name
            self.rescued += is_whole and sentence.winner is not sentence.asked[0]

    def report(self, *, was_interrupted: bool) -> SpeechReport:
        first_secs = None if self.first_at is None else self.first_at - self.began_at
        return SpeechReport(
            self.voice, self.sentences, self.rescued, self.left_out, first_secs,
            self.silent_secs, self.characters, self.extra_characters, was_interrupted, self.number,
        )  # fmt: skip


class _Sentence:
    """A sentence that is being spoken."""

    def __init__(
        self, text: str, context_id: str, slot: Any, before: _Sentence | None, *, is_first: bool
    ):
        self.text, self.context_id, self.slot, self.before = text, context_id, slot, before
        self.is_first = is_first
        self.asked: list[Synthesis] = []
        self.winner: Synthesis | None = None
        self.rest: Synthesis | None = None
        self.offset_secs: float | None = None  # of the winner's audio in the context's
        self.patience_secs = 0.0
        self.changed = asyncio.Event()
        self.is_done = False

    @property
    def is_next(self) -> bool:
        """Whether everything before it has been said."""
        return self.before is None or self.before.is_done


class HedgedTTSService(TTSService):
    """Stands in the place of a text-to-speech service.

    Every sentence is asked of the first voice. Where that stays silent, fails, or stops in the
    middle, another one is asked, and the first to be heard speaks. What the model is told
    afterwards is what was played.

    Event handlers available, beyond those of ``TTSService``:

    - on_speech_report: Called with a ``SpeechReport`` for each turn that was spoken.

    Example::

        tts = HedgedTTSService([
            Voice("cartesia", CartesiaTTSService(...)),
            Voice("cartesia-2", CartesiaTTSService(...), same_voice=True),
            Voice("elevenlabs", ElevenLabsTTSService(...)),
        ])
        pipeline = Pipeline([..., llm, tts, transport.output(), ...])
    """

    def __init__(
        self,
        voices: Sequence[Voice],
        *,
        budget: float = 0.2,
        stats: ProviderStats | None = None,
        **kwargs: Any,
    ):
        """Create the service.

        Args:
            voices: The voices, the preferred one first; at least one.
            budget: The share of characters that may be asked twice to save time, from 0 to 1. What
                would be silent is asked again without it.
            stats: What is known of voices. Defaults to the process's own.
            **kwargs: Further arguments of ``TTSService``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        require("stats", stats, ProviderStats, "write ProviderStats()")
        require_number("budget", budget, "from 0 to 1", "0.2 is a fifth", lambda x: 0 <= x <= 1)
        _check(voices)
        if fixed := _FIXED & kwargs.keys():
            raise ConfigurationError(f"{min(fixed)} is the service's own: leave it out")
        language = voices[0].service.text_aggregation_language
        kwargs.setdefault("settings", TTSSettings(model=None, voice=None, language=language))
        super().__init__(
            push_text_frames=False,
            push_stop_frames=True,
            push_start_frame=True,
            stop_frame_timeout_s=NEVER_SECS,
            max_consecutive_zero_audio_contexts=0,
            **kwargs,
        )
        if self._is_streaming_tokens:
            raise ConfigurationError(
                "text_aggregation_mode must be SENTENCE: another voice takes over a sentence"
            )
        self._voices = [HostedVoice(each.name, each.service) for each in voices]
        self._sounds = [0 if not n or v.same_voice else n for n, v in enumerate(voices)]
        self._sound = 0  # the voice of this call
        self._stats, self._budget = stats or shared_stats(), budget
        self._accounts = BudgetAccounts()
        self._mean_chars = 0.0
        self._char_secs = CHAR_SECS
        self._playout = Playout()
        self._sentences: dict[_Sentence, asyncio.Task[None]] = {}
        self._last: _Sentence | None = None
        self._started: dict[str, float] = {}  # by context, when its audio began to play
        self._complete: set[str] = set()  # contexts to which no sentence is added any more
        self._turns: dict[str, _Turn] = {}
        self._llm: HedgedLLMService | None = None
        self._answer: tuple[str | None, int] = (None, 0)  # its context, and its turn's number
        self._events, self._is_in_session = self._stats.events, False
        self._permits: dict[Synthesis, Permit] = {}
        self._speaking, self._finishing = TaskScope(), TaskScope()
        self._register_event_handler("on_speech_report")

    def can_generate_metrics(self) -> bool:
        """Whether the service reports metrics: it does."""
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """Whether a processing time means something: it does not, the audio comes later."""
        return False

    # ---- life cycle

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Set up the voices, too."""
        await super().setup(setup)
        await asyncio.gather(*(each.setup(setup, self.sample_rate) for each in self._voices))

    async def start(self, frame: StartFrame) -> None:
        """Start the voices; a handshake holds up nothing."""
        await super().start(frame)
        self._is_in_session = True
        self._stats.begin_session([_backend_of(each) for each in self._voices])
        llms = (each for each in upstream_of(self) if isinstance(each, HedgedLLMService))
        llm = self._llm = next((each for each in llms if each.stats is self._stats), None)
        self._events = self._stats.events if llm is None else llm.events
        for each in self._voices:
            each.start(frame)

    async def stop(self, frame: EndFrame) -> None:
        """End once everything has been said."""
        await self.on_turn_context_completed()
        await super().stop(frame)
        await self._end(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        """End at once."""
        await super().cancel(frame)
        await self._end(frame)

    async def cleanup(self) -> None:
        """Release the resources of all voices."""
        await self._speaking.close()
        await self._finishing.join()
        await super().cleanup()
        await asyncio.gather(*(each.close() for each in self._voices))
        if self._is_in_session:
            self._is_in_session = False
            await asyncio.to_thread(self._stats.save)
            await self._stats.end_session()

    async def _end(self, frame: Frame) -> None:
        await self._speaking.close()
        for context_id in list(self._turns):
            await self._report(context_id, was_interrupted=isinstance(frame, CancelFrame))
        await self._finishing.join()
        await asyncio.gather(*(each.process(frame) for each in self._voices))

    # ---- what Pipecat calls

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Begin to speak a sentence; its audio comes later."""
        slot = self._aggregated_frame_sequencer._slots[-1]
        turn = self._turns.get(context_id)
        sentence = _Sentence(text, context_id, slot, self._last, is_first=turn is None)
        self._last = sentence
        if turn is None:
            answered, number = self._answer
            turn = self._turns[context_id] = _Turn(
                _now(),
                self._tts_contexts[context_id].interruptible,
                number if context_id == answered else None,
            )
        if context_id != self._turn_context_id:  # a text outside of a turn has no other behind it
            self._complete.add(context_id)
        turn.sentences += 1
        turn.characters += len(text)
        self._mean_chars += (len(text) - self._mean_chars) * (0.05 if self._mean_chars else 1.0)
        self._accounts.begin_turn(self._budget, _now())
        task = self._speaking.start(self._speak(sentence), name=f"{self} speaks")
        self._sentences[sentence] = task
        yield None

    async def on_turn_context_completed(self) -> None:
        """The turn has no further sentence."""
        context_id, self._turn_context_id = self._turn_context_id, None
        if context_id is not None and self.audio_context_available(context_id):
            self._complete.add(context_id)
            await self._close_if_said(context_id)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Process a frame; what was released of an interrupted turn is not played."""
        if isinstance(frame, TTSUpdateSettingsFrame):
            for each in self._voices:
                if frame.service is each.service:
                    await each.update(frame)
                    return
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame) and self._llm is not None:
            self._answer = self._turn_context_id, self._llm.turn_number
        elif isinstance(frame, InterruptionFrame):
            ended = [each for each, turn in self._turns.items() if turn.is_interruptible]
            for context_id in ended:
                await self._report(context_id, was_interrupted=True)
            if not self._turns:
                self._playout.stop(_now())

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Ask for no more of what is not said any more."""
        for sentence, task in list(self._sentences.items()):
            if sentence.context_id == context_id:
                task.cancel()
        await self._report(context_id, was_interrupted=True)

    async def start_word_timestamps(self) -> None:
        """Time words from when the caller hears the context's audio."""
        context_id = self.get_active_audio_context_id() or ""
        wait_secs = max(0.0, self._started.get(context_id, 0.0) - _now())
        at = self.get_clock().get_time() + int(wait_secs * 1e9)
        for cached in self._word_timestamp_tracker.start(at):
            spaced = cached.includes_inter_frame_spaces
            await self._add_word_timestamps(
                [(cached.word, cached.timestamp)], cached.context_id, spaced
            )

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        """Push a frame."""
        if isinstance(frame, _SentenceEnd):
            await self._settle(frame)
        else:
            await super().push_frame(frame, direction)

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:
        """Change the settings of the first voice and its like; of others, the language."""
        first = type(self._voices[0].service._settings)
        for each in self._voices:
            its = replace(delta)  # a service has its own names of languages
            if type(each.service._settings) is not first:
                its = TTSSettings(language=delta.language)
            elif not isinstance(each.service._settings, type(delta)):
                continue
            await each.update(TTSUpdateSettingsFrame(delta=its, service=each.service))
        return await super()._update_settings(delta)

    # ---- a sentence

    async def _speak(self, sentence: _Sentence) -> None:
        is_whole = False
        try:
            if is_rest(sentence.text, 0):
                voice = self._first_voice(sentence)
                self._ask(sentence, voice, sentence.text)
                if sentence.is_first:
                    self._recover(sentence.text, voice)
                is_whole = await self._until_said(sentence)
            else:  # an emoji has no sound
                while not sentence.is_next:
                    sentence.changed.clear()
                    await sentence.changed.wait()
                is_whole = True
        except Exception:
            logger.exception(f"{self}: a sentence failed")
        finally:
            sentence.is_done, sentence.before = True, None
            self._sentences.pop(sentence, None)
            for asked in sentence.asked:
                self._finish(asked)
            self._wake()
        if sentence.winner is None and not is_whole:
            await self.push_error("no voice has spoken a sentence")
        self._turns[sentence.context_id].end(sentence, is_whole=is_whole)
        context_id = sentence.context_id
        at_secs = self._playout.dry_at - self._started.get(context_id, 0.0)
        end = _SentenceEnd(slot=sentence.slot, is_whole=is_whole, at_secs=at_secs)
        await self.append_to_audio_context(context_id, end)
        await self._close_if_said(context_id)

    async def _until_said(self, sentence: _Sentence) -> bool:
        """Wait until a sentence was said, or cannot be; whether all of it was."""
        while True:
            sentence.changed.clear()
            self._commit(sentence)
            winner = sentence.winner
            if winner is not None and sentence.is_next and sentence.rest is None:
                await self._release(sentence, winner)
                if winner.is_ended:
                    return True
            due_at, step = self._next_step(sentence)
            if due_at is not None and due_at <= _now():
                if step == "ask":
                    await self._ask_another(sentence)
                elif step == "go on":
                    self._go_on(sentence)
                else:
                    return step == "end" and self._is_whole(sentence)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await sentence.changed.wait()

    def _commit(self, sentence: _Sentence) -> None:
        """The first voice that is heard speaks the sentence."""
        for asked in sentence.asked:
            permit = self._permits.get(asked)
            if asked.audible_at is not None and permit is not None and not permit.has_token:
                self._stats.record_first_token(permit, asked.audible_at)
                secs = asked.audible_at - asked.sent_at
                self._stats.record_wait(_backend(asked), secs, None)
                asked.voice.sounds.append(secs)
        if sentence.winner is None and sentence.is_next:
            heard = [each for each in self._fitting(sentence) if each.audible_at is not None]
            if heard:
                sentence.winner = min(heard, key=lambda each: each.audible_at or 0.0)
                self._sound = self._sound_of(sentence.winner.voice)
                self._wake()  # a later sentence may have been asked of a voice that does not fit
                for asked in sentence.asked:
                    if asked is not sentence.winner:
                        was_first = asked.asked_at < sentence.winner.asked_at
                        self._finish(asked, was_silent=was_first)

    def _next_step(self, sentence: _Sentence) -> tuple[float | None, _Step]:
        """What is due next, and when; None as the time if that depends on others."""
        winner, now, dry_at = sentence.winner, _now(), self._playout.dry_at
        another = self._another_voice(sentence)
        fitting = self._fitting(sentence)
        if winner is None and all(each.is_over and each.audible_at is None for each in fitting):
            return now, "leave out" if another is None else "ask"
        if not sentence.is_next:
            return None, "leave out"
        following = [each for each in self._sentences if each.before is sentence]
        waiting = (asked for each in following for asked in self._fitting(each))
        next_waits = any(each.audible_at is not None for each in waiting)
        if winner is None:
            asked_at = sentence.asked[-1].asked_at
            if another is not None:
                was_asked = any(each.voice is another for each in sentence.asked)
                patience_secs = SILENCE_SECS if was_asked else sentence.patience_secs
                return max(asked_at + patience_secs, dry_at - self._lead_secs(another)), "ask"
            least_secs = 0.0 if next_waits else GIVE_UP_SECS
            sent_at = min((each.sent_at for each in sentence.asked if each.is_sent), default=now)
            return max(sent_at + least_secs, asked_at + SILENCE_SECS), "leave out"
        if (rest := sentence.rest) is not None:
            is_ready = rest.is_over or rest.audible_at is not None or winner.has_more
            return (dry_at if is_ready else rest.asked_at + SILENCE_SECS), "go on"
        if not self._is_said(winner):
            if another is not None:
                stalls_at = max(dry_at - self._lead_secs(another), winner.heard_at + LULL_SECS)
                return now if winner.is_over else stalls_at, "ask"
            return dry_at + SILENCE_SECS, "leave out"
        is_quick = next_waits or winner.is_over or (following and winner.words)
        return dry_at + (PAUSE_SECS if is_quick else SILENCE_SECS), "end"

    async def _ask_another(self, sentence: _Sentence) -> None:
        """Ask another voice for the sentence, or for the rest of it."""
        voice, now = self._another_voice(sentence), _now()
        assert voice is not None
        last = sentence.asked[-1]
        late_secs = last.voice.late_secs
        is_due = not sentence.is_first or last.is_over or now >= last.asked_at + late_secs
        winner = sentence.winner
        text = sentence.text
        if winner is not None:
            text = winner.text[self._said(winner) :].lstrip()
        cost = len(text) / self._mean_chars
        if is_due or winner is not None:
            self._accounts.pay(self._budget, cost, now)
        elif not self._accounts.claim(self._budget, cost, now):
            sentence.patience_secs = late_secs
            return
        turn = self._turns[sentence.context_id]
        turn.extra_characters += len(text)
        for earlier in sentence.asked:
            if earlier.voice is voice and (voice.hides_silence or earlier.is_over):
                await self._finish(earlier)
        asked = self._ask(sentence, voice, text)
        if winner is not None:
            sentence.rest = asked

    def _go_on(self, sentence: _Sentence) -> None:
        """Say the rest once the audio was played: by the new request, if it is heard by then."""
        winner, rest = sentence.winner, sentence.rest
        assert winner is not None
        assert rest is not None
        sentence.rest = None
        if rest.audible_at is None:
            self._finish(rest)
            return
        self._finish(winner)
        sentence.winner, sentence.offset_secs = rest, None

    def _is_whole(self, sentence: _Sentence) -> bool:
        """Whether a sentence without an end mark was said, by its words or its length."""
        return sentence.winner is not None and self._is_said(sentence.winner)

    def _is_said(self, asked: Synthesis) -> bool:
        if asked.words:
            return not is_rest(asked.text, self._said(asked))
        return asked.audio_secs >= LEAST_PART * self._char_secs * len(asked.text)

    def _said(self, asked: Synthesis) -> int:
        return said_chars(asked.text, asked.words, asked.audio_secs, self._char_secs)

    async def _release(self, sentence: _Sentence, winner: Synthesis) -> None:
        """Pass on what has come: the caller hears it next."""
        context_id, playout = sentence.context_id, self._playout
        for item in winner.take():
            now = _now()
            at = playout.next_at(now)
            if sentence.offset_secs is None:
                turn = self._turns[context_id]
                turn.begin(at, playout.dry_at)
                self._measure(winner.voice)
                sentence.offset_secs = at - self._started.setdefault(context_id, at)
            if isinstance(item, TTSAudioRawFrame):
                item.context_id = context_id
                playout.release(item.num_frames / item.sample_rate, now)
                await self.append_to_audio_context(context_id, item)
            else:
                secs = sentence.offset_secs + item.timestamp
                spaced = item.includes_inter_frame_spaces
                await self.append_to_audio_context(
                    context_id, WordTimestamp(item.word, secs, context_id, spaced)
                )
        if winner.is_ended:
            rate = winner.audio_secs / len(winner.text)
            weight = 1.0 if self._char_secs == CHAR_SECS else 0.2
            self._char_secs += weight * (rate - self._char_secs)

    async def _settle(self, end: _SentenceEnd) -> None:
        """Say what was heard of a sentence: the rest of its words, or no more of them."""
        slot, sequencer, times = (
            end.slot,
            self._aggregated_frame_sequencer,
            self._word_timestamp_tracker,
        )
        if not slot.complete and end.is_whole:
            rest = slot.tracker.get_remaining_tts_text()
            at = times.pts(end.at_secs) if times.started else self.get_clock().get_time()
            await self._push_word_frames(sequencer.process_word(rest, at, slot.context_id))
        if not slot.complete:
            slot.complete = True
            await self._push_word_frames(sequencer.flush())

    # ---- voices

    def _first_voice(self, sentence: _Sentence) -> HostedVoice:
        """The preferred voice of the call that is well."""
        voices = [v for v, n in zip(self._voices, self._sounds, strict=True) if n == self._sound]
        if sentence.is_first:
            voices += [v for v in self._voices if v not in voices]
        standings = self._standings(voices)
        return next((v for v, it in zip(voices, standings, strict=True) if it.is_well), voices[0])

    def _another_voice(self, sentence: _Sentence) -> HostedVoice | None:
        """The voice to ask next for a sentence; None if all have been asked."""
        asked = [each.voice for each in sentence.asked]
        may_change = sentence.is_first and sentence.winner is None
        voices = [
            v
            for v, sound in zip(self._voices, self._sounds, strict=True)
            if v not in asked and (sound == self._sound or may_change)
        ]
        voices.sort(key=lambda v: self._sound_of(v) != self._sound)
        fitting = self._fitting(sentence)
        if not voices and fitting and len(asked) == len(set(asked)):
            return fitting[0].voice  # a fresh request
        standings = self._standings(voices)
        well = (v for v, it in zip(voices, standings, strict=True) if it.is_well)
        return next(well, voices[0] if voices else None)

    def _fitting(self, sentence: _Sentence) -> list[Synthesis]:
        """The requests whose voice may speak: the caller's, or any at the start of a turn."""
        if sentence.is_first and sentence.winner is None:
            return sentence.asked
        return [each for each in sentence.asked if self._sound_of(each.voice) == self._sound]

    def _sound_of(self, voice: HostedVoice) -> int:
        return self._sounds[self._voices.index(voice)]

    def _standings(self, voices: Sequence[HostedVoice]) -> list[Standing]:
        keys = [_backend_of(each).record_key for each in voices]
        return self._stats.standing(keys, "hedge", _TERMS, _now())

    def _ask(self, sentence: _Sentence, voice: HostedVoice, text: str) -> Synthesis:
        asked = voice.ask(text, sentence.changed.set)
        key = _backend_of(voice).record_key
        work = "hedge" if sentence.asked else "primary"
        self._permits[asked] = self._stats.issue(key, work, _TERMS, asked.asked_at)
        sentence.asked.append(asked)
        sentence.patience_secs = self._patience_secs(sentence, voice)
        self._finishing.start(self._count(voice, text), name=f"{self} counts")
        return asked

    async def _count(self, voice: HostedVoice, text: str) -> None:
        self._measure(voice)
        await self.start_tts_usage_metrics(text)

    def _measure(self, voice: HostedVoice) -> None:
        """What is measured next is this voice's: metrics have its model."""
        model = voice.service.settings.model
        named = model if isinstance(model, str) else ""
        self.set_core_metrics_data(MetricsData(processor=self.name, model=named))

    def _patience_secs(self, sentence: _Sentence, voice: HostedVoice) -> float:
        """How long a voice may be silent before another one is worth its price."""
        another = self._another_voice(sentence)
        if another is None:
            return voice.late_secs
        first, second = _backend_of(voice), _backend_of(another)
        estimates = self._stats.estimates([first, second], None, by_sentence=False)
        share = self._accounts.share(self._budget, 1.0) if sentence.is_first else 1.0
        shares = {second.provider: share}
        rule = PricedDelay(estimates, shares, benefits=self._accounts.benefits)
        waiting = Waiting(0.0, (InFlight(first.provider, 0.0, None),), second.provider)
        at = rule.next_launch(waiting).at
        return voice.late_secs if at is None else min(at, voice.late_secs)

    def _lead_secs(self, voice: HostedVoice) -> float:
        """The time within which a voice is heard in nine of ten cases."""
        backend = _backend_of(voice)
        found = self._stats.estimates([backend], None, by_sentence=False)[backend.provider]
        return found.first_token.quantile(0.9)

    def _recover(self, text: str, besides: HostedVoice) -> None:
        """Try voices whose breaker is half-open with a text that another one speaks."""
        for voice in self._voices:
            key, now = _backend_of(voice).record_key, _now()
            if voice is not besides and self._stats.claim_recovery(key, now):
                self._finishing.start(self._try(voice, text), name=f"{self} tries {voice.name}")

    async def _try(self, voice: HostedVoice, text: str) -> None:
        changed = asyncio.Event()
        asked = voice.ask(text, changed.set)
        key = _backend_of(voice).record_key
        self._permits[asked] = self._stats.issue(
            key, "hedge", _TERMS, asked.asked_at, is_recovery=True
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(SILENCE_SECS):
                while asked.audible_at is None and not asked.is_over:
                    changed.clear()
                    await changed.wait()
        await self._finish(asked, was_silent=True)

    def _finish(self, asked: Synthesis, *, was_silent: bool = False) -> asyncio.Task[None]:
        """End a request, and learn from it; silence counts if another one was heard meanwhile."""
        if (permit := self._permits.pop(asked, None)) is not None:
            now, verdict = _now(), _verdict(asked, was_silent=was_silent)
            is_overtaken = asked.audible_at is None and asked.error is None
            self._stats.release(
                permit, verdict, now, has_begun=asked.audible_at is not None,
                was_overtaken=is_overtaken, was_late=is_overtaken,
            )  # fmt: skip
            if is_overtaken and asked.is_sent:
                self._stats.record_wait(_backend(asked), now - asked.sent_at, None, censored=True)
        return self._finishing.start(asked.voice.finish(asked), name=f"{self} ends a request")

    # ---- a turn

    async def _close_if_said(self, context_id: str) -> None:
        is_open = any(each.context_id == context_id for each in self._sentences)
        if context_id in self._complete and not is_open:
            await self.remove_audio_context(context_id)
            self._complete.discard(context_id)
            work = self._report_when_played(context_id, self._playout.dry_at)
            self._speaking.start(work, name=f"{self} plays")

    async def _report_when_played(self, context_id: str, dry_at: float) -> None:
        await asyncio.sleep(dry_at - _now())
        await self._report(context_id)

    async def _report(self, context_id: str, *, was_interrupted: bool = False) -> None:
        """Report a turn, and keep nothing of it."""
        self._complete.discard(context_id)
        self._started.pop(context_id, None)
        if (turn := self._turns.pop(context_id, None)) is not None:
            report = turn.report(was_interrupted=was_interrupted)
            self._events.publish(report)
            await self._call_event_handler("on_speech_report", report)

    def _wake(self) -> None:
        for each in self._sentences:
            each.changed.set()


def _check(voices: Sequence[Voice]) -> None:
    example = 'write [Voice("cartesia", CartesiaTTSService(...))]'
    if not voices or not all(isinstance(each, Voice) for each in voices):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"voices must list at least one Voice, got {voices!r}: {example}")
    if len({each.name for each in voices}) < len(voices):
        raise ConfigurationError("voices: two have the same name; give each its own")
    if len({id(each.service) for each in voices}) < len(voices):
        raise ConfigurationError("voices: two have the same service; give each its own")


def _backend_of(voice: HostedVoice) -> Backend:
    return Backend(voice.name, voice.model, measures="speech")


def _backend(asked: Synthesis) -> Backend:
    return _backend_of(asked.voice)


def _verdict(asked: Synthesis, *, was_silent: bool) -> Verdict:
    if asked.audible_at is not None:
        return "answered"
    if asked.error is not None:
        return "failed"
    return "silent" if was_silent else "dropped"


def _now() -> float:
    return asyncio.get_running_loop().time()
