"""A conversation with a bot: recordings in a row, each after the bot has finished, and measured.

Law: what is measured is what the caller's samples say. What the bot says of itself explains it.

``voice_to_voice_secs`` is from the caller's last sound leaving the microphone to the first sound of
the answer, both at the caller's end, the bot's receive buffer and the caller's own (80 ms each in
aiortc) included: somebody on the telephone waits for those too. A filler is a sound, but no answer:
``first_sound_secs`` counts it. Samples do not tell them apart, but the bot's own record of the turn
does, where it sends one (`TurnLatency.first_sound_secs` and `voice_to_voice_secs`). It comes when
the turn is over: a turn in which the LLM never came to an end has none, and is not answered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipecat_hedge.tools.replay.caller import Caller, CallError, HungUp, Said
from pipecat_hedge.tools.replay.ear import HUSH_SECS
from pipecat_hedge.tools.replay.sound import RATE, Utterance, envelope, one_utterance
from pipecat_hedge.tools.replay.told import (
    answer_text,
    is_busy,
    is_unfinished,
    last_change,
    record_of,
    stages_of,
    understood_text,
    written_text,
)

__all__ = ["FILLER_SECS", "Conversation", "HeardTurn", "Waves"]

FINISHED_SECS = 1.0
"""A bot that has been silent for so long has finished, unless it says that it has not."""
SPOKEN_INTO_SECS = 0.8
"""An interruption begins so long after the answer was first heard."""
SPEAKING_SECS = 60.0
"""A bot that speaks for longer does not come to an end."""
FILLER_SECS = 0.05
"""What is heard no longer than this before the answer is its own beginning, and no filler."""
LEAD_SECS, TRAIL_SECS, SHOWN_SECS = 0.2, 1.5, 30.0
"""What a picture shows before the caller speaks, after the bot is heard, and at most."""
POINTS_A_SEC = 60


@dataclass(frozen=True, slots=True)
class Waves:
    """Both sides of a turn, for a picture: the largest magnitude of each sixtieth of a second.

    Parameters:
        caller: The caller, of full scale; shape (n,).
        bot: The bot, as heard; shape (n,).
        secs: How long both are, in seconds.
        spoken_secs: When the caller fell silent, from the beginning.
        heard_secs: When the bot was heard, from the beginning; None if it was not.
    """

    caller: npt.NDArray[np.float64]
    bot: npt.NDArray[np.float64]
    secs: float
    spoken_secs: float
    heard_secs: float | None


@dataclass(frozen=True, slots=True)
class HeardTurn:
    """A recording, and what the bot did about it.

    Parameters:
        recording: The recording's name.
        run: The number of the run, from 1.
        caller: The number of the caller, from 1.
        voice_to_voice_secs: From the caller's last sound to the answer's first, in seconds; None if
            there was no answer. Negative if the bot did not let the caller finish.
        first_sound_secs: The same to the bot's first sound, which may be a filler's.
        error: Why there was no answer; None if there was one.
        silent_after_secs: Of an interruption, from its first sound to the last one of the answer
            that it interrupted, in seconds; None if it interrupted nothing.
        answer_text: What the bot answered, as its messages tell; empty if it sends none. The words
            of a filler that no answer followed are left out.
        understood_text: What the bot understood, likewise.
        stages: When each stage ended, as the bot's messages tell, in seconds from the caller's last
            sound; see ``told.STAGES``.
        record: What the bot itself recorded of the turn, if it sends that.
        late_secs: How late the caller's own frames were, in seconds: the 99th percentile from the
            beginning of the turn to its end. It is the machine's doing, not the bot's.
        bot_late_secs: How late the bot's sound came, likewise: its process did not get to it.
        waves: Both sides, for a picture; None if nothing was said.
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
class _Asked:
    """A recording that has been spoken, while its answer is awaited."""

    utterance: Utterance
    said: Said
    first_message: int
    first_frame: int
    heard_at: float | None = None
    silent_after_secs: float | None = None
    is_unfinished: bool = False
    error: str | None = None


