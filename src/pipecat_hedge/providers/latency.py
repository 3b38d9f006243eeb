"""Learns one provider's latencies, and detects that it has changed or turned slow.

Latency depends on the prompt's size, so each of a few size classes has a model of its own. A class
with too few observations uses the model of all sizes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipecat_hedge.providers.change_point import LEAST_FACTOR, MOST_FACTOR, ChangePoint
from pipecat_hedge.providers.latency_model import (
    BUCKETS,
    AnswerTimes,
    LatencyModel,
    bucket_of,
    end_of,
    value_of,
)
from pipecat_hedge.providers.slow_period import (
    ENOUGH,
    RECOVERED,
    SLOW,
    SlowPeriod,
    late_secs,
)
from pipecat_hedge.providers.survival import Floats, SurvivalCurve
from pipecat_hedge.race.attempt import MISSED_DEADLINE, STALLED, TIMED_OUT, Attempt

CLASS_BOUNDS = (2_000, 8_000, 32_000)
"""Prompt tokens at which a class begins."""
CLASS_AT_LEAST = 64
"""Observations that a class needs to answer for itself."""
AT_FIRST_OBSERVED = 3
"""How many losers of a provider without answers run on, to see whether it is slow or silent."""
TRIAL_EVERY_SECS = 10.0
"""How often a provider that lost its place by its silence is tried beside another one."""
SILENT_SECS = 1.5
"""A shorter wait is no silence, however fast the provider typically is."""
UNKNOWN_SILENT_SECS = 1.2
"""The same before ``ENOUGH`` answers, while no slow period can be detected."""
SENTENCE_PRIOR = SurvivalCurve.of(
    [0.02, 0.08, 0.15, 0.3, 0.6, 1.2], [1, 0.9, 0.5, 0.2, 0.05, 0.01], 0.5
)
"""From the first token to the end of the first sentence: ten to twenty tokens at 80 a second."""

ALL = len(CLASS_BOUNDS) + 1
"""The model of prompts of any size; the models before it are those of the size classes."""
SENTENCE = ALL + 1
"""The model of the time from the first token to the first sentence."""
COUNTS = (SENTENCE + 1, 2, BUCKETS)
"""The shape of a provider's counts: by model, answered or censored, and bucket."""
WAITED = (STALLED, TIMED_OUT, MISSED_DEADLINE)
"""Errors after a wait: it is a lower bound of the time to first token."""
LEAST_UTTERANCES = 20
"""Utterances from which a recogniser's transcripts are known."""
ENOUGH_UTTERANCES = 99
"""Utterances from which a p99 is known; before, the largest time stands for it."""
MARGIN = 1.1
"""The largest of 20 times is their p95: the p99 is assumed to be so many times as long."""
SEVERAL_SHARE = 0.01
"""A recogniser that sends more utterances than this in several transcripts may have more to say."""
ONE = 3
"""The first buckets, in which one transcript counts: processes share counts of three buckets."""
SILENCES = 2
"""One silence may be a lost packet; after two in a row a provider loses its place."""


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """The estimate of a provider's latency.

    Parameters:
        first_token: From the launch of an attempt to its first usable token.
        sentence: From the first token to the first whole sentence; None where a token wins.
        typical: The typical times to first token: in a slow period those before it.
        prior_weight: The prior's share in it, from 1 to nearly 0.
        answers: Quantiles of the answers that came; waits that were cut short are left out.
        silences: How many of its latest attempts in a row were silent until they were cut.
    """

    first_token: SurvivalCurve
    sentence: SurvivalCurve | None
    typical: SurvivalCurve
    prior_weight: float
    answers: AnswerTimes
    silences: int

    @property
    def may_hang(self) -> bool:
        """Whether its latest attempt was silent, and none has been answered since."""
        return self.silences > 0

    @property
    def is_silent(self) -> bool:
        """Whether it was silent several times in a row, so that another provider comes first."""
        return self.silences >= SILENCES


