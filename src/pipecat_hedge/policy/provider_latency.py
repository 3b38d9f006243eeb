"""What is known of one provider, put together from its latency models.

Law: a curve that has been handed out stays what it is; a later one may differ.

Prompts of 1,000 and of 50,000 tokens are different services, so latencies are kept by prompt size,
in a few classes; a class that has seen too little is answered for by all of them together. Curves
are not made anew for each observation, but when about 3 % more have come.

What other processes have seen (``inform``) stands in for what is assumed, part by part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipecat_hedge.policy.change_point import Change, ChangePoint
from pipecat_hedge.policy.latency_model import LatencyModel
from pipecat_hedge.policy.latency_sketch import LatencyCounts, kaplan_meier
from pipecat_hedge.policy.launch_rule import LatencyEstimate
from pipecat_hedge.policy.priors import Prior
from pipecat_hedge.policy.slow_spell import SETTLED, SlowSpell, late_secs
from pipecat_hedge.policy.survival import SurvivalCurve

__all__ = ["OthersCurve", "ProviderLatency", "curves_of", "size_class"]

CLASS_BOUNDS = (2_000, 8_000, 32_000)
"""Prompt tokens at which a class begins."""
CLASS_AT_LEAST = 64
"""Observations that a class needs to answer for itself."""
FRESHNESS, FEW = 32, 4
"""A curve is made anew when one in so many of its observations is new, and not for fewer than so
many, but for the first ones."""
SAVED = 1024
SENTENCE_PRIOR = SurvivalCurve.of(
    [0.02, 0.08, 0.15, 0.3, 0.6, 1.2], [1, 0.9, 0.5, 0.2, 0.05, 0.01], 0.5
)
"""From the first token to the end of the first sentence: ten to twenty tokens at 80 a second."""

UNSIZED, SENTENCE = "u", "s"
"""What is counted besides the classes of sizes: prompts of unknown size, and sentences."""


@dataclass(frozen=True, slots=True)
class OthersCurve:
    """What other processes have seen of one of a provider's latencies.

    Parameters:
        curve: The curve.
        told: How many observations' worth it is.
    """

    curve: SurvivalCurve
    told: float


class _Learned:
    """A model, and its curve as of lately: made when it is asked for."""

    def __init__(self, prior: SurvivalCurve):
        self.model = LatencyModel(prior)
        self._curve = prior
        self._new = 0
        self.others_told = 0.0

    def record(self, secs: float, *, censored: bool) -> None:
        self.model.record(secs, censored=censored)
        self._new += 1

    @property
    def curve(self) -> SurvivalCurve:
        kept = len(self.model)
        if self._new * FRESHNESS >= kept and (self._new >= FEW or 0 < kept < 2 * FEW):
            self.refresh()
        return self._curve

    def inform(self, others: OthersCurve | None) -> None:
        told = 0.0 if others is None else others.told
        self.others_told = told
        if self.model.inform(None if others is None else others.curve, told):
            self.refresh()

    def refresh(self) -> None:
        self._curve, self._new = self.model.curve, 0


class ProviderLatency:
    """Learns how long one provider takes. Not safe for threads; ``ProviderStats`` sees to that.

    Attributes:
        prior: What was assumed at first.
        news: What was seen since others were told of it; None if nobody is to be told.
        changes: How many times what was known has turned out to be no longer true.
        spell: Whether it has turned slow.
        unanswered: How many attempts in a row were waited for in vain, the last ones.
    """

    def __init__(self, prior: Prior):
        """Begin with what is assumed.

        Args:
            prior: The assumption.
        """
        self.prior = prior
        self._all = _Learned(prior.curve)
        self._classes = [_Learned(prior.curve) for _ in range(len(CLASS_BOUNDS) + 1)]
        self._sentence = _Learned(SENTENCE_PRIOR)
        self._watches = [ChangePoint() for _ in range(len(CLASS_BOUNDS) + 1)]
        self._known: dict[tuple[int, bool], LatencyEstimate] = {}
        self._left_by: int | None = None
        self._usual: dict[int, tuple[SurvivalCurve, float]] = {}
        self.spell = SlowSpell()
        self.unanswered = 0
        self.news: LatencyCounts | None = None
        self.changes = 0

    def known(self, prompt_tokens: int | None, *, by_sentence: bool) -> LatencyEstimate:
        """What is known of a prompt of a size.

        Args:
            prompt_tokens: The size; None where it is not known.
            by_sentence: Whether a sentence is what wins.
        """
        curve = self._for(prompt_tokens).curve
        sentence = self._sentence.curve if by_sentence else None
        key = (size_class(prompt_tokens), by_sentence)
        known = self._known.get(key)
        if known is None or known.first_token is not curve or known.sentence is not sentence:
            known = self._known[key] = LatencyEstimate(curve, sentence)
        return known

    def usual(self, prompt_tokens: int | None) -> SurvivalCurve:
        """The times to first token that are usual for a prompt of a size, spells left out.

        Args:
            prompt_tokens: The size; None where it is not known.
        """
        return self._usual_of(prompt_tokens)[0]

    def count_unanswered(self, waited_secs: float, prompt_tokens: int | None) -> None:
        """Take note of an attempt without a first token, if it was waited for longer than usual.

        Args:
            waited_secs: How long.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        self.unanswered += waited_secs > self._usual_of(prompt_tokens)[1]

    def late_secs(self, prompt_tokens: int | None) -> float | None:
        """After how long an attempt is late; None while too little has been seen to say.

        Args:
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        if self.seen < SETTLED and not self.spell.is_on:
            return None
        return self._usual_of(prompt_tokens)[1]

    def _usual_of(self, prompt_tokens: int | None) -> tuple[SurvivalCurve, float]:
        size, curve = size_class(prompt_tokens), self._for(prompt_tokens).curve
        found = self._usual.get(size)
        if found is None or (found[0] is not curve and not self.spell.is_suspected):
            found = self._usual[size] = curve, late_secs(curve)
        return found

    @property
    def seen(self) -> int:
        """How many observations of the first token are kept."""
        return len(self._all.model)

    def prior_weight(self, prompt_tokens: int | None) -> float:
        """How much of what is known of a prompt of a size is still assumed, from 0 to 1."""
        return self._for(prompt_tokens).model.prior_weight

    def record(self, secs: float, *, censored: bool, prompt_tokens: int | None = None) -> None:
        """Take a time to first token.

        Args:
            secs: From the launch, in seconds; if censored, how long it was waited for.
            censored: Whether the wait ended without a token, through no fault of the provider.
            prompt_tokens: The size of the prompt; None where it is not known.
        """
        own = self._classes[size_class(prompt_tokens)]
        answering = self._for(prompt_tokens)
        known = answering.curve
        self._all.record(secs, censored=censored)
        if self.news is not None:
            part = UNSIZED if prompt_tokens is None else str(size_class(prompt_tokens))
            self.news.add(part, secs, censored=censored)
        if prompt_tokens is not None:
            own.model.rebase(self._all.curve)
            own.record(secs, censored=censored)
        # A longer prompt is not a slower provider: watched is only what is compared with its like.
        if answering is own or prompt_tokens is None or len(own.model) > 0.8 * len(self._all.model):
            watch = size_class(prompt_tokens)
            change = self._watches[watch].observe(secs, censored=censored, known=known)
            if change is not None:
                self._change(change, watch, (answering, own))

    def _change(self, change: Change, watch: int, watched: tuple[_Learned, ...]) -> None:
        """What was known of one size is no longer true, and so by the same factor of all."""
        resumes = change.kind == "returned" and self._left_by == watch
        puts_aside = change.kind == "left" and self._left_by in (None, watch)
        put_aside_but = change.keep if puts_aside else None
        for learned in (self._all, *self._classes):
            keep = change.keep if learned in watched else 0
            if resumes:
                learned.model.resume(keep)
            else:
                prior = change.prior if keep else learned.curve.scaled(change.factor)
                learned.model.restart(prior, keep, put_aside_but=put_aside_but)
            learned.others_told = 0.0
            learned.refresh()
        self.changes += 1
        if resumes or puts_aside:
            self._left_by = watch if puts_aside else None
        for other in self._watches:
            other.begin_again()

    def record_sentence(self, secs: float, *, censored: bool) -> None:
        """Take a time from an attempt's first token to its first whole sentence.

        Args:
            secs: The time, in seconds; if censored, how long it was waited for.
            censored: Whether the wait ended without a sentence.
        """
        self._sentence.record(secs, censored=censored)
        if self.news is not None:
            self.news.add(SENTENCE, secs, censored=censored)

    def _for(self, prompt_tokens: int | None) -> _Learned:
        own = self._classes[size_class(prompt_tokens)]
        seen = len(own.model) + own.others_told
        return self._all if prompt_tokens is None or seen < CLASS_AT_LEAST else own

    # ---- shared with other processes

    def take_news(self) -> LatencyCounts:
        """What was seen since the last time, if ``news`` is kept."""
        taken, self.news = self.news or LatencyCounts(), LatencyCounts()
        return taken

    def inform(self, others: Mapping[str, OthersCurve]) -> None:
        """Take what other processes have seen in place of what is assumed.

        Args:
            others: As ``curves_of`` makes them.
        """
        self._all.inform(others.get(UNSIZED))
        for number, learned in enumerate(self._classes):
            learned.model.rebase(self._all.curve)
            learned.inform(others.get(str(number)))
        self._sentence.inform(others.get(SENTENCE))

    # ---- kept between runs

    def saved(self) -> dict[str, Any]:
        """The latest observations, as plain values for a file."""
        return {
            "first_token": _rows(self._all.model),
            "by_class": [_rows(learned.model) for learned in self._classes],
            "sentence": _rows(self._sentence.model),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Take up observations from a file.

        Args:
            saved: What ``saved`` returned.

        Raises:
            KeyError, TypeError, ValueError: If it is something else.
        """
        rows: list[tuple[_Learned, Sequence[Any]]] = [
            (self._all, saved["first_token"]),
            (self._sentence, saved["sentence"]),
            *zip(self._classes, saved["by_class"], strict=True),
        ]
        for learned, observations in rows:
            if learned not in (self._all, self._sentence):
                learned.model.rebase(self._all.curve)
            for secs, censored in observations:
                learned.model.record(float(secs), censored=bool(censored))
            learned.refresh()


