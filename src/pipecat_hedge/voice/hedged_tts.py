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
    SystemFrame,
    TTSAudioRawFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import MetricsData
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipecat.utils.context.word_timestamp_tracker import WordTimestamp

from pipecat_hedge.policy.arguments import (
    require,
    require_flag,
    require_known,
    require_number,
)
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.hedged_service import HedgedLLMService
from pipecat_hedge.service.pipecat_private import (
    end_text,
    is_interruptible,
    latest_text,
    speaks_tokens,
    start_words,
    turn_context,
)
from pipecat_hedge.service.pipeline_search import upstream_of
from pipecat_hedge.service.provider_client import switch_off_hidden_retries
from pipecat_hedge.service.provider_stats import ProviderStats, shared_stats
from pipecat_hedge.voice.filler_playback import FillerFrame
from pipecat_hedge.voice.hosted_voice import SILENCE_SECS, HostedVoice, Synthesis
from pipecat_hedge.voice.playout import Playout
from pipecat_hedge.voice.spoken_turn import Sentence, Turn
from pipecat_hedge.voice.spoken_words import is_rest, rest_of
from pipecat_hedge.voice.voice_requests import VoiceRequests

GIVE_UP_SECS = 10.0
"""A silent sentence is left out after this, or when the next one can be heard, but not within
``SILENCE_SECS`` of a request for it: voices over HTTP may be late, and Pipecat waits for them."""
PAUSE_SECS = 0.3
"""A voice that has not said that a sentence is whole: the next one follows after this."""
LULL_SECS = 0.2
"""A voice in the middle of a sentence that sends nothing for so long may have stopped."""
LAST_WORD_SECS = 0.2
"""The text of a sentence without word times is remembered so long before its sound ends, as with
a timed last word: the start of the next audio, which has no time, would overtake it."""
NEVER_SECS = 3600.0
"""Pipecat ends a context without audio; here every sentence has its own limit."""
IDLE_SECS = 3.0
"""Pipecat's limit, here for a turn without a sentence to say: other texts are said meanwhile."""
_FIXED = {
    *("push_text_frames", "push_stop_frames", "push_start_frame", "stop_frame_timeout_s"),
    "max_consecutive_zero_audio_contexts",
}
_Step: TypeAlias = Literal["wait", "ask", "switch", "end", "leave out"]
"""For a sentence: wait for those before it, ask another voice, switch to the request for its rest,
end it, or leave out what was not said."""


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
            stats: What is known of voices. Defaults to that of a hedged service upstream, or the
                process's own.
            **kwargs: Further arguments of ``TTSService``.

        Raises:
            ConfigurationError: If an argument is invalid; the message names it and the remedy.
        """
        require("stats", stats, ProviderStats, "write ProviderStats()")
        require_number("budget", budget, "from 0 to 1", "0.2 is a fifth", lambda x: 0 <= x <= 1)
        _check(voices)
        if fixed := _FIXED & kwargs.keys():
            raise ConfigurationError(f"{min(fixed)} is the service's own: leave it out")
        require_known(kwargs, owner=HedgedTTSService, base=TTSService)
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
        if speaks_tokens(self):
            raise ConfigurationError(
                "text_aggregation_mode must be SENTENCE: another voice takes over a sentence"
            )
        self._voices = [
            HostedVoice(v.name, v.service, 0 if v.same_voice else number, self._hold_back)
            for number, v in enumerate(voices)
        ]
        if len(voices) > 1:
            for each in voices:
                switch_off_hidden_retries(each.service)
        self._requests = VoiceRequests(self._voices, budget, self._count)
        self._given_stats, self._is_in_session = stats, False
        self._playout = Playout()
        self._turns: dict[str, Turn] = {}  # by context
        self._sentences: dict[Sentence, asyncio.Task[None]] = {}
        self._last: Sentence | None = None
        self._is_filler = False  # whether the text at hand is one
        self._llm: HedgedLLMService | None = None
        self._answer: tuple[str | None, int] = (None, 0)  # its context, and its turn's number
        self._speaking = TaskScope()
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
        llms = [each for each in upstream_of(self) if isinstance(each, HedgedLLMService)]
        self._stats = self._given_stats or (llms[0].stats if llms else shared_stats())
        self._requests.open(self._stats)
        llm = self._llm = next((each for each in llms if each.stats is self._stats), None)
        self._events = self._stats.events if llm is None else llm.events
        await asyncio.gather(*(each.setup(setup, self.sample_rate) for each in self._voices))

    async def start(self, frame: StartFrame) -> None:
        """Start the voices; a handshake holds up nothing."""
        await super().start(frame)
        self._is_in_session = True
        self._stats.begin_session([each.backend for each in self._voices])
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
        await self._requests.close()
        await super().cleanup()
        await asyncio.gather(*(each.close() for each in self._voices))
        if self._is_in_session:
            self._is_in_session = False
            await asyncio.to_thread(self._stats.save)
            await self._stats.end_session()

    async def _end(self, frame: EndFrame | CancelFrame) -> None:
        await self._speaking.close()
        for turn in list(self._turns.values()):
            await self._report(turn, was_interrupted=isinstance(frame, CancelFrame))
        await self._requests.join()
        await asyncio.gather(*(each.end(frame) for each in self._voices))

    # ---- what Pipecat calls

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Begin to speak a sentence; its audio comes later."""
        turn = self._turns.get(context_id)
        if is_first := turn is None:
            answered, number = self._answer
            turn = self._turns[context_id] = Turn(
                context_id,
                _now(),
                is_interruptible(self, context_id),
                number if context_id == answered else None,
                is_complete=context_id != turn_context(self),  # a text outside of an answer
            )
        turn.sentences += 1
        turn.characters += len(text)
        before, slot = self._last, latest_text(self)
        sentence = self._last = Sentence(text, turn, slot, before, is_first, self._is_filler)
        self._requests.add_to_budget(sentence)
        task = self._speaking.start(self._speak(sentence), name=f"{self} speaks")
        self._sentences[sentence] = task
        yield None

    async def on_turn_context_completed(self) -> None:
        """The turn has no further sentence."""
        context_id = turn_context(self)
        await super().on_turn_context_completed()
        if (turn := self._turns.get(context_id or "")) is not None:
            turn.is_complete = True
            await self._close_if_said(turn)
        elif context_id is not None and self.audio_context_available(context_id):
            await self.remove_audio_context(context_id)  # no voice may be asked any more

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Process a frame; what was released of an interrupted turn is not played."""
        if isinstance(frame, TTSUpdateSettingsFrame):
            for each in self._voices:
                if frame.service is each.service:
                    await each.update(frame)
                    return
        if not isinstance(frame, SystemFrame):  # which may come in the middle of a text
            self._is_filler = isinstance(frame, FillerFrame)
        await super().process_frame(frame, direction)
        if isinstance(frame, LLMFullResponseStartFrame) and self._llm is not None:
            self._answer = turn_context(self), self._llm.turn_number
        elif isinstance(frame, InterruptionFrame):
            for turn in [each for each in self._turns.values() if each.is_interruptible]:
                await self._report(turn, was_interrupted=True)
            if not self._turns:
                self._playout.stop(_now())

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Ask for no more of what is not said any more."""
        for sentence, task in list(self._sentences.items()):
            if sentence.turn.context_id == context_id:
                self._speaking.cancel(task)
        if (turn := self._turns.get(context_id)) is not None:
            await self._report(turn, was_interrupted=True)

    async def start_word_timestamps(self) -> None:
        """Time words from when the caller hears the context's audio."""
        turn = self._turns.get(self.get_active_audio_context_id() or "")
        begins_at = 0.0 if turn is None else turn.context_at or 0.0
        wait_secs = max(0.0, begins_at - _now())
        at = self.get_clock().get_time() + int(wait_secs * 1e9)
        await start_words(self, at)

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        """Push a frame."""
        if isinstance(frame, _SentenceEnd):
            await end_text(self, frame.slot, frame.at_secs, is_whole=frame.is_whole)
        else:
            await super().push_frame(frame, direction)

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:
        """Change the settings of the first voice and its like; of others, the language."""
        first = type(self._voices[0].service.settings)
        for each in self._voices:
            its = replace(delta)  # a service has its own names of languages
            if type(each.service.settings) is not first:
                its = TTSSettings(language=delta.language)
            elif not isinstance(each.service.settings, type(delta)):
                continue
            await each.update(TTSUpdateSettingsFrame(delta=its, service=each.service))
        return await super()._update_settings(delta)

    # ---- a sentence

    async def _speak(self, sentence: Sentence) -> None:
        is_whole = False
        try:
            if is_rest(sentence.text, 0):
                voice = self._requests.first_voice(sentence)
                self._requests.ask(sentence, voice, sentence.text)
                if sentence.is_first:
                    self._requests.recover(sentence, voice)
                is_whole = await self._until_said(sentence)
            else:  # an emoji has no sound
                while not sentence.is_next:
                    sentence.changed.clear()
                    await sentence.changed.wait()
                is_whole = True
        except Exception:
            logger.exception(f"{self}: a sentence failed")
        finally:
            sentence.end()
            self._sentences.pop(sentence, None)
            for asked in sentence.asked:
                self._requests.finish(asked)
            self._wake()
        if sentence.winner is None and not is_whole and not sentence.is_filler:
            await self.push_error("no voice has spoken a sentence")
        turn = sentence.turn
        turn.end_sentence(sentence, is_whole=is_whole)
        at_secs = max(0.0, self._playout.dry_at - (turn.context_at or 0.0) - LAST_WORD_SECS)
        end = _SentenceEnd(slot=sentence.slot, is_whole=is_whole, at_secs=at_secs)
        await self.append_to_audio_context(turn.context_id, end)
        await self._close_if_said(turn)

    async def _until_said(self, sentence: Sentence) -> bool:
        """Wait until a sentence was said, or cannot be; whether all of it was."""
        while True:
            sentence.changed.clear()
            self._requests.learn(sentence)
            if sentence.winner is None and sentence.is_next:
                self._choose_winner(sentence)
            elif sentence.before is not None:
                sentence.before.changed.set()  # it waits for its end while nothing else does
            winner = sentence.winner
            if winner is not None and sentence.rest is None:
                await self._release(sentence, winner)
                if winner.is_ended:
                    winner.voice.learn_pace(winner)
                    return True
            due_at, step = self._next_step(sentence)
            if due_at is not None and due_at <= _now():
                if step == "ask":
                    await self._ask_another(sentence)
                elif step == "switch":
                    self._switch_to_rest(sentence)
                else:
                    return step == "end"
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await sentence.changed.wait()

    def _choose_winner(self, sentence: Sentence) -> None:
        """The first voice that is heard speaks the sentence."""
        fitting = self._requests.fitting(sentence)
        heard = [each for each in fitting if each.audible_at is not None]
        if not heard:
            return
        winner = min(heard, key=lambda each: each.audible_at or 0.0)
        sentence.winner, self._requests.speaker = winner, winner.voice.speaker
        self._wake()  # a later sentence may have been asked of a voice that does not fit
        for asked in sentence.asked:
            if asked is not winner:
                was_first = asked.asked_at < winner.asked_at
                self._requests.finish(asked, was_overtaken=True, was_silent=was_first)

    def _next_step(self, sentence: Sentence) -> tuple[float | None, _Step]:
        """What is due next for a sentence, and when; None if that depends on others."""
        winner, now, dry_at = sentence.winner, _now(), self._playout.dry_at
        fitting = self._requests.fitting(sentence)
        if winner is None and all(each.is_over and each.audible_at is None for each in fitting):
            return self._after_failures(sentence)
        if not sentence.is_next:
            return None, "wait"
        following = [each for each in self._sentences if each.before is sentence]
        if following and sentence.is_filler and not (winner and winner.is_said):
            return (now if winner is None else dry_at), "leave out"
        waiting = (asked for each in following for asked in self._requests.fitting(each))
        next_waits = any(each.audible_at is not None for each in waiting)
        if winner is None:
            return self._in_silence(sentence, next_waits=next_waits)
        if (rest := sentence.rest) is not None:
            is_ready = rest.is_over or rest.audible_at is not None or winner.has_more
            return (dry_at if is_ready else self._patient_until(sentence, rest)), "switch"
        if not winner.is_said:
            return self._in_the_middle(sentence, winner)
        is_quick = next_waits or winner.is_over or (following and winner.words)
        return dry_at + (PAUSE_SECS if is_quick else SILENCE_SECS), "end"

    def _after_failures(self, sentence: Sentence) -> tuple[float | None, _Step]:
        """Another voice is asked at once; one that was asked, when it is due and soon."""
        now, another = _now(), self._requests.another_voice(sentence)
        if another is None:  # not before its turn: the next one would be said before others
            return (now if sentence.is_next else None), "leave out"
        held_secs = self._requests.held_secs(another) if sentence.has_asked(another) else 0.0
        return min(now + held_secs, sentence.asked[-1].asked_at + SILENCE_SECS), "ask"

    def _in_silence(self, sentence: Sentence, *, next_waits: bool) -> tuple[float, _Step]:
        """Another voice is asked when silence would be heard and is worth its price."""
        another, asked_at = self._requests.another_voice(sentence), sentence.asked[-1].asked_at
        if another is None:
            least_secs = 0.0 if next_waits else GIVE_UP_SECS
            sent_at = min((each.sent_at for each in sentence.asked if each.is_sent), default=_now())
            return max(sent_at + least_secs, asked_at + SILENCE_SECS), "leave out"
        has_asked = sentence.has_asked(another)
        patience_secs = SILENCE_SECS if has_asked else sentence.patience_secs
        lead_secs = self._requests.lead_secs(another)
        return max(asked_at + patience_secs, self._playout.dry_at - lead_secs), "ask"

    def _in_the_middle(self, sentence: Sentence, winner: Synthesis) -> tuple[float, _Step]:
        """The rest is asked for before the caller would hear that the voice has stopped."""
        another, dry_at = self._requests.another_voice(sentence), self._playout.dry_at
        if another is None:
            until = dry_at if winner.is_over else self._patient_until(sentence, winner)
            return until, "leave out"
        if winner.is_over:
            return _now(), "ask"
        lead_secs, lull_secs = self._requests.lead_secs(another), LULL_SECS
        if another.is_at(winner):  # it is given up for a fresh request, which may take as long
            first_secs = (winner.audible_at or 0.0) - winner.sent_at
            lull_secs = max(SILENCE_SECS, first_secs)
        return max(dry_at - lead_secs, winner.heard_at + lull_secs), "ask"

    def _patient_until(self, sentence: Sentence, asked: Synthesis) -> float:
        """When nothing more is expected of a request in the middle of a sentence."""
        since = asked.asked_at if asked is sentence.rest else self._playout.dry_at
        is_last = self._requests.another_voice(sentence) is None
        if is_last and asked.voice.is_at(asked):  # over HTTP, Pipecat waits for it
            return max(since + SILENCE_SECS, self._playout.dry_at + GIVE_UP_SECS)
        return since + SILENCE_SECS

    async def _ask_another(self, sentence: Sentence) -> None:
        """Ask another voice for the sentence, or for the rest of it."""
        voice, winner = self._requests.another_voice(sentence), sentence.winner
        assert voice is not None
        text = sentence.text if winner is None else rest_of(winner.text, winner.said)
        if not self._requests.pay(sentence, text):
            return
        earlier = [each for each in sentence.asked if each.voice is voice]
        # First of all: the next sentence waits for the end of those.
        asked = self._requests.ask(sentence, voice, text)
        for each in earlier:
            if voice.hides_silence or each.is_over or (each is winner and voice.is_at(each)):
                await asyncio.wait([self._requests.finish(each)])  # whole, though this may end
        if winner is not None:
            sentence.rest = asked

    def _switch_to_rest(self, sentence: Sentence) -> None:
        """The audio was played: the request for the rest speaks, if it is heard by now."""
        winner, rest = sentence.winner, sentence.rest
        assert winner is not None
        assert rest is not None
        sentence.rest = None
        if rest.audible_at is None:
            self._requests.finish(rest, was_silent=not winner.has_more)
        else:
            self._requests.finish(winner)
            sentence.winner, sentence.offset_secs = rest, None

    async def _release(self, sentence: Sentence, winner: Synthesis) -> None:
        """Pass on what has come: the caller hears it next."""
        context_id, playout = sentence.turn.context_id, self._playout
        for item in winner.take():
            now = _now()
            if sentence.offset_secs is None:
                begins_at = playout.next_at(now)
                sentence.offset_secs = sentence.turn.begin_sentence(begins_at, playout.dry_at)
                self._measure(winner.voice)
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

    async def _count(self, voice: HostedVoice, text: str) -> None:
        self._measure(voice)
        await self.start_tts_usage_metrics(text)

    def _measure(self, voice: HostedVoice) -> None:
        """What is measured next is this voice's: metrics have its model."""
        model = voice.service.settings.model
        named = model if isinstance(model, str) else ""
        self.set_core_metrics_data(MetricsData(processor=self.name, model=named))

    def _hold_back(self, voice: HostedVoice, secs: float) -> None:
        self._requests.hold_back(voice, secs)
        asyncio.get_running_loop().call_later(secs, self._wake)

    def _wake(self) -> None:
        for each in self._sentences:
            each.changed.set()

    # ---- a turn

    async def _close_if_said(self, turn: Turn) -> None:
        if any(each.turn is turn for each in self._sentences):
            return
        if turn.is_complete:
            await self._close_context(turn)
            work = self._report_when_played(turn, self._playout.dry_at)
            self._speaking.start(work, name=f"{self} plays")
        else:
            self._speaking.start(self._close_if_idle(turn), name=f"{self} waits for a sentence")

    async def _close_if_idle(self, turn: Turn) -> None:
        said = turn.sentences
        await asyncio.sleep(IDLE_SECS)
        if turn.sentences == said and not turn.is_complete:
            turn.context_at = None  # a later sentence begins the context again
            await self._close_context(turn)

    async def _close_context(self, turn: Turn) -> None:
        if self.audio_context_available(turn.context_id):
            await self.remove_audio_context(turn.context_id)

    async def _report_when_played(self, turn: Turn, dry_at: float) -> None:
        await asyncio.sleep(dry_at - _now())
        await self._report(turn)

    async def _report(self, turn: Turn, *, was_interrupted: bool = False) -> None:
        """Report a turn, and keep nothing of it."""
        if self._turns.pop(turn.context_id, None) is not None:
            report = turn.report(was_interrupted=was_interrupted)
            self._events.publish(report)
            await self._call_event_handler("on_speech_report", report)


def _check(voices: Sequence[Voice]) -> None:
    example = 'write [Voice("cartesia", CartesiaTTSService(...))]'
    if not isinstance(voices, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        given = type(voices).__name__
        raise ConfigurationError(f"voices must be a list of Voice, not one {given}: {example}")
    if not voices:
        raise ConfigurationError(f"voices must list at least one Voice: {example}")
    for each in voices:
        if not isinstance(each, Voice):  # pyright: ignore[reportUnnecessaryIsInstance]
            given = type(each).__name__
            raise ConfigurationError(f"voices must list Voice objects, got a {given}: {example}")
    if len({each.name for each in voices}) < len(voices):
        raise ConfigurationError("voices: two have the same name; give each its own")
    if len({id(each.service) for each in voices}) < len(voices):
        raise ConfigurationError("voices: two have the same service; give each its own")


def _now() -> float:
    return asyncio.get_running_loop().time()