class Conversation:
    """Holds a conversation over a call that has been made.

    Example::

        async with Caller("http://127.0.0.1:7860") as caller:
            conversation = Conversation(caller)
            await conversation.hear_greeting()
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
            caller: A call that has been made.
            timeout_secs: A bot that is silent for so long does not answer.
            run: The number of the run, for the records.
            number: The number of the caller, for the records.
        """
        self.caller = caller
        self._timeout_secs = timeout_secs
        self._run = run
        self._number = number

    async def hear_greeting(self, *, timeout_secs: float = 5.0) -> bool:
        """Let the bot speak first, if it does, and finish.

        Args:
            timeout_secs: How long to wait for it to begin.

        Returns:
            Whether it has spoken.

        Raises:
            CallError: If it hangs up, or does not come to an end.
        """
        try:
            heard_at = await self.caller.heard_since(0.0, timeout_secs=timeout_secs)
        except HungUp:
            raise
        except CallError:
            return False
        await self._finished(heard_at)
        return True

    async def say(self, spoken: Utterance | str | Path) -> HeardTurn:
        """Speak a recording, and listen until the bot has finished.

        Args:
            spoken: The recording, or a path to it.

        Raises:
            ConfigurationError: If it cannot be spoken.
            HungUp: If the bot ends the call.
        """
        asked = await self._ask(_utterance(spoken))
        await self._hear_out(asked)
        return self._heard(asked)

    async def say_and_interrupt(
        self, spoken: Utterance | str | Path, by: Utterance | str | Path
    ) -> tuple[HeardTurn, HeardTurn]:
        """Speak a recording, and another one into its answer; then listen to the end.

        Args:
            spoken: The recording, or a path to it.
            by: The one that interrupts, or a path to it.

        Returns:
            Both turns; the second says how long it took until the bot was silent.

        Raises:
            ConfigurationError: If one cannot be spoken.
            HungUp: If the bot ends the call.
        """
        utterance, interruption = _utterance(spoken), _utterance(by)
        asked = await self._ask(utterance)
        if asked.heard_at is not None:
            await self._spoken_for(asked.heard_at, SPOKEN_INTO_SECS)
        by_asked = await self._ask(interruption, interrupts=True)
        await self._hear_out(by_asked)
        return self._heard(asked, by_asked), self._heard(by_asked)

    # ---- inside

    async def _ask(self, utterance: Utterance, *, interrupts: bool = False) -> _Asked:
        caller = self.caller
        first_message, first_frame = len(caller.messages), len(caller.microphone.late_secs)
        said = await caller.say(utterance)
        asked = _Asked(utterance, said, first_message, first_frame)
        try:
            since = said.ended_at
            if interrupts and caller.ear.speaking_since(said.began_at) is not None:
                silent_at = await caller.silence_since(
                    said.began_at, timeout_secs=self._timeout_secs
                )
                if silent_at > said.began_at:  # else it was over already
                    asked.silent_after_secs = silent_at - said.began_at
                since = max(since, silent_at + 1 / RATE)
            # Who is speaking already has not let the caller finish.
            asked.heard_at = caller.ear.speaking_since(since)
            if asked.heard_at is None or asked.heard_at < said.began_at:
                asked.heard_at = await caller.heard_since(since, timeout_secs=self._timeout_secs)
        except HungUp:
            raise
        except CallError as e:
            asked.error = str(e)
        return asked

    async def _hear_out(self, asked: _Asked) -> None:
        if asked.heard_at is None:
            return
        try:
            await self._finished(max(asked.heard_at, asked.said.ended_at))
        except HungUp:
            raise
        except CallError as e:
            asked.error = str(e)
        else:
            asked.is_unfinished = is_unfinished(self.caller.messages[asked.first_message :])
            if asked.is_unfinished:
                asked.error = (
                    "a sound was heard (a filler perhaps), but the bot did not finish its answer "
                    f"within {self._timeout_secs:g} s"
                )

    async def _finished(self, since: float) -> float:
        """Wait until the bot has said what it has to say, or is silent for too long."""
        caller = self.caller
        longest = SPEAKING_SECS + self._timeout_secs

        def is_finished() -> float | None:
            last = caller.ear.last_loud(since)
            # Between the end of a text and its sound there is a moment of neither.
            silent_secs = caller.ear.heard_at - max(last, last_change(caller.messages))
            waits = is_busy(caller.messages) and silent_secs < self._timeout_secs
            return last if silent_secs >= FINISHED_SECS and not waits else None

        return await caller.until(
            is_finished, f"the bot went on speaking for {longest:g} s", longest
        )

    async def _spoken_for(self, heard_at: float, secs: float) -> None:
        """Wait until the bot has been heard for so long, or has fallen silent."""
        ear = self.caller.ear

        def is_time() -> bool | None:
            silent = ear.heard_at - ear.last_loud(heard_at) >= HUSH_SECS
            return True if silent or ear.heard_at >= heard_at + secs else None

        await self.caller.until(is_time, "the bot's sound stopped", self._timeout_secs)

    def _heard(self, asked: _Asked, interruption: _Asked | None = None) -> HeardTurn:
        caller, said = self.caller, asked.said
        messages = caller.messages[asked.first_message :]
        frames = caller.microphone.late_secs[asked.first_frame :]
        # A bot tells of a turn when it is over: of one that was interrupted, a moment later.
        told = [m for m in messages if m["received_at"] > said.ended_at]
        if interruption is not None:
            told = [m for m in told if m["received_at"] <= interruption.said.ended_at]
            messages = caller.messages[asked.first_message : interruption.first_message]
            frames = frames[: interruption.first_frame - asked.first_frame]
        record = record_of(told)
        first = None if asked.heard_at is None else asked.heard_at - said.ended_at
        later = None if asked.is_unfinished else _filler_secs(record)
        if first is not None and later is None and asked.error is None:
            was = "a filler was heard, but no answer"
            asked.error = was if interruption is None else f"{was} before the interruption"
        is_filler = first is not None and (later is None or later > FILLER_SECS)
        answer_at = None if asked.heard_at is None else asked.heard_at + (later or 0.0)
        return HeardTurn(
            recording=asked.utterance.name,
            run=self._run,
            caller=self._number,
            voice_to_voice_secs=None if first is None or later is None else first + later,
            first_sound_secs=first,
            error=asked.error,
            silent_after_secs=asked.silent_after_secs,
            answer_text=(written_text if later is None else answer_text)(messages),
            understood_text=understood_text(messages),
            stages=stages_of(
                messages,
                said.ended_at,
                None if later is None else answer_at,
                asked.heard_at if is_filler else None,
            ),
            record=record,
            late_secs=_p99(frames),
            bot_late_secs=_p99(caller.ear.late_since(said.began_at)),
            waves=self._waves(asked, answer_at),
        )

    def _waves(self, asked: _Asked, answer_at: float | None) -> Waves:
        utterance, said = asked.utterance, asked.said
        begin = said.began_at - LEAD_SECS
        heard_at = asked.heard_at
        end = said.ended_at if answer_at is None else max(answer_at, said.ended_at)
        end = min(max(end + TRAIL_SECS, begin + 1.0), begin + SHOWN_SECS)
        samples = np.zeros(round((end - begin) * RATE), np.int16)
        offset = round(LEAD_SECS * RATE) - utterance.speech_begins
        spoken = utterance.samples[max(-offset, 0) :]
        place = max(offset, 0)
        samples[place : place + len(spoken)] = spoken[: len(samples) - place]
        points = round((end - begin) * POINTS_A_SEC)
        return Waves(
            envelope(samples, points),
            envelope(self.caller.ear.between(begin, end), points),
            end - begin,
            said.ended_at - begin,
            None if heard_at is None else heard_at - begin,
        )


def _p99(secs: list[float]) -> float:
    return float(np.quantile(secs, 0.99)) if secs else 0.0


def _filler_secs(record: dict[str, Any] | None) -> float | None:
    """How much later than the first sound the answer was; None if the bot says there was none."""
    record = record or {}
    first, answer = record.get("first_sound_secs"), record.get("voice_to_voice_secs")
    if not isinstance(first, (int, float)) or not 0 <= first < math.inf:
        return 0.0
    if not isinstance(answer, (int, float)):
        return None
    if not first <= answer < math.inf:
        return 0.0
    return float(answer - first)


def _utterance(spoken: Utterance | str | Path) -> Utterance:
    return spoken if isinstance(spoken, Utterance) else one_utterance(Path(spoken))
