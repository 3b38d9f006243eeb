"""What another policy would have done, and how far the answer can be trusted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipecat_hedge import ComplexityRouter, HedgeError, HedgePolicy, Provider
from pipecat_hedge.providers import PROFILES
from pipecat_hedge.testing import Say, ScriptedLLMService, Wait
from pipecat_hedge.tools.analysis.latency_files import Measured, Recorded, read_latencies
from pipecat_hedge.tools.analysis.statistics import percentile
from pipecat_hedge.tools.analysis.whatif import Answer, Question, what_if
from pipecat_hedge.tools.analysis.whatif_command import caveats, show, why
from tests.service.builders import racing
from tests.support.line import Line
from tests.tools.conftest import Ran

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
HOSTED, LOCAL = "gemma-4-31b-baseten", "qwen3.8-27b-local"
FAST = Question(budgets=(0.05,), min_turns=2000)


def measured(
    name: str, secs: Floats, censored: Bools | None = None, failed: Bools | None = None
) -> Measured:
    no = np.zeros(len(secs), np.bool_)
    cut, bad = (no if each is None else each for each in (censored, failed))
    return Measured(name, np.asarray(secs, np.float64), cut, bad, np.arange(len(secs)))


def recorded(*providers: Measured) -> Recorded:
    return Recorded({m.name: m for m in providers}, len(providers[0].secs))


def asked(*providers: Measured, question: Question = FAST) -> Answer:
    return what_if(recorded(*providers), question)


def trace(profile: str, count: int, seed: int = 1) -> Floats:
    return PROFILES[profile].samples(count, seed)


def chance(share: float, count: int, seed: int) -> Bools:
    return np.random.default_rng(seed).random(count) < share


# ---- the figures


def test_without_hedging_it_is_the_file_itself() -> None:
    """Percentiles, maximum and mean of what was measured."""
    question = Question(budgets=(0.05,), deadline_secs=1.2, min_turns=1)
    secs = np.sort(trace(HOSTED, 4000))
    none = asked(measured("claude", trace(HOSTED, 4000)), question=question).policies[0]
    assert (none.policy, none.extra_requests) == ("no hedging", 0)
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)):
        assert none.percentiles[name] == percentile(secs, p)
    assert none.max_secs == secs[-1]
    assert none.mean_secs == pytest.approx(float(secs.mean()))
    assert none.under_deadline == pytest.approx(float((secs <= 1.2).mean()))


def test_an_slo_is_compared_with_and_without() -> None:
    """As the target of each adaptive policy; little waiting beyond it is left to save here."""
    question = Question(budgets=(0.1,), slo_secs=0.8, min_turns=1)
    haiku = measured("claude", trace("claude-haiku-4-5", 4000))
    answer = asked(haiku, question=question)
    assert answer.deadline_secs == 0.8
    plain = answer.outcome("adaptive(10 %)")
    aimed = answer.outcome("adaptive(10 %) for 0.8 s")
    assert aimed.extra_requests < 0.5 * plain.extra_requests
    assert (aimed.under_deadline or 1) < (plain.under_deadline or 0)


def test_where_a_request_is_worth_a_lot_more_are_sent() -> None:
    """The worth is the user's to say."""
    thrifty, generous = (
        asked(
            measured("gpt", trace("gpt-4.1", 2000)),
            question=Question(budgets=(0.05,), min_saving_secs=worth, min_turns=1),
        )
        for worth in (1.0, 0.0)
    )
    assert thrifty.outcome(thrifty.choice.policy).extra_requests < 0.1
    assert generous.choice.policy == "race(2)"


def test_an_interval_holds_what_other_files_of_the_size_show() -> None:
    """Nineteen of twenty of them, or nearly; and the figure itself."""
    race = asked(measured("mine", trace(HOSTED, 1000, 50))).outcome("race(2)")
    for name in ("p50", "p95", "p99"):
        assert race.intervals[name].low <= race.percentiles[name] <= race.intervals[name].high
    inside = 0
    for seed in range(40):
        first, second = trace(HOSTED, 1000, 100 + seed), trace(HOSTED, 1000, 500 + seed)
        p95 = percentile(np.sort(np.minimum(first, second)), 0.95)
        inside += race.intervals["p95"].low <= p95 <= race.intervals["p95"].high
    assert inside >= 32


