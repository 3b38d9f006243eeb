"""What would have helped: other orders, policies and providers, replayed over the same turns.

The problem: a report that says "p95 is 4 s" leaves its reader with the question what to do. The
naive answer is a list of advice. Ours is a list of changes that were *tried*: each is a question to
`whatif`, which replays the logged turns with the service's own objects in virtual time, and is told
with what it would have done to callers and to the bill.

- Tried are: the other order of providers, and one that is learned; each as the only one; another
  one to hedge to; other policies and budgets, up to asking both in every turn; and the same with
  every connection open beforehand, where the log tells what opening them took.
- What a change is worth is what it saves of the mean wait (a turn without an answer counts a
  minute), less ``WORTH_SECS`` for each request that it adds a turn: the exchange rate that
  ``HedgePolicy.adaptive`` and `whatif` go by. So a change may also help by saving requests.
- Both sides of a comparison are replayed, and never what was replayed with what was measured.
- A change must be worth more than chance makes of it: ``SURE`` of the largest of all the
  differences that are looked at, by a bootstrap of what was measured (``chances.py``). The largest
  is looked for in each of the draws (Westfall and Young, 1993): three budgets are wrong together,
  and to allow for each as if it were alone would hide what all of them show.
- Who is put first must be known up to the p95 that would follow. A provider that was only ever
  hedged to is mostly cancelled before that; then it is said that it is not known.
- Of each kind the best is told: three budgets are not three changes. To ask both in every turn is
  of a kind of its own, for it costs most: who does not want to pay for it sees what a budget does.

Left out: what the log cannot tell. A provider that was only ever hedged to was asked at bad
moments; if those were bad for it as well, it is better than predicted. Rate limits that more
requests would meet are not replayed, and neither is what a turn waits for room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipecat_hedge.policy.hedge_policy import AtOnce, HedgePolicy
from pipecat_hedge.policy.settings import told
from pipecat_hedge.race.reports import TurnReport
from pipecat_hedge.tools.analysis.report.candidates import Lineup
from pipecat_hedge.tools.analysis.report.chances import Chances
from pipecat_hedge.tools.analysis.report.predictions import (
    Prediction,
    Prices,
    predict,
    requests_of,
    waits_of,
)
from pipecat_hedge.tools.analysis.report.trials import (
    AS_IT_WAS,
    LEARNED,
    LEAST_ANSWERS,
    NONE,
    REPLACED,
    SECOND_BUILD,
    Kind,
    Trial,
    guessed_policy,
    trials_of,
    warmed,
)
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn
from pipecat_hedge.tools.analysis.whatif.answer import Answer, Outcome
from pipecat_hedge.tools.analysis.whatif.drawing import known_to
from pipecat_hedge.tools.analysis.whatif.question import Question
from pipecat_hedge.tools.analysis.whatif.reading import ReadingError, Recorded, recorded_from
from pipecat_hedge.tools.analysis.whatif.replaying import what_if

__all__ = ["Change", "Replays", "critical_value", "replays_of"]

WORTH_SECS = 0.15
"""What an extra request must save to be worth it; as ``HedgePolicy.adaptive`` has it."""
LEAST_WORTH_SECS = 0.005
"""Of a mean wait, nobody notices less."""
SURE = 0.975
"""So sure it must be that no change is told which is chance, of all that were tried together."""
LEAST_TURNS, MOST_TURNS = 4000, 6000
"""So many turns are replayed: enough to see a p99, few enough that a dozen replays take seconds."""
MOST_LEARNED, STRETCH = 20_000, 1000
"""Of a longer log, so many turns say what providers are like, in stretches from all over it."""


@dataclass(frozen=True, slots=True)
class Change:
    """Something to change.

    Parameters:
        kind: ``order``, ``policy``, ``race``, ``second``, ``only one`` or ``connections``.
        title: What, in a few words.
        how: How, for whoever writes the bot.
        before: The turns as they were, replayed.
        after: The same with the change.
        saved_secs: What it saves of the mean wait.
        min_saving_secs: The same less what the requests that it adds must save.
    """

    kind: Kind
    title: str
    how: str
    before: Prediction
    after: Prediction
    saved_secs: float
    min_saving_secs: float


@dataclass(frozen=True, slots=True)
class Replays:
    """What replays tell.

    Parameters:
        first: Who is asked first.
        second: Who is hedged to.
        as_it_was: The policy of the log, replayed.
        policy_is_told: Whether the log tells that policy; else it is a guess.
        without: One request a turn.
        replaced: One request a turn, and another one where it fails; None where none ever failed.
        changes: The changes that would help most, the best one first.
        unseen: Who is not known well enough to tell what asking them first would do, and up to
            which time they are, in seconds.
        tried: How many were tried.
        replayed: How many turns each replay has.
        independence: How far slow turns come together, which replays of a second request do not
            know of, in a sentence.
    """

    first: str
    second: str
    as_it_was: Prediction
    policy_is_told: bool
    without: Prediction
    replaced: Prediction | None
    changes: tuple[Change, ...]
    unseen: tuple[tuple[str, float], ...]
    tried: int
    replayed: int
    independence: str


def replays_of(
    turns: Sequence[LoggedTurn],
    candidates: Lineup,
    limit_secs: float | None,
    *,
    most: int = 3,
    progress: Callable[[float], None] = lambda share: None,
) -> Replays | None:
    """Replay turns as they were, without hedges, and with one change after the other.

    Args:
        turns: The turns, in the order of time.
        candidates: How they were raced.
        limit_secs: What is promised for the first token; None is nothing.
        most: How many changes to tell.
        progress: Told how much is done.

    Returns:
        What came of it; None where nobody was ever asked, or nobody ever answered.
    """
    if candidates.first is None or candidates.second is None:
        return None
    reports = [turn.report for turn in _sampled(turns)]
    bench = _Bench(reports, candidates, limit_secs)
    trials = list(trials_of(candidates, bench.recorded, reports))
    base: Answer | None = None
    tried = list[tuple[Trial, str, _Weighed]]()
    before: _Weighed | None = None
    for number, trial in enumerate(trials):
        progress(number / len(trials))
        try:
            answer = bench.ask(trial)
        except ReadingError:  # who is asked here has never answered
            if base is None:
                return None
            continue
        if base is None:
            base = answer
            names = [name for name, _ in trial.policies if name != REPLACED]
            before, *after = bench.weighed(trial, answer, [AS_IT_WAS, *names])
            tried += [(trial, name, each) for name, each in zip(names, after, strict=True)]
        else:
            tried += [(trial, "", each) for each in bench.weighed(trial, answer, [AS_IT_WAS])]
    if base is None or before is None:
        return None
    sure = critical_value(before.means - np.stack([after.means for *_, after in tried]))
    found = list[Change]()
    unseen = dict[str, float]()
    for trial, name, after in tried:
        put_first = bench.put_first(trial, name)
        if put_first is not None and not bench.is_seen(put_first, after):
            unseen[put_first] = known_to(bench.recorded.providers[put_first])
        elif (change := bench.change(trial, name, before, after, sure)) is not None:
            found.append(change)
    progress(1.0)
    by_name = {outcome.policy: outcome for outcome in base.outcomes}
    pair = candidates.first, candidates.second
    return Replays(
        *pair,
        bench.prediction(before.outcome, *pair),
        candidates.policy is not None,
        bench.prediction(by_name[NONE], *pair),
        bench.prediction(by_name[REPLACED], *pair) if REPLACED in by_name else None,
        _best(found, most),
        tuple(unseen.items()),
        len(tried),
        base.replayed,
        base.independence.text,
    )


def _sampled(turns: Sequence[LoggedTurn]) -> Sequence[LoggedTurn]:
    """Of a long log, stretches of it: as many turns as can be learned from in seconds."""
    if len(turns) <= MOST_LEARNED:
        return turns
    count = MOST_LEARNED // STRETCH
    begins = (round(n * (len(turns) - STRETCH) / (count - 1)) for n in range(count))
    return [turn for begin in begins for turn in turns[begin : begin + STRETCH]]


def _best(found: Sequence[Change], most: int) -> tuple[Change, ...]:
    """The best change of each kind, the best kinds first."""
    kinds: dict[str, Change] = {}
    for change in sorted(found, key=lambda change: -change.min_saving_secs):
        kinds.setdefault(change.kind, change)
    return tuple(kinds.values())[:most]


def critical_value(differences: npt.NDArray[np.float64]) -> float:
    """How many of its standard errors chance makes of the largest of several differences.

    Args:
        differences: Each in the log as it is, and in those that might have been; shape (k, m + 1).

    Returns:
        So many that ``SURE`` of these logs have no larger one.
    """
    drawn = differences[:, 1:]
    errors = drawn.std(axis=1, keepdims=True)
    vary = errors[:, 0] > 0
    if not vary.any():
        return 0.0
    off = (drawn[vary] - drawn[vary].mean(axis=1, keepdims=True)) / errors[vary]
    return float(np.quantile(off.max(axis=0), SURE))


@dataclass(frozen=True, slots=True)
class _Weighed:
    """A replay, and its mean wait in each of the logs that might have been; see ``Chances``."""

    outcome: Outcome
    means: npt.NDArray[np.float64]


class _Bench:
    """Asks `whatif`, and prices what comes out."""

    def __init__(self, reports: Sequence[TurnReport], candidates: Lineup, limit_secs: float | None):
        self.recorded = recorded_from(reports)
        self._reports, self._lineup, self._limit = reports, candidates, limit_secs
        self._warm: Recorded | None = None
        self._chances = Chances(self.recorded, candidates.first or "")
        self._policy = candidates.policy or guessed_policy(reports, candidates)
        self._prices = Prices(reports)

    def ask(self, trial: Trial) -> Answer:
        none = HedgePolicy.fallback(1, stall_secs=None)
        question = Question(
            first=trial.first,
            second=trial.second,
            attempts=max(self._lineup.attempts, self._policy.max_attempts),
            deadline_secs=self._limit,
            least_turns=LEAST_TURNS,
            most_turns=MOST_TURNS,
            policies=((NONE, none), (AS_IT_WAS, self._policy), *trial.policies),
        )
        return what_if(self._replayed(trial), question)

    def _replayed(self, trial: Trial) -> Recorded:
        if not trial.warm:
            return self.recorded
        if self._warm is None:
            self._warm = recorded_from(warmed(report) for report in self._reports)
        return self._warm

    def weighed(self, trial: Trial, answer: Answer, names: Sequence[str]) -> list[_Weighed]:
        outcomes = {outcome.policy: outcome for outcome in answer.outcomes}
        mine = [outcomes[name] for name in names]
        means = self._chances.means(self._replayed(trial), answer, [waits_of(o) for o in mine])
        return [_Weighed(*each) for each in zip(mine, means, strict=True)]

    def put_first(self, trial: Trial, name: str) -> str | None:
        """Who is asked first, or may be, in place of who was; None if nobody else."""
        if name == LEARNED:
            return trial.second
        return trial.first if trial.first != self._lineup.first else None

    def is_seen(self, provider: str, after: _Weighed) -> bool:
        """Whether a provider is known up to the p95 that is to follow from asking it first."""
        p95 = after.outcome.percentiles["p95"]
        is_known = "p95" not in after.outcome.at_least
        return is_known and known_to(self.recorded.providers[provider]) >= p95

    def change(
        self, trial: Trial, name: str, before: _Weighed, after: _Weighed, sure: float
    ) -> Change | None:
        was, now = before.outcome, after.outcome
        saved = float(waits_of(was).mean() - waits_of(now).mean())
        cost = WORTH_SECS * (requests_of(now) - requests_of(was))
        differences = before.means - after.means
        chance = sure * float(differences[1:].std())
        if min(saved, float(differences[0])) - cost < max(LEAST_WORTH_SECS, chance):
            return None
        if self.recorded.turns < LEAST_ANSWERS:
            return None
        pair = self._lineup.first or "", self._lineup.second or ""
        kind, title, how = trial.kind, trial.title, trial.how
        policies = dict(trial.policies)
        if name == LEARNED:
            kind, title = "order", "Let the order of providers be learned"
            how = f"policy={told(policies[name])}"
        elif name:
            if isinstance(policies[name].rule, AtOnce):
                both = f"{pair[0]} and {pair[1]}" if pair[0] != pair[1] else f"{pair[0]} twice"
                kind, title = "race", f"Ask {both} in every turn"
            else:
                title = "Hedge no more" if name == "fallback" else f"Hedge by {name}"
            how = f"policy={told(policies[name])}, in place of {self._policy.name}"
            if pair[0] == pair[1] and name != "fallback":
                how += f"; with {SECOND_BUILD.format(pair[0])}"
        return Change(
            kind,
            title,
            how,
            self.prediction(was, *pair),
            self.prediction(now, trial.first, trial.second),
            saved,
            saved - cost,
        )

    def prediction(self, outcome: Outcome, first: str, second: str) -> Prediction:
        policy = self._policy.name if outcome.policy == AS_IT_WAS else outcome.policy
        return predict(policy, outcome, self._prices, first, second)
