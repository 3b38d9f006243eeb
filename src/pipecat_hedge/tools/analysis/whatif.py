"""``pipecat-hedge whatif``: replays turns under other policies, and recommends one."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipecat_hedge.policy import AfterSilence, HedgePolicy, Slo, TurnRule
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.comparison_rules import single_r
from pipecat_hedge.tools.analysis.latency_files import Measured, Recorded, read_latencies
from pipecat_hedge.tools.analysis.replay_policies import BLOCK, Draws, draws_of, replay
from pipecat_hedge.tools.analysis.routes import Route, compare_routes
from pipecat_hedge.tools.analysis.statistics import (
    PERCENTILES,
    Floats,
    Independence,
    Interval,
    independence_of,
    percentile,
    replay_intervals,
)
from pipecat_hedge.tools.analysis.turn_log import ReadingError
from pipecat_hedge.tools.formatting import (
    count,
    paragraph,
    print_json,
    progress_bar,
    secs,
    share,
    terminal_width,
    text_table,
    usd,
)

BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.25)
MIN_TURNS, MAX_TURNS, MAX_REPEATS = 6_000, 100_000, 100
FEW = 100
"""A p99 needs at least this many turns."""
LIGHT_TAIL = 4.0
"""A p99 below this many times the p50 is a light tail."""
SLOW_TOGETHER = 0.3
"""Three times the expected share under independence."""
SAME = 1.02
"""A figure up to this factor above its lower bound counts as known."""
NO_ANSWER_SECS = 60.0
"""The wait of a turn without an answer, in means."""


@dataclass(frozen=True, slots=True)
class Question:
    """The options of a replay.

    Parameters:
        first: The first provider; None is the recorded one.
        second: The provider hedged to; None is the other one, or the first again.
        attempts: The most requests per turn.
        after_secs: Fixed delays to compare with; empty is the p95.
        budgets: Budgets of the adaptive policy to compare.
        deadline_secs: The latest time of a first token; None is as soon as possible.
        slo: The SLO for the first token: adaptive policies are compared with and without it, and
            turns within it are counted.
        min_saving_secs: The least saving of a recommended extra request, in seconds.
        prompt_tokens: Tokens of a prompt, if not in the files.
        usd_per_mtok: US dollars per million ``(input, output)`` tokens, if not in the files.
        min_turns: Files with fewer turns are repeated, at most 100 times.
        max_turns: Files with more turns are sampled.
        seed: The same seed gives the same answer.
        others: Further policies to compare, by name.

    Raises:
        ConfigurationError: If a field is invalid; the message names it and the remedy.
    """

    first: str | None = None
    second: str | None = None
    attempts: int = 2
    after_secs: Sequence[float] = ()
    budgets: Sequence[float] = BUDGETS
    deadline_secs: float | None = None
    slo: Slo | None = None
    min_saving_secs: float = 0.15
    prompt_tokens: float | None = None
    usd_per_mtok: tuple[float, float] | None = None
    min_turns: int = MIN_TURNS
    max_turns: int = MAX_TURNS
    seed: int = 1
    others: Sequence[tuple[str, HedgePolicy]] = ()

    def __post_init__(self) -> None:
        """Check the fields."""
        refused = [
            (self.attempts < 2, f"attempts must be at least 2 to hedge, got {self.attempts}"),
            (
                self.slo is not None and self.deadline_secs is not None,
                "deadline_secs and slo both set the time of an answer: give one of them",
            ),
            (
                self.slo is not None and self.slo.ttft_secs is None,
                "slo has no ttft_secs, and only first tokens are replayed: write "
                "Slo(ttft_secs=0.8)",
            ),
            (
                self.prompt_tokens is not None and not 0 < self.prompt_tokens < math.inf,
                f"prompt_tokens must be positive, got {self.prompt_tokens}",
            ),
            (
                not all(0 <= price < math.inf for price in self.usd_per_mtok or ()),
                f"usd_per_mtok must be two prices, not negative, got {self.usd_per_mtok}",
            ),
            (self.max_turns < BLOCK, f"turns must be at least {BLOCK}, got {self.max_turns}"),
            (self.seed < 0, f"seed must not be negative, got {self.seed}"),
            (
                any(policy.max_attempts > self.attempts for _, policy in self.others),
                f"attempts is {self.attempts}, but one of the other policies makes more: raise it",
            ),
        ]
        for is_wrong, message in refused:
            if is_wrong:
                raise ConfigurationError(message)

    @property
    def due_secs(self) -> float | None:
        """The latest time of a first token, by the deadline or the SLO; None without one."""
        return self.deadline_secs if self.slo is None else self.slo.ttft_secs


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one policy.

    Parameters:
        policy: The policy's name.
        percentiles: ``p50``, ``p95``, ``p99``, ``p99.9`` in seconds; infinite is no answer.
        intervals: Their 95 % intervals for files of this size.
        max_secs: The slowest turn.
        at_least: Lower bounds in seconds of those percentiles, and of ``max``, that depend on
            requests which were cut short.
        mean_secs: The mean wait; a turn without an answer counts a minute.
        late_secs: The mean wait beyond the deadline; without one the mean wait.
        under_deadline: The share of turns answered by the deadline; None without a deadline.
        unanswered: The share of turns without an answer.
        extra_requests: Requests per turn beyond the first, without replacements.
        replacements: Requests per turn that replaced a failed one.
        extra_usd: The US dollars per 1,000 turns that they add; None if prices are unknown.
        is_choice: Whether the policy can be recommended, or is only a comparison.
    """

    policy: str
    percentiles: Mapping[str, float]
    intervals: Mapping[str, Interval]
    max_secs: float
    at_least: Mapping[str, float]
    mean_secs: float
    late_secs: float
    under_deadline: float | None
    unanswered: float
    extra_requests: float
    replacements: float
    extra_usd: float | None
    is_choice: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of all policies, and the recommended one.

    Parameters:
        recommended: The name of the recommended policy.
        why: The reason, in a sentence or two.
        caveats: The limitations, a sentence each.
        turns: Turns in the files.
        replayed: Turns that were replayed.
        first: The first provider.
        second: The provider hedged to.
        deadline_secs: The latest time of a first token, or None.
        independence: Whether slow turns cluster.
        policies: The result of each policy, ``no hedging`` first.
        routes: What each threshold of a complexity route gives, if the turns have its scores.
    """

    recommended: str
    why: str
    caveats: tuple[str, ...]
    turns: int
    replayed: int
    first: str
    second: str
    deadline_secs: float | None
    independence: Independence
    policies: tuple[Outcome, ...]
    routes: tuple[Route, ...]

    def outcome(self, name: str) -> Outcome:
        """Return the result of the policy of that name."""
        return next(outcome for outcome in self.policies if outcome.policy == name)


def what_if(
    recorded: Recorded,
    question: Question | None = None,
    *,
    progress: Callable[[str, float], None] = lambda policy, share: None,
) -> Answer:
    """Replay recorded turns under several policies.

    Args:
        recorded: The recorded latencies.
        question: The options; None uses the defaults.
        progress: Called with the current policy, and the completed share of all.

    Raises:
        ReadingError: If a named provider was not measured, or never answered.
        ConfigurationError: If prices are given without the size of a prompt.
    """
    question = question or Question()
    cost = _usd_of_a_request(question, recorded)
    first, second = _providers(recorded, question)
    least = min(question.min_turns, MAX_REPEATS * len(first.secs))
    draws = draws_of(first, second, question.attempts, least, question.max_turns, question.seed)
    first, second = draws.first, draws.second
    independence = independence_of(draws.filled, draws.pairs, to_itself=first is second)
    policies = _compared(question, draws)
    outcomes = list[Outcome]()
    for n, (name, policy) in enumerate(policies):
        progress(name, n / len(policies))
        secs, least, extra, replaced = replay(policy, draws, recorded.usd_per_mtok)
        ascending, more, due = np.sort(secs), extra + replaced, question.due_secs
        waits = np.minimum(secs, NO_ANSWER_SECS)
        outcomes.append(
            Outcome(
                name,
                {key: percentile(ascending, p) for key, p in PERCENTILES.items()},
                replay_intervals(secs, draws.rows, draws.sizes, 1.0 + more, question.seed),
                float(ascending[-1]),
                _at_least(secs, least),
                float(waits.mean()),
                float(np.maximum(waits - (due or 0.0), 0.0).mean()),
                None if due is None else float((secs <= due).mean()),
                float(np.isinf(secs).mean()),
                extra,
                replaced,
                None if cost is None else 1000 * more * cost,
                not isinstance(policy.rule, (AfterSilence, TurnRule)),
            )
        )
    progress("", 1.0)
    # If requests fail, the baseline is a policy that only replaces them.
    start = int(draws.fails is not None)
    recommended, why = _recommend(outcomes[start:], question, len(first.secs), independence)
    return Answer(
        recommended,
        why,
        tuple(_caveats(recorded, draws, question, independence)),
        recorded.turns,
        len(draws.secs),
        first.name,
        second.name,
        question.due_secs,
        independence,
        tuple(outcomes),
        compare_routes(recorded, question.seed),
    )


def _at_least(secs: Floats, least: Floats) -> dict[str, float]:
    """Return the percentiles that depend on unknown latencies, with their lower bounds."""
    unknown = ~np.isnan(least)
    if not unknown.any():
        return {}
    low = np.sort(np.where(unknown, least, secs))
    high = np.sort(np.where(unknown, np.inf, secs))
    bounds = {key: (percentile(low, p), percentile(high, p)) for key, p in PERCENTILES.items()}
    bounds["max"] = float(low[-1]), float(high[-1])
    return {key: least for key, (least, most) in bounds.items() if most > SAME * least}


def _providers(recorded: Recorded, question: Question) -> tuple[Measured, Measured]:
    names = list(recorded.providers)
    for option, name in (("first", question.first), ("second", question.second)):
        if name is not None and name not in names:
            raise ReadingError(f"{option}: {name!r} was not measured; measured: {', '.join(names)}")
    first = question.first or names[0]
    second = question.second or next((name for name in names if name != first), first)
    for name in (first, second):
        if not recorded.providers[name].answers:
            raise ReadingError(f"no request of {name} was answered: there is no latency to replay")
    return recorded.providers[first], recorded.providers[second]


def _compared(question: Question, draws: Draws) -> list[tuple[str, HedgePolicy]]:
    """Return the compared policies by name; the first one makes one request per turn."""
    attempts, answered = question.attempts, draws.filled[~draws.first.failed]
    policies = [("no hedging", HedgePolicy.fallback(1, stall_secs=None))]
    if draws.fails is not None:
        fallback = HedgePolicy.fallback(attempts, stall_secs=None)
        policies.append((f"fallback({attempts})", fallback))
    policies.append((f"race({attempts})", HedgePolicy.race(attempts, stall_secs=None)))
    for delay in question.after_secs or (round(float(np.quantile(answered, 0.95)), 3),):
        policy = HedgePolicy.after(delay, attempts, stall_secs=None)
        policies.append((policy.name, policy))
    single = single_r(0.99, 0.05, stall_secs=None)
    policies.append((single.name, single))
    for slo in dict.fromkeys((None, question.slo)):
        for budget in question.budgets:
            policy = HedgePolicy.adaptive(
                budget,
                attempts,
                target_ttft_secs=question.deadline_secs,
                slo=slo,
                min_saving_secs=question.min_saving_secs,
                stall_secs=None,
            )
            policies.append((policy.name, policy))
    return [*policies, *question.others]


def _usd_of_a_request(question: Question, recorded: Recorded) -> float | None:
    """Return the cost of an extra request: its prompt, and its output until it is closed."""
    if question.usd_per_mtok is None:
        if question.prompt_tokens is not None:
            raise ConfigurationError(
                "prompt_tokens needs usd_per_mtok: without prices there are no dollars to count"
            )
        return recorded.lost_usd
    prompt = question.prompt_tokens or recorded.prompt_tokens
    if prompt is None:
        raise ConfigurationError(
            "usd_per_mtok needs prompt_tokens, the size of a prompt: the files do not have it"
        )
    prices = question.usd_per_mtok
    return (prompt * prices[0] + (recorded.lost_tokens or 0.0) * prices[1]) / 1e6


def _recommend(
    outcomes: Sequence[Outcome], question: Question, turns: int, independence: Independence
) -> tuple[str, str]:
    """Choose a policy: the last one of which each further request saves enough.

    Fixed delays are excluded: they were fitted to the file, and do not adapt to provider changes.
    """
    due, worth = question.due_secs, question.min_saving_secs
    none, chosen, passed = outcomes[0], outcomes[0], None
    choices = [outcome for outcome in outcomes[1:] if outcome.is_choice]
    most = 0.0
    for outcome in sorted(choices, key=lambda o: (o.extra_requests, o.late_secs)):
        if outcome.extra_requests > none.extra_requests:
            saved = none.late_secs - outcome.late_secs
            most = max(most, saved / (outcome.extra_requests - none.extra_requests))
        more = outcome.extra_requests - chosen.extra_requests
        saved = chosen.late_secs - outcome.late_secs
        if saved > 0 and (more <= 0 or saved / more >= worth):
            chosen, passed = outcome, None
        elif saved > 0 and passed is None:
            passed = (outcome, saved / more)
    caution = ""
    if (bound := none.at_least.get("p99")) is not None:
        caution = (
            f". But hedges cancelled requests that took longer than {secs(bound)}, so the tail is "
            "unknown: log some turns under HedgePolicy.fallback() first"
        )
    if chosen is none:
        reason = _too_little(none, due, independence.slow_together, turns)
        return none.policy, (
            f"an extra request saves {secs(most)} at most, less than the required "
            f"{secs(worth)}: {reason}{caution}"
        )
    name = "p99" if turns >= FEW else "mean wait"
    now, before = (_figure(o, name) for o in (chosen, none))
    parts = [] if now == before else [f"{name} {now} instead of {before}"]
    if due is not None and chosen.under_deadline is not None and none.under_deadline is not None:
        parts.append(
            f"{share(chosen.under_deadline, 2)} of turns within {due:g} s instead of "
            f"{share(none.under_deadline, 2)}"
        )
    parts.append(f"for {share(chosen.extra_requests)} more requests")
    why = ", ".join(parts)
    if passed is not None:
        why += (
            f". {passed[0].policy} would save {secs(passed[1])} per additional request, less "
            f"than the required {secs(worth)}"
        )
    return chosen.policy, why + caution


def _too_little(none: Outcome, due: float | None, slow_together: float | None, turns: int) -> str:
    """Explain why a further request saves little."""
    if none.under_deadline is not None and none.under_deadline > 0.99:
        return f"{share(none.under_deadline, 2)} of turns are within {due:g} s without it"
    if slow_together is not None and slow_together > SLOW_TOGETHER:
        return f"in {slow_together:.0%} of its slowest turns the second provider is slow as well"
    name, slow = ("p99", none.percentiles["p99"]) if turns >= FEW else ("slowest", none.max_secs)
    if (times := slow / max(none.percentiles["p50"], 1e-9)) < LIGHT_TAIL:
        return f"the tail is light, the {name} is {times:.1f} times the p50"
    return "the second request is too slow to overtake the first"


def _caveats(
    recorded: Recorded, draws: Draws, question: Question, independence: Independence
) -> list[str]:
    """Return the limitations of the answer, a sentence each without its full stop."""
    first, second, turns = draws.first, draws.second, len(draws.filled)
    caveats = list[str]()
    if turns < FEW:
        caveats.append(f"{count(turns, 'turn')} have no p99: the result is rough")
    elif turns < 1000:
        caveats.append(f"{turns} turns are too few beyond the p{100 * (1 - 10 / turns):.0f}")
    if independence.caveat:
        caveats.append(independence.caveat)
    for each in dict.fromkeys((first.name, second.name)):
        if cut := int(recorded.providers[each].censored.sum()):
            caveats.append(
                f"{cut} requests to {each} were cancelled by a hedge or an interruption, and are "
                "estimated from the others (Kaplan-Meier)"
            )
    if second.answers < FEW <= turns:
        caveats.append(f"only {second.answers} answers of {second.name} are known")
    if turns > question.max_turns:
        caveats.append(
            f"{len(draws.secs):,} of {turns:,} turns were replayed, in blocks of {BLOCK:,}"
        )
    if others := [n for n in recorded.providers if n not in (first.name, second.name)]:
        caveats.append(f"also measured: {', '.join(others)}; --second NAME hedges to one of them")
    if question.usd_per_mtok is not None and recorded.lost_tokens is None:
        caveats.append("the price of an extra request counts only its prompt")
    if recorded.unit == "ms":
        caveats.append("the figures were read as milliseconds")
    if recorded.skipped:
        more = recorded.skipped - len(recorded.named_skips)
        rest = f"; and {more} more" if more else ""
        lines = count(recorded.skipped, "bad line")
        caveats.append(f"{lines} skipped: {'; '.join(recorded.named_skips)}{rest}")
    return caveats


def show(answer: Answer, width: int = 80) -> str:
    """Format the answer: the recommendation, the table, the caveats.

    Args:
        answer: The answer.
        width: Columns of the terminal.
    """
    itself = answer.second == answer.first
    pair = f"{answer.first}, hedged to {'itself' if itself else answer.second}"
    names = [name for name, p in PERCENTILES.items() if round(answer.turns * (1 - p), 9) >= 1]
    columns: dict[str, Callable[[Outcome], str]] = {
        "policy": lambda o: ("> " if o.policy == answer.recommended else "  ") + o.policy
    }
    for name in (*(names or ["p50"]), "max"):
        columns[name] = lambda o, name=name: _figure(o, name)
    if answer.deadline_secs is not None:
        columns[f"≤ {answer.deadline_secs:g} s"] = lambda o: share(o.under_deadline, 2)
    if any(o.unanswered for o in answer.policies):
        columns["failed"] = lambda o: share(o.unanswered)
    columns["extra"] = lambda o: share(o.extra_requests)
    if any(o.replacements for o in answer.policies):
        columns["replaced"] = lambda o: share(o.replacements)
    if any(o.extra_usd is not None for o in answer.policies):
        columns["$/1,000"] = lambda o: usd(o.extra_usd)
    if "p99" in names:
        columns["p99 in 19 of 20"] = _interval
    rows = [[cell(outcome) for cell in columns.values()] for outcome in answer.policies]
    drop = ("replaced", "max", "p99.9", "p99 in 19 of 20", "$/1,000", "p95", "failed")
    return "\n".join(
        [
            f"Recommended: {answer.recommended}",
            paragraph(f"{answer.why}.", width),
            "",
            paragraph(f"{count(answer.turns, 'turn')} of {pair}:", width),
            text_table(list(columns), rows, width, drop),
            "",
            *(paragraph(f"- {caveat}.", width, "  ") for caveat in answer.caveats),
            *(_show_routes(answer.routes, names, width) if answer.routes else ()),
        ]
    ).rstrip()


def _show_routes(routes: Sequence[Route], names: Sequence[str], width: int) -> list[str]:
    """Format the routes: a title and a table."""
    simple, complex = routes[0].simple, routes[0].complex
    said = {0.0: f"all to {complex}", math.inf: f"all to {simple}"}
    columns: dict[str, Callable[[Route], str]] = {
        "threshold": lambda r: said.get(r.threshold, f"{r.threshold:g}"),
        "complex": lambda r: share(r.complex_share),
        **{name: lambda r, name=name: secs(r.percentiles[name]) for name in names or ["p50"]},
    }
    if routes[0].usd is not None:
        columns["$/1,000"] = lambda r: usd(r.usd)
    rows = [[cell(route) for cell in columns.values()] for route in routes]
    title = (
        f"Routes by complexity, without hedging: turns below the threshold to {simple}, others "
        f"to {complex}. Each is as quick as in the log, whatever the turn; within a call a router "
        "only moves up, so more turns are complex than here."
    )
    return ["", paragraph(title, width), text_table(list(columns), rows, width, ("p99.9", "p95"))]


def _figure(outcome: Outcome, name: str) -> str:
    if name == "mean wait":
        return secs(outcome.mean_secs)
    if (bound := outcome.at_least.get(name)) is not None:
        return secs(bound, at_least=True)
    return secs(outcome.max_secs if name == "max" else outcome.percentiles[name])


def _interval(outcome: Outcome) -> str:
    """Format the p99's interval, as far as it is known."""
    interval = outcome.intervals["p99"]
    if "p99" in outcome.at_least or math.isinf(interval.low):
        return _figure(outcome, "p99")
    if math.isinf(interval.high):
        return secs(interval.low, at_least=True)
    return f"{interval.low:.2f}-{interval.high:.2f} s"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    secs: dict[str, Any] = {"type": float, "metavar": "SECS"}
    share: dict[str, Any] = {"type": float, "metavar": "SHARE"}
    files = "turn logs, or CSV or JSONL with a column of latencies"
    add("files", nargs="+", metavar="FILE", help=files)
    add("--first", metavar="NAME", help="the first provider (default: as in the files)")
    add("--second", metavar="NAME", help="the provider hedged to (default: the other one, if any)")
    add("--attempts", type=int, default=2, help="most requests per turn (default 2)")
    add("--after", action="append", **secs, help="a fixed delay; repeatable (default: the p95)")
    add("--budget", action="append", **share, help="a budget of the adaptive policy; repeatable")
    add("--deadline", **secs, help="the latest time of a first token")
    add("--slo", **secs, help="compare adaptive policies with this SLO for the first token, too")
    add("--slo-share", default=0.95, **share, help="of turns within the SLO (default 0.95)")
    add("--min-saving", default=0.15, **secs, help="least saving of a request (default 0.15)")
    add("--unit", choices=("s", "ms"), help="of columns not named _secs or _ms (default s)")
    add("--column", action="append", metavar="NAME", help="of latencies; one per provider")
    add("--prompt-tokens", type=float, metavar="N", help="tokens of a prompt, to count dollars")
    price = "US dollars per million tokens of prompt and answer"
    add("--usd-per-mtok", type=float, nargs=2, metavar=("IN", "OUT"), help=price)
    add("--turns", type=int, default=MAX_TURNS, help=f"of larger files (default {MAX_TURNS:,})")
    add("--seed", type=int, default=1, help="of the draws (default 1)")
    add("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the answer.

    Raises:
        HedgeError: If it cannot be given.
    """
    slo = None
    if args.slo is not None:
        slo = Slo(args.slo, ttfs_secs=None, voice_to_voice_secs=None, share=args.slo_share)
    question = Question(
        first=args.first,
        second=args.second,
        attempts=args.attempts,
        after_secs=tuple(dict.fromkeys(args.after or ())),
        budgets=tuple(dict.fromkeys(args.budget or BUDGETS)),
        deadline_secs=args.deadline,
        slo=slo,
        min_saving_secs=args.min_saving,
        prompt_tokens=args.prompt_tokens,
        usd_per_mtok=None if args.usd_per_mtok is None else tuple(args.usd_per_mtok),
        max_turns=args.turns,
        seed=args.seed,
    )
    recorded = read_latencies(args.files, unit=args.unit, columns=args.column or ())
    with progress_bar() as bar:
        task = bar.add_task("", total=1.0)
        answer = what_if(
            recorded,
            question,
            progress=lambda name, done: bar.update(task, description=name, completed=done),
        )
    if args.json:
        print_json(answer, version=2)
    else:
        print(show(answer, terminal_width()))
    return 0