def curves_of(
    prior: SurvivalCurve, counts: Sequence[tuple[LatencyCounts, float]]
) -> dict[str, OthersCurve]:
    """The curves of what other processes have seen of a provider.

    Args:
        prior: What is assumed of its time to first token.
        counts: Their counts, each with the weight of one of its observations.

    Returns:
        By what was timed: a class of sizes, sentences, or prompts of any size, under ``UNSIZED``.
    """
    classes = [str(number) for number in range(len(CLASS_BOUNDS) + 1)]
    parts = {UNSIZED: [UNSIZED, *classes], SENTENCE: [SENTENCE], **{c: [c] for c in classes}}
    curves: dict[str, OthersCurve] = {}
    for name, summed in parts.items():
        assumed = SENTENCE_PRIOR if name == SENTENCE else prior
        sketches = [
            (each.parts[part], weight)
            for each, weight in counts
            for part in summed
            if weight > 0 and part in each.parts
        ]
        curve = kaplan_meier(sketches, assumed.tail_secs)
        if curve is not None:
            told = sum(weight * sketch.told(assumed) for sketch, weight in sketches)
            curves[name] = OthersCurve(curve, told)
    return curves


def size_class(prompt_tokens: int | None) -> int:
    """The class of a prompt's size, from 0.

    Args:
        prompt_tokens: The size; None where it is not known, which counts as short.
    """
    return 0 if prompt_tokens is None else bisect_right(CLASS_BOUNDS, prompt_tokens)


def _rows(model: LatencyModel) -> list[list[float | int]]:
    return [[round(secs, 4), int(censored)] for secs, censored in model.observations[-SAVED:]]