# ---- two providers


def test_a_second_provider_is_hedged_to() -> None:
    """The first that was measured is asked first, unless the question says otherwise."""
    file = (measured("claude", trace(HOSTED, 3000)), measured("local", trace(LOCAL, 900, 5)))
    answer = asked(*file)
    assert (answer.first, answer.second) == ("claude", "local")
    assert answer.outcome("adaptive(5 %)").percentiles["p99"] < 0.9
    for first, second, expected in (
        ("local", None, ("local", "claude")),
        (None, "claude", ("claude", "claude")),
    ):
        question = Question(first, second, budgets=(), min_turns=1)
        turned = asked(*file, question=question)
        assert (turned.first, turned.second) == expected
    with pytest.raises(HedgeError, match="second: 'gpt' was not measured; measured: claude, local"):
        asked(*file, question=Question(second="gpt"))


def test_what_was_measured_side_by_side_needs_no_assumption() -> None:
    """Two columns that are slow together are raced as they were; a hole in one is left out."""
    slow, rng = chance(0.05, 2000, 3), np.random.default_rng(4)
    one, other = (np.where(slow, 5.0, 0.5) + rng.uniform(0, 0.1, 2000) for _ in range(2))
    holed = replace(measured("b", other[1:]), row=np.arange(1, 2000))
    answer = asked(measured("a", one), holed)
    race = answer.outcome("race(2)")
    assert race.percentiles["p99"] > 5.0
    faster = float(np.median(np.minimum(one, other)))
    assert race.percentiles["p50"] == pytest.approx(faster, abs=0.01)
    assert "both providers were measured in the same turns" in next(caveats(answer))
    assert answer.independence.slow_together == pytest.approx(0.5, abs=0.15)  # 5 % of the slow 10 %


def test_an_order_that_is_learned_follows_a_provider_that_turned_slow() -> None:
    """Each request has its own provider's latency, whichever is asked first."""
    first, second = (trace("claude-haiku-4-5", 1200, seed) for seed in (1, 2))
    slow = np.where(np.arange(1200) >= 400, 5 * first, first)
    others: list[Any] = [
        (order, HedgePolicy.adaptive(0.1, order=order, stall_secs=None))  # type: ignore[arg-type]
        for order in ("given", "learned")
    ]
    question = Question(budgets=(), others=others, min_turns=1)
    answer = asked(measured("a", slow), measured("b", second), question=question)
    given, learned = (answer.outcome(name).mean_secs for name in ("given", "learned"))
    assert learned < 0.75 * given < answer.policies[0].mean_secs


def test_a_dearer_provider_is_hedged_to_less_often() -> None:
    """A budget counts a hedge for what it costs, as the service does."""
    a, b = (measured(name, trace("claude-haiku-4-5", 3000, n)) for n, name in ((1, "a"), (2, "b")))
    dear = replace(recorded(a, b), usd_per_mtok={"a": (1.0, 5.0), "b": (2.0, 10.0)})
    question = Question(budgets=(0.1,), min_turns=1)
    usual, less = (
        what_if(file, question).outcome("adaptive(10 %)").extra_requests
        for file in (recorded(a, b), dear)
    )
    assert usual == pytest.approx(0.1, abs=0.02)
    assert less < 0.7 * usual


# ---- in the order of time


def timed(*providers: Measured, hours: float = 48) -> Recorded:
    """The same files, with times that are spread over so many hours."""
    count = len(providers[0].secs)
    return replace(recorded(*providers), asked_at=np.linspace(0, hours * 3600 - 1, count))


