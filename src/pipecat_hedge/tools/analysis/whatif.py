"""``pipecat-hedge whatif``: replays turns under other policies, and recommends one."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipecat_hedge.policy import AfterSilence, HedgePolicy, Slo, TurnRule
from pipecat_hedge.race import ConfigurationError, HedgeError
from pipecat_hedge.tools.analysis.charts import check_picture, plot_distributions
from pipecat_hedge.tools.analysis.comparison_rules import single_r
from pipecat_hedge.tools.analysis.formatting import (
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
from pipecat_hedge.tools.analysis.latency_files import (
    Measured,
    Recorded,
    read_latencies,
)
from pipecat_hedge.tools.analysis.replay_policies import (
    BLOCK,
    Draws,
    Outcome,
    draws_of,
    outcome_of,
)
from pipecat_hedge.tools.analysis.statistics import (
    PERCENTILES,
    Independence,
    independence_of,
)
from pipecat_hedge.tools.analysis.turn_log import ReadingError

__all__ = ["Answer", "Question", "configure", "run", "show", "what_if"]

BUDGETS = (0.01, 0.02, 0.05, 0.1, 0.25)
MIN_TURNS, MAX_TURNS, MAX_REPEATS = 6_000, 100_000, 100
FEW = 100
"""A p99 needs at least this many turns."""
LIGHT_TAIL = 4.0
"""A p99 below this many times the p50 is a light tail."""
SLOW_TOGETHER = 0.3
"""Three times the expected share under independence."""
_UNITS = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


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
    policies: tuple[Outcome, ...] = field(default=())

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
    cost = _cost_of_a_request(question, recorded)
    first, second = _providers(recorded, question)
    least = min(question.min_turns, MAX_REPEATS * len(first.secs))
    draws = draws_of(first, second, question.attempts, least, question.max_turns, question.seed)
    first, second = draws.first, draws.second
    independence = independence_of(draws.filled, draws.pairs, to_itself=first is second)
    policies = _compared(question, draws)
    outcomes = [
        outcome_of(
            name,
            policy,
            draws,
            deadline_secs=question.due_secs,
            cost=cost,
            usd_per_mtok=recorded.usd_per_mtok,
            correlation=independence.rank_correlation,
            seed=question.seed,
            is_choice=not isinstance(policy.rule, (AfterSilence, TurnRule)),
            progress=lambda done, name=name, n=n: progress(name, (n + done) / len(policies)),
        )
        for n, (name, policy) in enumerate(policies)
    ]
    progress("", 1.0)
    # If requests fail, the baseline is a policy that only replaces them.
    start = int(draws.fails is not None)
    recommended, why = _recommend(outcomes[start:], question, len(first.secs), independence)
    return Answer(
        recommended,
        why,
        tuple(_caveats(recorded, draws, question, independence, cost)),
        recorded.turns,
        len(draws.secs),
        first.name,
        second.name,
        question.due_secs,
        independence,
        tuple(outcomes),
    )


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


def _cost_of_a_request(question: Question, recorded: Recorded) -> tuple[float | None, float | None]:
    """Return an extra request's tokens and US dollars: prompt, and output until it is closed."""
    prompt, output = question.prompt_tokens or recorded.prompt_tokens, recorded.lost_tokens or 0.0
    price = question.usd_per_mtok
    if price is None:
        return None if prompt is None else prompt + output, recorded.lost_usd
    if prompt is None:
        raise ConfigurationError(
            "usd_per_mtok needs prompt_tokens, the size of a prompt: the files do not have it"
        )
    return prompt + output, (prompt * price[0] + output * price[1]) / 1e6


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
    for outcome in sorted(choices, key=lambda o: (o.extra_requests, o.waited_secs(due))):
        if outcome.extra_requests > none.extra_requests:
            saved = none.waited_secs(due) - outcome.waited_secs(due)
            most = max(most, saved / (outcome.extra_requests - none.extra_requests))
        more = outcome.extra_requests - chosen.extra_requests
        saved = chosen.waited_secs(due) - outcome.waited_secs(due)
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
            f"an extra request saves {_digits(most)} at most, less than the required "
            f"{_digits(worth)}: {reason}{caution}"
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
            f". {passed[0].policy} would save {_digits(passed[1])} per additional request, less "
            f"than the required {_digits(worth)}"
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
    recorded: Recorded,
    draws: Draws,
    question: Question,
    independence: Independence,
    cost: tuple[float | None, float | None],
) -> list[str]:
    """Return the limitations of the answer, a sentence each without its full stop."""
    first, second, turns = draws.first, draws.second, len(draws.filled)
    caveats = list[str]()
    if turns < FEW:
        caveats.append(f"{count(turns, 'turn')} have no p99: the result is rough")
    elif turns < 1000:
        caveats.append(f"{turns} turns are too few beyond the p{100 * (1 - 10 / turns):.0f}")
    if not independence.holds or independence.is_measured:
        caveats.append(independence.text)
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
    if recorded.ignored:
        caveats.append(f"ignored columns (not latencies): {', '.join(recorded.ignored)}")
    if cost[1] is not None and question.usd_per_mtok is not None and recorded.lost_tokens is None:
        caveats.append("the price of an extra request counts only its prompt")
    if recorded.unit != "s":
        caveats.append(f"the figures were read as {_UNITS[recorded.unit]}")
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
    elif any(o.extra_tokens is not None for o in answer.policies):
        columns["tokens"] = lambda o: count(o.extra_tokens)
    if "p99" in names:
        columns["p99 in 19 of 20"] = _interval
    rows = [[cell(outcome) for cell in columns.values()] for outcome in answer.policies]
    drop = ("replaced", "max", "p99.9", "p99 in 19 of 20", "tokens", "$/1,000", "p95", "failed")
    return "\n".join(
        [
            f"Recommended: {answer.recommended}",
            paragraph(f"{answer.why}.", width),
            "",
            paragraph(f"{count(answer.turns, 'turn')} of {pair}:", width),
            text_table(list(columns), rows, width, drop),
            "",
            *(paragraph(f"- {caveat}.", width, "  ") for caveat in answer.caveats),
        ]
    ).rstrip()


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