@dataclass(frozen=True, slots=True)
class TranscriptTimes:
    """How long a recogniser takes from the end of speech to the last transcript.

    Parameters:
        p50_secs: The median.
        p99_secs: The p99; below ``ENOUGH_UTTERANCES`` the largest with a margin.
        sends_one: Whether it sends one transcript after the VAD has noticed the end of speech.
    """

    p50_secs: float
    p99_secs: float
    sends_one: bool


class ProviderLatency:
    """Learns how long one provider takes. Protected by the registry's lock.

    Attributes:
        totals: What was seen here and is not shared yet, in plain counts of shape ``COUNTS``; None
            if nothing is shared with other processes.
        slow_period: Whether the provider has turned slow.
        silences: How many of the latest attempts in a row were silent until they were cut.
    """

    def __init__(self, prior: SurvivalCurve):
        """Begin with a prior.

        Args:
            prior: The assumed time to first token.
        """
        self._models = [LatencyModel(prior) for _ in range(ALL + 1)]
        self._models.append(LatencyModel(SENTENCE_PRIOR))
        self._watches = [ChangePoint() for _ in range(len(CLASS_BOUNDS) + 1)]
        self._typical: dict[int, tuple[SurvivalCurve, float]] = {}
        self.slow_period = SlowPeriod()
        self._was_slow = False
        self.silences = self._observed = 0
        self._held: list[tuple[float, int | None]] = []
        self._trial_at = float("-inf")
        self.totals: npt.NDArray[np.int64] | None = None

    # ---- estimates

    def estimate(self, prompt_tokens: int | None, *, by_sentence: bool) -> LatencyEstimate:
        """The estimate for a prompt of a size.

        Args:
            prompt_tokens: The size; None if unknown.
            by_sentence: Whether the first sentence wins.
        """
        model = self._for(prompt_tokens)
        return LatencyEstimate(
            model.curve,
            self._models[SENTENCE].curve if by_sentence else None,
            self._typical_of(prompt_tokens, model)[0],
            model.prior_weight,
            model.answers,
            self.silences,
        )

    def late_secs(self, prompt_tokens: int | None) -> float:
        """After how long an attempt is late.

        Args:
            prompt_tokens: The size of the prompt; None if unknown.
        """
        return self._typical_of(prompt_tokens, self._for(prompt_tokens))[1]

    @property
    def has_typical(self) -> bool:
        """Whether a typical latency is known, so that an answer can be late."""
        return self.seen >= ENOUGH or self.slow_period.is_on

    def _typical_of(
        self, prompt_tokens: int | None, model: LatencyModel
    ) -> tuple[SurvivalCurve, float]:
        size, curve = size_class(prompt_tokens), model.curve
        found = self._typical.get(size)
        if found is None or (found[0] is not curve and not self.slow_period.is_suspected):
            found = self._typical[size] = curve, late_secs(curve)
        return found

    @property
    def seen(self) -> int:
        """The number of observed times to first token."""
        return len(self._models[ALL])

    def _for(self, prompt_tokens: int | None) -> LatencyModel:
        own = self._models[size_class(prompt_tokens)]
        is_known = prompt_tokens is not None and own.seen >= CLASS_AT_LEAST
        return own if is_known else self._models[ALL]

    # ---- observations

    def learn(
        self,
        attempt: Attempt,
        first_at: float | None,
        ended_at: float,
        prompt_tokens: int | None,
        *,
        with_sentence: bool,
        is_silence: bool,
    ) -> None:
        """Learn from an attempt that has ended.

        An error carries no information on latency, except one for a missing answer (``WAITED``).

        Args:
            attempt: The attempt.
            first_at: When its first token came; None if none did.
            ended_at: When it ended.
            prompt_tokens: The size of the prompt; None if unknown.
            with_sentence: Whether to learn the time to its first sentence.
            is_silence: Whether it was silent; see ``record_silence``.
        """
        if first_at is None and attempt.outcome == "failed" and attempt.error not in WAITED:
            self.slow_period.forget(attempt)
            return
        self.learn_wait(attempt, first_at, ended_at, prompt_tokens, is_silence=is_silence)
        if first_at is None or not with_sentence or attempt.is_unsure:
            return
        if attempt.speakable_at is not None:
            self.record_sentence(attempt.speakable_at - first_at, censored=False)
        elif not attempt.called_tools and attempt.outcome != "failed":
            self.record_sentence(ended_at - first_at, censored=True)

    def learn_wait(
        self,
        attempt: Attempt,
        first_at: float | None,
        now: float,
        prompt_tokens: int | None,
        *,
        is_silence: bool = False,
    ) -> None:
        """Learn an attempt's time to first token, or its wait until now; see ``learn``."""
        until = now if first_at is None else first_at - attempt.lag_secs
        secs = max(until - attempt.launched_at, 0.0)
        late_after = self.late_secs(prompt_tokens)
        if first_at is None:
            self.slow_period.ended(attempt, secs, late_after, has_answered=False)
            if is_silence:
                self.record_silence(secs, prompt_tokens)
            else:
                self.record(secs, censored=True, prompt_tokens=prompt_tokens)
            return
        self.end_silence()
        if not self.has_typical:
            late_after = math.inf
        self.slow_period.ended(attempt, secs, late_after, has_answered=True)
        if attempt.lag_secs:
            # Between ``secs`` and when it was read: where the provider's other answers come.
            curve, read_secs = self._for(prompt_tokens).curve, first_at - attempt.launched_at
            secs = curve.median_between(secs, read_secs)
        self.record(secs, censored=False, prompt_tokens=prompt_tokens)

    def record(self, secs: float, *, censored: bool, prompt_tokens: int | None = None) -> None:
        """Learn a time to first token.

        Args:
            secs: From the launch, in seconds; if censored, the elapsed wait.
            censored: Whether the wait ended without a token, through no fault of the provider.
            prompt_tokens: The size of the prompt; None if unknown.
        """
        size, everything = size_class(prompt_tokens), self._models[ALL]
        own, answering = self._models[size], self._for(prompt_tokens)
        curve, bucket = answering.curve, bucket_of(secs)
        self._count(ALL, bucket, censored)
        if prompt_tokens is not None:
            own.rebase(everything.latest_curve)
            self._count(size, bucket, censored)
        was_slow, self._was_slow = self._was_slow, self.slow_period.is_on
        if self._has_like(prompt_tokens):
            watched = answering, own
            timed = value_of(bucket)  # as the curve has it
            change = self._watches[size].observe(timed, censored=censored, curve=curve)
            if change is not None:
                self._restart(change.before, change.factor, change.keep, watched)
            if self._was_slow and not was_slow:
                typical = self._typical_of(prompt_tokens, answering)[0]
                factor = self.slow_period.counted_secs / max(typical.quantile(0.5), 1e-3)
                factor = min(max(factor, LEAST_FACTOR), MOST_FACTOR)
                self._restart(typical, factor, SLOW, watched, put_aside=True)
        if was_slow and not self._was_slow:
            self._resume((answering, own))

    def record_apart(self, secs: float, *, censored: bool, prompt_tokens: int | None) -> None:
        """Learn a time to first token that was measured outside of a race; see ``record``."""
        if self.has_typical and self._has_like(prompt_tokens):
            late_after = self.late_secs(prompt_tokens)
            self.slow_period.count(secs, late_after, has_answered=not censored)
        self.record(secs, censored=censored, prompt_tokens=prompt_tokens)

    def _has_like(self, prompt_tokens: int | None) -> bool:
        """Whether a prompt is compared with prompts of its size: a longer one is not a slow one."""
        own, everything = self._models[size_class(prompt_tokens)], self._models[ALL]
        is_known = self._for(prompt_tokens) is own or len(own) > 0.8 * len(everything)
        return prompt_tokens is None or is_known

    def record_sentence(self, secs: float, *, censored: bool) -> None:
        """Learn a time from an attempt's first token to its first whole sentence.

        Args:
            secs: The time, in seconds; if censored, the elapsed wait.
            censored: Whether the wait ended without a sentence.
        """
        self._count(SENTENCE, bucket_of(secs), censored)

    def record_transcript(self, secs: float, since_first_secs: float | None) -> None:
        """Learn an utterance's transcripts.

        Args:
            secs: From the end of speech to the last one, in seconds.
            since_first_secs: Between the first and the last one that came after the VAD had noticed
                the end of speech: 0 if there was one, None if there was none.
        """
        self._count(ALL, bucket_of(secs), censored=False)
        if since_first_secs is not None:
            is_one = since_first_secs == 0
            self._count(SENTENCE, 0 if is_one else max(bucket_of(since_first_secs), ONE), False)

    @property
    def transcripts(self) -> TranscriptTimes | None:
        """What ``record_transcript`` has learned; None below ``LEAST_UTTERANCES``."""
        came, apart = (self._models[number].known[0] for number in (ALL, SENTENCE))
        total, ends = came.cumsum(), apart.sum()
        if total[-1] < LEAST_UTTERANCES - 0.5:
            return None
        is_enough = total[-1] >= ENOUGH_UTTERANCES - 0.5
        p50, p99 = (end_of(int(total.searchsorted(p * total[-1]))) for p in (0.5, 0.99))
        if not is_enough:
            p99 = MARGIN * end_of(int(np.flatnonzero(came)[-1]))
        sends_one = (
            ends >= LEAST_UTTERANCES - 0.5 and apart[:ONE].sum() >= (1 - SEVERAL_SHARE) * ends
        )
        return TranscriptTimes(p50, p99, bool(sends_one))

    def is_silence(self, waited_secs: float, prompt_tokens: int | None) -> bool:
        """Whether a wait without output was a silence, and not just cut short.

        Args:
            waited_secs: How long.
            prompt_tokens: The size of the prompt; None if unknown.
        """
        answers = self._for(prompt_tokens).answers
        least = SILENT_SECS if answers.seen >= ENOUGH else UNKNOWN_SILENT_SECS
        return waited_secs >= max(answers.p90, least)

    def record_silence(self, secs: float, prompt_tokens: int | None) -> None:
        """Hold a silence back, until another follows or the provider answers.

        Learned at once, it would delay the next turn's hedge.
        """
        self._held.append((secs, prompt_tokens))
        if self.silences >= SILENCES:
            self._record_held()

    def end_silence(self) -> None:
        """Learn that the provider answers.

        A single silence among few answers is dropped: it would delay the hedges of many turns.
        """
        self.silences = 0
        if self._models[ALL].answers.seen >= ENOUGH:
            self._record_held()
        self._held.clear()

    def _record_held(self) -> None:
        held, self._held = self._held, []
        for secs, prompt_tokens in held:
            self.record(secs, censored=True, prompt_tokens=prompt_tokens)

    def claim_trial(self, now: float | None) -> bool:
        """Whether a trial is due, which then begins."""
        if now is not None and now < self._trial_at:
            return False
        self._trial_at = (now or 0.0) + TRIAL_EVERY_SECS
        return True

    def claim_observation(self) -> bool:
        """Whether a loser runs on, one of ``AT_FIRST_OBSERVED``, while there is no answer."""
        if self._models[ALL].answers.seen or self._observed >= AT_FIRST_OBSERVED:
            return False
        self._observed += 1
        return True

    def drop_observation(self) -> None:
        """Uncount an observation that was cut short."""
        self._observed -= 1

    def _count(self, model: int, bucket: int, censored: bool) -> None:
        self._models[model].count(bucket, censored)
        if self.totals is not None:
            self.totals[model, int(censored), bucket] += 1

    def _restart(
        self,
        before: SurvivalCurve,
        factor: float,
        keep: int,
        watched: tuple[LatencyModel, ...],
        *,
        put_aside: bool = False,
    ) -> None:
        """Restart all models from their curves, scaled by the factor observed in one size.

        Args:
            before: The curve of that size before the change.
            factor: The present level in units of the one before.
            keep: How many of the latest observations belong to the present.
            watched: The models that have these observations.
            put_aside: Whether ``_resume`` restores the models from before.
        """
        for model in self._models[:SENTENCE]:
            prior, present = (before, keep) if model in watched else (model.curve, 0)
            aside = present if put_aside else None
            model.restart(prior.scaled(factor), present, put_aside_but=aside)
        self._changed()

    def _resume(self, watched: tuple[LatencyModel, ...]) -> None:
        """Restore the models from before the slow period, which is over."""
        for model in self._models[:SENTENCE]:
            model.resume(RECOVERED if model in watched else 0)
        self._changed()

    def _changed(self) -> None:
        """Share nothing from before a change, and compare with nothing from before it."""
        if self.totals is not None:
            self.totals[:SENTENCE] = 0
        for watch in self._watches:
            watch.begin_again()

    # ---- shared with other processes, and kept between runs

    def share(self) -> None:
        """Count what is seen from now on, for other processes."""
        self.totals = np.zeros(COUNTS, np.int64)

    def added(self, counts: npt.NDArray[np.int64]) -> None:
        """Count no more what other processes have got."""
        if self.totals is not None:
            np.maximum(self.totals - counts, 0, out=self.totals)

    def inform(self, others: Floats | None) -> None:
        """Use other processes' observations in place of the prior.

        Args:
            others: Their counts, of shape ``COUNTS``; None if there are none.
        """
        for number, model in enumerate(self._models):
            if number < ALL:
                model.rebase(self._models[ALL].curve)
            model.inform(None if others is None else others[number])

    def saved(self) -> dict[str, Any]:
        """The state as plain values, for a file."""
        counts = np.stack([model.counts for model in self._models]).ravel()
        used = np.flatnonzero(counts >= 0.005)
        return {
            "seen": [len(model) for model in self._models],
            "buckets": used.tolist(),
            "counts": counts[used].round(2).tolist(),
            "slow_period": self.slow_period.saved(),
            "late_secs": [[size, round(late, 3)] for size, (_, late) in self._typical.items()],
            "silences": self.silences,
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore the state from a file.

        Args:
            saved: What ``saved`` returned.

        Raises:
            KeyError, TypeError, ValueError, IndexError: If it is something else.
        """
        counts = np.zeros(COUNTS).ravel()
        at, values = (np.asarray(saved[name]) for name in ("buckets", "counts"))
        if not np.all((values >= 0) & (values < 1e9)):
            raise ValueError("counts must not be negative, and must be finite")
        counts[at.astype(np.int64)] = values
        seen = [int(each) for each in saved["seen"]]
        if min(seen) < 0:
            raise ValueError("seen must not be negative")
        for model, of_model, number in zip(self._models, counts.reshape(COUNTS), seen, strict=True):
            model.restore(of_model, number)
        for model in self._models[:ALL]:
            model.rebase(self._models[ALL].curve)
            model.refresh()
        self.slow_period.restore(saved.get("slow_period", (0, 0, 0, 0.0)))
        self._was_slow = self.slow_period.is_on
        if self.slow_period.is_suspected:  # typical is then the curve from before
            curve = self._models[ALL].curve
            self._typical = {int(size): (curve, float(late)) for size, late in saved["late_secs"]}
        self.silences = max(int(saved.get("silences", 0)), 0)


def size_class(prompt_tokens: int | None) -> int:
    """The class of a prompt's size, from 0.

    Args:
        prompt_tokens: The size; None if unknown, which counts as short.
    """
    return 0 if prompt_tokens is None else bisect_right(CLASS_BOUNDS, prompt_tokens)