def test_slow_minutes_are_slow_for_a_further_request() -> None:
    """Sixty turns in which all requests are slow: a race with itself does not help there."""
    secs = np.random.default_rng(1).uniform(0.4, 0.6, 2000)
    secs[1000:1060] += 9
    file, question = measured("a", secs), Question(budgets=(), min_turns=1)
    [unordered, ordered] = (
        what_if(each, question).outcome("race(2)").percentiles["p99"]
        for each in (recorded(file), timed(file))
    )
    assert unordered < 0.6
    assert ordered > 9


def test_a_request_is_never_raced_with_itself() -> None:
    """One slow request among calm ones: the others of its time are quick, whatever is drawn."""
    secs = np.full(4000, 0.5)
    secs[::40] = 30.0
    race = what_if(timed(measured("a", secs)), Question(budgets=(), min_turns=1)).outcome("race(2)")
    assert race.max_secs == 0.5


def test_the_delay_of_a_calm_day_is_compared_on_the_bad_one() -> None:
    calm = np.random.default_rng(1).uniform(0.4, 0.6, 1000)
    bad = np.where(chance(0.2, 1000, 2), 3 * calm, calm)
    answer = what_if(timed(measured("a", np.concatenate([calm, bad]))), FAST)
    [day] = answer.days
    assert (day.name, day.learned_on, day.turns) == ("day 2", "day 1", 1000)
    assert day.fixed.policy == HedgePolicy.after(round(float(np.quantile(calm, 0.95)), 3)).name
    assert day.none.p99 == percentile(np.sort(bad), 0.99)
    assert day.fixed.extra_requests > 0.2
    assert day.adaptive.extra_requests < 0.08
    assert "learned on day 1 does not fit day 2: after(0.59" in " ".join(show(answer).split())


def test_a_delay_that_still_fits_holds() -> None:
    """Of a trace of some hours the first half is compared with the second."""
    answer = what_if(timed(measured("a", trace(HOSTED, 2000)), hours=3), FAST)
    [day] = answer.days
    assert (day.name, day.turns) == ("the second half", 1000)
    assert "A fixed delay learned the day before holds" in show(answer)


def test_few_turns_or_no_times_are_compared_with_no_day() -> None:
    file = measured("a", trace(HOSTED, 199))
    assert what_if(timed(file), FAST).days == ()
    assert asked(measured("a", trace(HOSTED, 400))).days == ()


# ---- why not


STALLS = np.where(chance(0.1, 2000, 3), 5.0, 0.5) + np.random.default_rng(4).uniform(0, 0.01, 2000)


@pytest.mark.parametrize(
    ("providers", "deadline_secs", "reason"),
    [
        (
            [measured("gemini", trace("gemini-3.6-flash", 3000))],
            None,
            r"an extra request saves \d+ ms .*the tail is light, the p99 is 1\.",
        ),
        (
            [measured("a", STALLS), measured("b", STALLS + 0.01)],
            None,
            "% of its slowest turns the second provider is slow as well",
        ),
        (
            [measured("a", STALLS), measured("b", np.full(99, 9.0))],
            None,
            "the second request is too slow to overtake the first$",
        ),
        (
            [measured("a", trace(HOSTED, 2000))],
            60.0,
            "100.00 % of turns are within 60 s without it$",
        ),
    ],
    ids=["light tail", "slow together", "slow second", "in time"],
)
def test_not_to_hedge_has_its_reason(
    providers: list[Measured], deadline_secs: float | None, reason: str
) -> None:
    question = replace(FAST, deadline_secs=deadline_secs)
    answer = asked(*providers, question=question)
    assert answer.choice.policy == "no hedging"
    assert re.search(reason, why(answer))


@pytest.mark.parametrize("kind", ["censored", "failed"])
def test_a_file_without_one_answer_is_an_error(kind: str) -> None:
    """Of failures or interruptions alone nothing can be replayed."""
    with pytest.raises(HedgeError, match="no request of a was answered"):
        asked(measured("a", np.full(50, 0.3), **{kind: np.ones(50, np.bool_)}))


# ---- what logs leave out