def _digits(value: float) -> str:
    """Format seconds with enough digits for small values."""
    return f"{value:.2f} s" if abs(value) >= 0.1 or value == 0 else f"{value:.2g} s"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="FILE",
        help="turn logs (HedgedLLMService(turn_log=...)), or latencies as JSONL or CSV: one per "
        "line, or one column per provider",
    )
    add("--first", metavar="NAME", help="the first provider (default: as in the files)")
    add("--second", metavar="NAME", help="the provider hedged to (default: the other one, if any)")
    add("--attempts", type=int, default=2, help="most requests per turn (default 2)")
    add(
        "--after",
        type=float,
        action="append",
        metavar="SECS",
        help="a fixed delay to compare with; may be repeated (default: the p95)",
    )
    add(
        "--budget",
        type=float,
        action="append",
        metavar="SHARE",
        help="a budget of the adaptive policy; may be repeated (default: 0.01 to 0.25)",
    )
    add("--deadline", type=float, metavar="SECS", help="the latest time of a first token")
    add(
        "--slo",
        type=float,
        metavar="SECS",
        help="compare adaptive policies with and without this SLO for the first token",
    )
    add(
        "--slo-share",
        type=float,
        metavar="SHARE",
        default=0.95,
        help="the target share of turns for --slo (default 0.95)",
    )
    add(
        "--min-saving",
        type=float,
        metavar="SECS",
        default=0.15,
        help="the least saving of an extra request (default 0.15)",
    )
    add("--unit", choices=("auto", "s", "ms", "us", "ns"), default="auto", help="of plain figures")
    add(
        "--column",
        action="append",
        metavar="NAME",
        help="a latency column; may be repeated (default: by name)",
    )
    add("--prompt-tokens", type=float, metavar="N", help="tokens of a prompt, to count tokens")
    add(
        "--usd-per-mtok",
        type=float,
        nargs=2,
        metavar=("IN", "OUT"),
        help="price in US dollars per million tokens of prompt and answer",
    )
    add(
        "--turns",
        type=int,
        default=MAX_TURNS,
        metavar="N",
        help=f"sample larger files (default {MAX_TURNS})",
    )
    add("--seed", type=int, default=1)
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--plot", type=Path, metavar="PICTURE", help="draw the distributions (.png, .svg, .pdf)")


def run(args: argparse.Namespace) -> int:
    """Print the answer; returns 0, or 2 if it cannot be given."""
    bar = progress_bar()
    try:
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
        if args.plot is not None:
            check_picture(args.plot)
        recorded = read_latencies(args.files, unit=args.unit, columns=args.column or ())
        with bar:
            task = bar.add_task("", total=1.0)
            answer = what_if(
                recorded,
                question,
                progress=lambda name, done: bar.update(task, description=name, completed=done),
            )
        if args.plot is not None:
            plot_distributions(answer.policies, answer.recommended, answer.deadline_secs, args.plot)
    except HedgeError as e:
        print(f"pipecat-hedge whatif: {e}", file=sys.stderr)
        return 2
    if args.json:
        print_json(answer)
    else:
        print(show(answer, terminal_width()))
    return 0
