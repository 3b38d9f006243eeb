"""Holds a conversation with a bot: plays recordings, each after the bot has finished, and measures.

``voice_to_voice_secs`` is from the caller's last sound to the answer's first, both measured in
samples at the caller, receive buffers included (80 ms each in aiortc). Samples do not separate a
filler from an answer; the bot's own record of the turn does, if it sends one
(`TurnLatency.first_sound_secs` and `voice_to_voice_secs`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipecat_hedge.tools.replay.audio import RATE, Utterance, envelope, one_utterance
from pipecat_hedge.tools.replay.peer import Caller, NoAnswer, SpeechTimes
from pipecat_hedge.tools.replay.rtvi import (
    answer_text,
    filler_secs,
    is_busy,
    is_unfinished,
    last_change,
    stages_of,
    turn_record,
    understood_text,
    written_text,
)
from pipecat_hedge.tools.replay.tracks import PAUSE_SECS

FINISHED_SECS = 1.0
"""The silence after which a bot has finished, unless its messages say otherwise."""
INTERRUPT_AFTER_SECS = 0.8
"""From the first sound of the answer to an interruption."""
SPEAKING_SECS = 60.0
"""The longest answer."""
FILLER_SECS = 0.05
"""A sound at most this long before the answer is the answer's own beginning, not a filler."""
LEAD_SECS = 0.2
"""What a picture shows before the caller's speech."""
TRAIL_SECS = 1.5
"""What it shows after the bot's first sound."""
SHOWN_SECS = 30.0
"""What it shows at most."""
POINTS_PER_SEC = 60