def test_failures_are_replayed_as_failures() -> None:
    """Without a second attempt they are turns without an answer."""
    secs, failed = trace(HOSTED, 3000), chance(0.05, 3000, 1)
    answer = asked(measured("x", np.where(failed, 0.05, secs), failed=failed))
    none, fallback = answer.policies[:2]
    assert none.unanswered == pytest.approx(float(failed.mean()))
    assert none.percentiles["p99"] == math.inf
    assert (fallback.policy, fallback.extra_requests) == ("fallback(2)", 0)
    assert fallback.replacements == pytest.approx(float(failed.mean()), abs=0.005)
    assert fallback.percentiles["p99"] < math.inf
    adaptive = answer.outcome("adaptive(5 %)")
    assert adaptive.unanswered == pytest.approx(0.0025, abs=0.002)
    assert adaptive.extra_requests <= 0.055
    assert adaptive.replacements == pytest.approx(0.05, abs=0.01)


def test_failures_alone_are_no_reason_to_hedge() -> None:
    """They are replaced without: what is compared is what hedging does beyond that."""
    secs = np.random.default_rng(2).normal(0.5, 0.03, 2000)
    answer = asked(measured("x", secs, failed=chance(0.05, 2000, 1)))
    assert answer.choice.policy == "fallback(2)"


def test_what_was_cut_short_is_estimated() -> None:
    """As if the hedges had not been: within what chance explains of the truth."""
    truth, hedge = trace("gpt-4.1", 6_000, 3), trace("gpt-4.1", 6_000, 4)
    won = np.minimum(truth, 1.2 + hedge)
    cut = truth > won
    answer = asked(measured("gpt", np.where(cut, won, truth), censored=cut))
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        expected = percentile(np.sort(truth), p)
        assert answer.policies[0].percentiles[name] == pytest.approx(expected, rel=0.12)
    assert any(f"{cut.sum()} requests to gpt were cancelled" in each for each in caveats(answer))


def test_a_log_of_races_cannot_tell_how_long_a_tail_is() -> None:
    """And says so, where it would recommend not to hedge."""
    one, other = trace(HOSTED, 800, 1), trace(HOSTED, 800, 2)
    won = np.minimum(one, other)
    answer = asked(measured("a", won, one > won), measured("b", won, other > won))
    bound = answer.policies[0].at_least["p99"]
    unhedged = next(row for row in show(answer, 120).splitlines() if "no hedging" in row)
    assert f"> {1000 * bound:.0f} ms" in unhedged
    assert "so the tail is unknown: log some turns under" in why(answer)


@pytest.mark.parametrize("together", [False, True])
def test_turns_that_are_slow_together_are_found_out(together: bool) -> None:
    """A second request to the same provider would be slow as well."""
    secs = trace(HOSTED, 4000)
    if together:
        secs[np.repeat(chance(0.04, 200, 2), 20)] += 4.0
    answer = asked(measured("x", secs))
    assert any(each.startswith("slow turns cluster") for each in caveats(answer)) is together
    assert ((answer.independence.clustering or 0) > 3) is together


# ---- sizes


def test_a_larger_file_is_sampled_and_it_says_so() -> None:
    """In blocks of consecutive turns."""
    question = Question(budgets=(), max_turns=5000)
    answer = asked(measured("x", trace(HOSTED, 30_000)), question=question)
    assert answer.replayed == 5000
    assert "5,000 of 30,000 turns were replayed, in blocks of 1,000" in next(caveats(answer))


def test_few_turns_have_no_p99_and_a_caveat() -> None:
    """Six latencies are a hint; a hundred have a p99."""
    few = asked(measured("x", trace(HOSTED, 6)))
    assert "p99" not in show(few).replace("SingleR(p99", "").replace("have no p99", "")
    assert [*caveats(few)] == ["6 turns have no p99: the result is rough"]
    assert few.replayed == 600
    assert " p99 " in show(asked(measured("x", trace(HOSTED, 100))))


# ---- the command


