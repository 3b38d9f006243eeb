"""The requests to voices: which voice is asked, when another one is, and what is learned."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from pipecat_hedge.policy.budget_accounts import BudgetAccounts
from pipecat_hedge.policy.priced_delay import PricedDelay
from pipecat_hedge.providers.permits import Terms
from pipecat_hedge.providers.standing import Standing
from pipecat_hedge.providers.verdict import Verdict, classify
from pipecat_hedge.race.events import InFlight, Waiting
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.voice.hosted_voice import SILENCE_SECS, HostedVoice, Synthesis
from pipecat_hedge.voice.spoken_turn import Sentence

_TERMS = Terms()


class VoiceRequests:
    """The requests of one call. The speaker, the budget, and the requests that end change.

    Attributes:
        speaker: The person that the caller hears, as ``HostedVoice.speaker``.
    """

    def __init__(
        self,
        voices: Sequence[HostedVoice],
        budget: float,
        count: Callable[[HostedVoice, str], Coroutine[Any, Any, None]],
    ):
        """Prepare a call.

        Args:
            voices: The voices, the preferred one first.
            budget: The share of characters that may be asked twice to save time.
            count: Counts a text that a voice gets.
        """
        self.speaker = 0
        self._voices, self._budget, self._count = voices, budget, count
        self._accounts = BudgetAccounts()
        self._mean_chars = 0.0
        self._ending = TaskScope()

    def open(self, stats: ProviderStats) -> None:
        """Begin; what is known of voices is in ``stats``."""
        self._stats = stats

    async def join(self) -> None:
        """Wait for what is about to end."""
        await self._ending.join()

    def add_to_budget(self, sentence: Sentence) -> None:
        """A sentence is to be spoken."""
        weight = 0.05 if self._mean_chars else 1.0
        self._mean_chars += weight * (len(sentence.text) - self._mean_chars)
        self._accounts.begin_turn(self._budget, _now())

    async def close(self) -> None:
        """End what has not ended by itself."""
        await self.join()
        await self._ending.close()

    # ---- which voice

    def first_voice(self, sentence: Sentence) -> HostedVoice:
        """The preferred voice of the call that is well."""
        voices = [each for each in self._voices if each.speaker == self.speaker]
        if sentence.is_first:
            voices += [each for each in self._voices if each not in voices]
        return self._best(voices)

    def another_voice(self, sentence: Sentence) -> HostedVoice | None:
        """The voice to ask next for a sentence; None if all have been asked."""
        winner = sentence.winner  # a request that waited behind it was not sent
        behind = None if winner is None else winner.voice
        asked = [x.voice for x in sentence.asked if x.is_sent or x.voice is not behind]
        may_change = sentence.is_first and sentence.winner is None
        voices = [
            each
            for each in self._voices
            if each not in asked and (each.speaker == self.speaker or may_change)
        ]
        voices.sort(key=lambda each: each.speaker != self.speaker)
        if len(asked) == len(set(asked)) and all(map(self.held_secs, voices)):
            again = sorted(self.fitting(sentence), key=sentence.was_failed_by)
            voices += [each.voice for each in again]  # a fresh request
        return self._best(voices) if voices else None

    def fitting(self, sentence: Sentence) -> list[Synthesis]:
        """The requests whose voice may speak: the caller's, or any at the start of a turn."""
        if sentence.is_first and sentence.winner is None:
            return sentence.asked
        return [each for each in sentence.asked if each.voice.speaker == self.speaker]

    def held_secs(self, voice: HostedVoice) -> float:
        """The seconds left of its ``Retry-After``."""
        return self._standings([voice])[0].retry_after_secs

    def hold_back(self, voice: HostedVoice, secs: float) -> None:
        """A voice's provider has sent ``Retry-After``."""
        self._stats.set_retry_after(voice.backend.record_key, _now() + secs)

    def _best(self, voices: Sequence[HostedVoice]) -> HostedVoice:
        """The first that is well; else the first that may be asked, or may be so the soonest."""
        standings = dict(zip(voices, self._standings(voices), strict=True))

        def trouble(voice: HostedVoice) -> tuple[float, bool, bool]:
            it = standings[voice]
            return it.retry_after_secs, it.is_rejecting, it.breaker != "closed"

        return min(voices, key=trouble)

    def _standings(self, voices: Sequence[HostedVoice]) -> list[Standing]:
        keys = [each.backend.record_key for each in voices]
        return self._stats.standing(keys, "hedge", _TERMS, _now())

    # ---- when

    def lead_secs(self, voice: HostedVoice) -> float:
        """The time within which a voice is heard in nine of ten cases."""
        backend = voice.backend
        found = self._stats.estimates([backend], None, by_sentence=False)[backend.provider]
        return found.first_token.quantile(0.9)

    def pay(self, sentence: Sentence, text: str) -> bool:
        """Pay for a further request; whether it may be sent.

        Only one that saves time at the start of a turn needs room in the budget. Without it, the
        voice has until it is late.
        """
        last, now = sentence.asked[-1], _now()
        late_secs, cost = last.voice.late_secs, len(text) / self._mean_chars
        is_late = last.is_over or now >= last.asked_at + late_secs
        if not sentence.is_first or sentence.winner is not None or is_late:
            self._accounts.pay(self._budget, cost, now)
            return True
        if self._accounts.claim(self._budget, cost, now):
            return True
        sentence.patience_secs = late_secs
        return False

    def _patience_secs(self, sentence: Sentence, voice: HostedVoice) -> float:
        """How long a voice may be silent before another one is worth its price."""
        another = self.another_voice(sentence)
        if another is None:
            return voice.late_secs
        first, second = voice.backend, another.backend
        estimates = self._stats.estimates([first, second], None, by_sentence=False)
        share = self._accounts.share(self._budget, 1.0) if sentence.is_first else 1.0
        shares = {second.provider: share}
        rule = PricedDelay(estimates, shares, benefits=self._accounts.benefits)
        waiting = Waiting(0.0, (InFlight(first.provider, 0.0, None),), second.provider)
        at = rule.next_launch(waiting).at
        return voice.late_secs if at is None else min(at, voice.late_secs)

    # ---- a request

    def ask(self, sentence: Sentence, voice: HostedVoice, text: str) -> Synthesis:
        """Ask a voice for a sentence, or for its rest."""
        asked = self._send(sentence, voice, text, sentence.changed, is_extra=bool(sentence.asked))
        if not sentence.is_filler:  # which says nothing of a voice
            work = "hedge" if sentence.asked else "primary"
            key = voice.backend.record_key
            asked.permit = self._stats.issue(key, work, _TERMS, asked.asked_at)
        sentence.asked.append(asked)
        sentence.patience_secs = self._patience_secs(sentence, voice)
        return asked

    def recover(self, sentence: Sentence, besides: HostedVoice) -> None:
        """Try voices whose breaker is half-open with a text that another one speaks."""
        for voice in self._voices:
            if voice is besides or self.held_secs(voice):
                continue
            if self._stats.claim_recovery(voice.backend.record_key, _now()):
                self._ending.start(self._try(voice, sentence), name=f"tries {voice.name}")

    async def _try(self, voice: HostedVoice, sentence: Sentence) -> None:
        changed = asyncio.Event()
        asked = self._send(sentence, voice, sentence.text, changed, is_extra=True)
        asked.permit = self._stats.issue(
            voice.backend.record_key, "hedge", _TERMS, asked.asked_at, is_recovery=True
        )
        was_silent = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_SECS):
                    while asked.audible_at is None and not asked.is_over:
                        changed.clear()
                        await changed.wait()
            was_silent = True
        finally:
            ended = self.finish(asked, was_silent=was_silent)
        await asyncio.wait([ended])

    def _send(
        self,
        sentence: Sentence,
        voice: HostedVoice,
        text: str,
        changed: asyncio.Event,
        *,
        is_extra: bool,
    ) -> Synthesis:
        def sent() -> None:
            self._ending.start(self._count(voice, text), name="counts characters")
            sentence.turn.extra_characters += len(text) * is_extra

        is_urgent = bool(sentence.asked) and sentence.is_next
        return voice.ask(text, changed.set, sent, is_urgent=is_urgent)

    def learn(self, sentence: Sentence) -> None:
        """Learn the times to the first sound of those that can be heard now."""
        for asked in sentence.asked:
            at, permit = asked.audible_at, asked.permit
            if at is not None and permit is not None and not permit.has_token:
                self._stats.record_first_token(permit, at)
                self._stats.record_wait(asked.voice.backend, at - asked.sent_at, None)
                asked.voice.first_sound_secs.append(at - asked.sent_at)

    def finish(
        self, asked: Synthesis, *, was_overtaken: bool = False, was_silent: bool = False
    ) -> asyncio.Task[None]:
        """End a request, and learn from it.

        Args:
            asked: The request.
            was_overtaken: Whether another one was heard, and this one was not.
            was_silent: Whether it then was silent for too long.
        """
        permit, asked.permit = asked.permit, None
        if permit is not None:
            now, verdict = _now(), _verdict(asked, was_silent=was_silent)
            is_silent = asked.audible_at is None and asked.error is None
            self._stats.release(
                permit, verdict, now, has_begun=asked.audible_at is not None,
                was_overtaken=was_overtaken and is_silent,
            )  # fmt: skip
            if is_silent and asked.is_sent:
                waited_secs = now - asked.sent_at
                self._stats.record_wait(asked.voice.backend, waited_secs, None, censored=True)
        return self._ending.start(asked.voice.finish(asked), name="ends a request")


def _verdict(asked: Synthesis, *, was_silent: bool) -> Verdict:
    if asked.audible_at is not None:
        return "answered"
    if asked.error is not None:
        is_permanent = asked.error.permanent
        return "failed" if is_permanent else classify(asked.error, has_answered=False)
    return "silent" if was_silent else "dropped"


def _now() -> float:
    return asyncio.get_running_loop().time()