@dataclass(frozen=True, slots=True)
class Waves:
    """Both sides of a turn, for a picture: the peak of each sixtieth of a second.

    Parameters:
        caller: The caller, relative to full scale; shape (n,).
        bot: The bot; shape (n,).
        secs: The duration of both.
        spoken_secs: The end of the caller's speech, from the beginning.
        audible_secs: The bot's first sound, from the beginning; None without one.
    """

    caller: npt.NDArray[np.float64]
    bot: npt.NDArray[np.float64]
    secs: float
    spoken_secs: float
    audible_secs: float | None


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A recording and the bot's answer.

    Parameters:
        recording: The recording's name.
        run: The number of the run, from 1.
        caller: The number of the caller, from 1.
        voice_to_voice_secs: From the caller's last sound to the answer's first; None without an
            answer. Negative if the bot did not let the caller finish.
        first_sound_secs: The same to the bot's first sound, which may be a filler's.
        error: Why there was no answer; None if there was one.
        silent_after_secs: Of an interruption, from its first sound to the last sound of the
            interrupted answer; None if it interrupted nothing.
        answer_text: The answer's text, by the bot's messages; empty if it sends none. A filler's
            text without an answer is excluded.
        understood_text: The bot's transcript of the caller, likewise.
        stages: The end of each stage, by the bot's messages, in seconds from the caller's last
            sound; see ``rtvi.STAGES``.
        record: The bot's own record of the turn, if it sends one.
        late_secs: The 99th percentile of the delay of the caller's own frames, in seconds. It
            indicates a slow machine, not a slow bot.
        bot_late_secs: The same of the bot's audio: its process was starved.
        waves: Both sides, for a picture; None if nothing was played.
    """

    recording: str
    run: int = 1
    caller: int = 1
    voice_to_voice_secs: float | None = None
    first_sound_secs: float | None = None
    error: str | None = None
    silent_after_secs: float | None = None
    answer_text: str = ""
    understood_text: str = ""
    stages: dict[str, float] = field(default_factory=dict[str, float])
    record: dict[str, Any] | None = None
    late_secs: float = 0.0
    bot_late_secs: float = 0.0
    waves: Waves | None = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class _Exchange:
    """A played recording, and what has come back so far."""

    utterance: Utterance
    speech: SpeechTimes
    first_message: int
    first_frame: int
    audible_at: float | None = None
    silent_after_secs: float | None = None
    is_unfinished: bool = False
    error: str | None = None


class Conversation:
    """Holds a conversation over an established call.

    Example::

        async with Caller("http://127.0.0.1:7860") as caller:
            conversation = Conversation(caller)
            await conversation.wait_for_greeting()
            turn = await conversation.say("fixtures/audio/hours.flac")
            print(turn.voice_to_voice_secs, turn.answer_text)

    Attributes:
        caller: The call.
    """

    def __init__(
        self, caller: Caller, *, timeout_secs: float = 15.0, run: int = 1, number: int = 1
    ):
        """Prepare a conversation.

        Args:
            caller: An established call.
            timeout_secs: The longest silence before a turn counts as unanswered, in seconds.
            run: The number of the run, for the results.
            number: The number of the caller, for the results.
        """
        self.caller = caller
        self._timeout_secs = timeout_secs
        self._run = run
        self._number = number

    async def wait_for_greeting(self, *, timeout_secs: float = 5.0) -> bool:
        """Wait for the bot's greeting, if it has one, to end.

        Args:
            timeout_secs: The longest wait for its beginning, in seconds.

        Returns:
            Whether the bot spoke.

        Raises:
            CallError: If it hangs up, or does not stop speaking.
        """
        try:
            audible_at = await self.caller.wait_until_audible(0.0, timeout_secs=timeout_secs)
        except NoAnswer:
            return False
        await self._wait_until_finished(audible_at)
        return True

    async def say(self, spoken: Utterance | str | Path) -> TurnResult:
        """Play a recording, and wait for its end.

        Args:
            spoken: The recording, or a path to it.

        Returns:
            The turn; an unanswered one has an ``error``.

        Raises:
            ConfigurationError: If it cannot be played.
            HungUp: If the bot ends the call.
        """
        exchange = await self._speak(_utterance(spoken))
        await self._wait_for_answer(exchange)
        return self._result(exchange)

    async def say_and_interrupt(
        self, spoken: Utterance | str | Path, by: Utterance | str | Path
    ) -> tuple[TurnResult, TurnResult]:
        """Play a recording, interrupt its answer with another one, and wait for its end.

        Args:
            spoken: The recording, or a path to it.
            by: The interrupting recording, or a path to it.

        Returns:
            Both turns; the second has the time until the bot was silent.

        Raises:
            ConfigurationError: If one cannot be played.
            HungUp: If the bot ends the call.
        """
        utterance, interruption = _utterance(spoken), _utterance(by)
        first = await self._speak(utterance)
        if first.audible_at is not None:
            await self._wait_into_answer(first.audible_at)
        second = await self._speak(interruption, interrupts=True)
        await self._wait_for_answer(second)
        return self._result(first, second), self._result(second)

    # ---- inside

    async def _speak(self, utterance: Utterance, *, interrupts: bool = False) -> _Exchange:
        """Play a recording, and wait for the first sound of the answer."""
        caller = self.caller
        first_message, first_frame = len(caller.messages), len(caller.sender.late_secs)
        speech = await caller.say(utterance)
        exchange = _Exchange(utterance, speech, first_message, first_frame)
        try:
            since = speech.ended_at
            if interrupts and caller.receiver.speaking_since(speech.began_at) is not None:
                silent_at = await caller.wait_until_silent(
                    speech.began_at, timeout_secs=self._timeout_secs
                )
                if silent_at > speech.began_at:  # else the answer had already ended
                    exchange.silent_after_secs = silent_at - speech.began_at
                since = max(since, silent_at + 1 / RATE)
            # A bot that already speaks did not let the caller finish.
            exchange.audible_at = caller.receiver.speaking_since(since)
            if exchange.audible_at is None or exchange.audible_at < speech.began_at:
                exchange.audible_at = await caller.wait_until_audible(
                    since, timeout_secs=self._timeout_secs
                )
        except NoAnswer as e:
            exchange.error = str(e)
        return exchange

    async def _wait_for_answer(self, exchange: _Exchange) -> None:
        if exchange.audible_at is None:
            return
        try:
            await self._wait_until_finished(max(exchange.audible_at, exchange.speech.ended_at))
        except NoAnswer as e:
            exchange.error = str(e)
        else:
            exchange.is_unfinished = is_unfinished(self.caller.messages[exchange.first_message :])
            if exchange.is_unfinished:
                exchange.error = (
                    "a sound was heard (perhaps a filler), but the bot did not finish its answer "
                    f"within {self._timeout_secs:g} s"
                )

    async def _wait_until_finished(self, since: float) -> None:
        """Wait until the answer is complete, or the bot is silent for too long."""
        caller = self.caller
        longest = SPEAKING_SECS + self._timeout_secs

        def is_finished() -> bool | None:
            last = caller.receiver.last_loud(since)
            # There may be a gap between the end of a text and its sound.
            silent_secs = caller.receiver.received_at - max(last, last_change(caller.messages))
            waits = is_busy(caller.messages) and silent_secs < self._timeout_secs
            return True if silent_secs >= FINISHED_SECS and not waits else None

        await caller.until(is_finished, f"the bot went on speaking for {longest:g} s", longest)

    async def _wait_into_answer(self, audible_at: float) -> None:
        """Wait until it is time to interrupt, or the bot is silent."""
        receiver = self.caller.receiver

        def is_time() -> bool | None:
            silent = receiver.received_at - receiver.last_loud(audible_at) >= PAUSE_SECS
            return (
                True
                if silent or receiver.received_at >= audible_at + INTERRUPT_AFTER_SECS
                else None
            )

        await self.caller.until(is_time, "the bot's sound stopped", self._timeout_secs)

    def _result(self, exchange: _Exchange, interruption: _Exchange | None = None) -> TurnResult:
        caller, speech, audible_at = self.caller, exchange.speech, exchange.audible_at
        # A bot sends a turn's record at its end; after an interruption a moment later.
        messages_end = frames_end = None
        record_until = float("inf")
        if interruption is not None:
            messages_end, frames_end = interruption.first_message, interruption.first_frame
            record_until = interruption.speech.ended_at
        messages = caller.messages[exchange.first_message : messages_end]
        record = turn_record(
            [
                message
                for message in caller.messages[exchange.first_message :]
                if speech.ended_at < message["received_at"] <= record_until
            ]
        )
        first = None if audible_at is None else audible_at - speech.ended_at
        # None: a sound without an answer.
        later = None if exchange.is_unfinished else filler_secs(record)
        error = exchange.error
        if first is not None and later is None and error is None:
            error = "a filler was heard, but no answer"
            error += "" if interruption is None else " before the interruption"
        answer_at = None if audible_at is None or later is None else audible_at + later
        is_filler = audible_at is not None and (later is None or later > FILLER_SECS)
        return TurnResult(
            recording=exchange.utterance.name,
            run=self._run,
            caller=self._number,
            voice_to_voice_secs=None if answer_at is None else answer_at - speech.ended_at,
            first_sound_secs=first,
            error=error,
            silent_after_secs=exchange.silent_after_secs,
            answer_text=(written_text if later is None else answer_text)(messages),
            understood_text=understood_text(messages),
            stages=stages_of(
                messages, speech.ended_at, answer_at, audible_at if is_filler else None
            ),
            record=record,
            late_secs=_p99(caller.sender.late_secs[exchange.first_frame : frames_end]),
            bot_late_secs=_p99(caller.receiver.late_since(speech.began_at)),
            waves=self._waves(exchange, answer_at),
        )

    def _waves(self, exchange: _Exchange, answer_at: float | None) -> Waves:
        utterance, speech, audible_at = exchange.utterance, exchange.speech, exchange.audible_at
        begin = speech.began_at - LEAD_SECS
        last = max(at for at in (speech.ended_at, audible_at, answer_at) if at is not None)
        secs = min(max(last + TRAIL_SECS - begin, 1.0), SHOWN_SECS)
        points = round(secs * POINTS_PER_SEC)
        spoken = np.pad(utterance.samples, (round(LEAD_SECS * RATE), round(secs * RATE)))
        spoken = spoken[utterance.speech_begins :][: round(secs * RATE)]
        return Waves(
            envelope(spoken, points),
            envelope(self.caller.receiver.between(begin, begin + secs), points),
            secs,
            speech.ended_at - begin,
            None if audible_at is None else audible_at - begin,
        )


def _p99(secs: list[float]) -> float:
    return float(np.quantile(secs, 0.99)) if secs else 0.0


def _utterance(spoken: Utterance | str | Path) -> Utterance:
    return spoken if isinstance(spoken, Utterance) else one_utterance(spoken)