def test_the_recommendation_comes_first_and_every_policy_has_a_row(
    tmp_path: Path, ran: Callable[..., Ran]
) -> None:
    """Within 80 columns, nothing cut off; the bad lines and the unit are named."""
    file = tmp_path / "mine.csv"
    rows = "\n".join(f"{1000 * s:.0f}" for s in trace(HOSTED, 600))
    file.write_text(f"ttft_ms\n{rows}\nx\n")
    options = ["--budget", "0.05", "--budget", "0.1", "--deadline", "1", "--after", "0.7"]
    prices = ["--prompt-tokens", "4000", "--usd-per-mtok", "3", "15"]
    status, shown, _ = ran("whatif", file, *options, *prices)
    assert status == 0
    assert shown.startswith("Recommended: adaptive(5 %)\np99 ")
    assert "of turns within 1 s instead of" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    names = ("no hedging", "race(2)", "after(0.7 s)", "SingleR(p99, 5 %)", "adaptive(10 %)")
    for each in (*names, "> adaptive(5 %)", "≤ 1 s", "$/1,000", "milliseconds", "1 bad line"):
        assert each in shown


def test_a_table_is_never_wider_than_the_terminal() -> None:
    """Columns are dropped; a long name stands on a line of its own."""
    name = "a-provider-whose-name-is-as-long-as-a-name-may-be-and-has-no-blank"
    answer = asked(measured(name, trace(HOSTED, 200)))
    for width in (60, 80, 200):
        rows = show(answer, width).splitlines()
        assert all(len(row) <= max(width, len(name)) for row in rows)


def test_json_for_programs(tmp_path: Path, ran: Callable[..., Ran]) -> None:
    """Every figure of the table."""
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(f"{s:.3f}" for s in trace(HOSTED, 300)))
    status, out, _ = ran("whatif", file, "--budget", "0.05", "--json")
    answer = json.loads(out)
    assert (status, answer["version"], answer["turns"]) == (0, 2, 300)
    policies = {policy["policy"]: policy for policy in answer["policies"]}
    assert answer["recommended"] in policies
    assert (bool(answer["why"]), answer["caveats"]) == (
        True,
        ["300 turns are too few beyond the p97"],
    )
    race = policies["race(2)"]
    assert race["extra_requests"] == 1.0
    interval = race["intervals"]["p95"]
    assert interval["low"] <= race["percentiles"]["p95"] <= interval["high"]


# ---- routes


@pytest.mark.virtual_time
async def test_thresholds_of_a_route_are_compared(tmp_path: Path) -> None:
    """From a log of three turns out of four that were simple."""
    log = tmp_path / "turns.jsonl"
    policy = HedgePolicy.fallback(route=ComplexityRouter(simple="quick", complex="slow"))
    for turn in range(20):
        words = "Are you open?" if turn % 4 else "Why is it dearer? What if we compare both?"
        quick = ScriptedLLMService([Wait(0.2), Say("Yes.")])
        slow = ScriptedLLMService([Wait(0.9), Say("No.")])
        members = [
            Provider("quick", quick, usd_per_mtok=(1, 1)),
            Provider("slow", slow, usd_per_mtok=(10, 10)),
        ]
        async with Line(racing(*members, policy=policy, turn_log=log)) as line:
            await line.ask(words)
            await line.report()
    answer = what_if(read_latencies([log]), FAST)
    routes = {route.threshold: route for route in answer.routes}
    assert {(route.simple, route.complex) for route in answer.routes} == {("quick", "slow")}
    shares = [routes[threshold].complex_share for threshold in (0.0, 0.3, math.inf)]
    assert shares == [1.0, 0.25, 0.0]
    waits = [routes[threshold].percentiles["p50"] for threshold in (0.0, 0.3, math.inf)]
    assert waits == pytest.approx([0.9, 0.2, 0.2])
    assert routes[0.3].percentiles["p95"] == pytest.approx(0.9)
    assert (routes[0.0].usd or 0) > 5 * (routes[math.inf].usd or 1)
    assert "all to slow" in show(answer)


def test_without_scores_or_a_second_provider_there_are_no_routes() -> None:
    secs = trace(HOSTED, 200)
    assert asked(measured("a", secs)).routes == ()
    scored = replace(recorded(measured("a", secs)), routed=[("a", 0.1), ("a", 0.7)])
    assert what_if(scored, FAST).routes == ()
