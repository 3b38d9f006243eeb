"""What another policy would have done, and how far the answer can be trusted."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pipecat_hedge import HedgeError, HedgePolicy, Slo
from pipecat_hedge.cli import main
from pipecat_hedge.policy import PROFILES
from pipecat_hedge.tools.analysis.latency_files import Measured, Recorded
from pipecat_hedge.tools.analysis.statistics import percentile
from pipecat_hedge.tools.analysis.whatif import Answer, Question, show, what_if

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
HOSTED, LOCAL = "gemma-4-31b-baseten", "qwen3.8-27b-local"
FAST = Question(budgets=(0.05,), min_turns=2000)


def measured(
    name: str, secs: Floats, censored: Bools | None = None, failed: Bools | None = None
) -> Measured:
    no = np.zeros(len(secs), np.bool_)
    return Measured(
        name,
        np.asarray(secs, np.float64),
        no if censored is None else np.asarray(censored, np.bool_),
        no if failed is None else np.asarray(failed, np.bool_),
        np.arange(len(secs)),
    )


def recorded(*providers: Measured) -> Recorded:
    return Recorded({m.name: m for m in providers}, len(providers[0].secs))


def trace(profile: str, count: int, seed: int = 1) -> Floats:
    return PROFILES[profile].samples(count, seed)


@pytest.fixture(scope="module")
def hosted() -> Answer:
    return what_if(
        recorded(measured("claude", trace(HOSTED, 4000))),
        Question(budgets=(0.05,), deadline_secs=1.2, min_turns=1),
    )


# ---- promises


def test_a_promise_is_compared_with_and_without() -> None:
    """Each adaptive policy, by the share of turns that keep it."""
    promise = Slo(0.8, ttfs_secs=None, voice_to_voice_secs=None)
    question = Question(budgets=(0.1,), slo=promise, min_turns=1)
    answer = what_if(recorded(measured("jagged", trace("jagged", 4000))), question)
    assert answer.deadline_secs == 0.8
    plain, aimed = answer.outcome("adaptive(10 %)"), answer.outcome("adaptive(10 %, slo)")
    assert plain.under_deadline is not None
    assert aimed.under_deadline is not None
    assert aimed.under_deadline > plain.under_deadline


# ---- the figures


def test_without_hedging_it_is_the_file_itself(hosted: Answer) -> None:
    """Percentiles, maximum and mean of what was measured."""
    none, secs = hosted.policies[0], np.sort(trace(HOSTED, 4000))
    assert none.policy == "no hedging"
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)):
        assert none.percentiles[name] == percentile(secs, p)
    assert none.max_secs == secs[-1]
    assert none.mean_secs == pytest.approx(float(secs.mean()))
    assert none.under_deadline == pytest.approx(float((secs <= 1.2).mean()))
    assert none.extra_requests == 0


def test_a_light_tail_is_not_to_be_hedged() -> None:
    """With the figure that says so."""
    answer = what_if(recorded(measured("gemini", trace("gemini-3.6-flash", 3000))), FAST)
    assert answer.recommended == "no hedging"
    assert answer.why.startswith("an extra request saves 0.")
    assert "the tail is light, the p99 is 1." in answer.why


def test_where_a_request_is_worth_a_lot_more_are_sent() -> None:
    """The worth is the user's to say."""
    file = recorded(measured("gpt", trace("gpt-4.1", 3000)))
    budgets = (0.05, 0.25)
    thrifty = what_if(file, Question(budgets=budgets, min_saving_secs=1.0, min_turns=1))
    generous = what_if(file, Question(budgets=budgets, min_saving_secs=0.0, min_turns=1))
    assert (
        thrifty.outcome(thrifty.recommended).extra_requests
        < generous.outcome(generous.recommended).extra_requests
    )
    assert generous.recommended == "race(2)"


@pytest.mark.parametrize("seed", range(2))
def test_three_hundred_latencies_of_ones_own(seed: int) -> None:
    """The faster of each two in a row is within the interval of racing two."""
    secs = trace(HOSTED, 300, seed)
    race = what_if(recorded(measured("mine", secs)), FAST).outcome("race(2)")
    pairs = np.sort(secs.reshape(150, 2).min(axis=1))
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        interval = race.intervals[name]
        assert interval.low * 0.99 <= percentile(pairs, p) <= interval.high * 1.01
        assert interval.low <= race.percentiles[name] <= interval.high


def test_an_interval_holds_what_other_files_of_the_size_show() -> None:
    """Nineteen of twenty of them, or nearly."""
    answer = what_if(recorded(measured("mine", trace(HOSTED, 1000, 50))), FAST)
    inside = 0
    for seed in range(40):
        first, second = trace(HOSTED, 1000, 100 + seed), trace(HOSTED, 1000, 500 + seed)
        interval = answer.outcome("race(2)").intervals["p95"]
        inside += (
            interval.low <= percentile(np.sort(np.minimum(first, second)), 0.95) <= interval.high
        )
    assert inside >= 32


# ---- two providers


def test_a_second_provider_is_hedged_to() -> None:
    """The first that was measured is asked first, unless the question says otherwise."""
    file = recorded(
        measured("claude", trace(HOSTED, 4000)), measured("local", trace(LOCAL, 900, 5))
    )
    answer = what_if(file, FAST)
    assert (answer.first, answer.second) == ("claude", "local")
    assert answer.outcome("adaptive(5 %)").percentiles["p99"] < 0.9
    turned = what_if(file, Question(first="local", budgets=(0.05,), min_turns=1))
    assert (turned.first, turned.second) == ("local", "claude")
    itself = what_if(file, Question(second="claude", budgets=(0.05,), min_turns=1))
    assert (itself.first, itself.second) == ("claude", "claude")
    with pytest.raises(HedgeError, match="second: 'gpt' was not measured; measured: claude, local"):
        what_if(file, Question(second="gpt"))


def test_what_was_measured_side_by_side_needs_no_assumption() -> None:
    """Two columns that are slow together are raced as they were."""
    rng = np.random.default_rng(3)
    slow = rng.random(3000) < 0.05
    one = np.where(slow, 5.0, 0.5) + rng.uniform(0, 0.1, 3000)
    other = np.where(slow, 5.0, 0.5) + rng.uniform(0, 0.1, 3000)
    answer = what_if(recorded(measured("a", one), measured("b", other)), FAST)
    race = answer.outcome("race(2)")
    assert race.percentiles["p99"] > 5.0
    assert race.percentiles["p50"] == pytest.approx(
        float(np.median(np.minimum(one, other))), abs=0.01
    )
    assert answer.independence.is_measured
    assert "both providers were measured in the same turns" in answer.independence.text
    assert answer.independence.slow_together == pytest.approx(0.5, abs=0.15)  # 5 % of the slow 10 %


def test_a_hole_does_not_undo_what_was_measured_side_by_side() -> None:
    """The few turns in which one is missing are left out."""
    slow = np.random.default_rng(3).random(1000) < 0.05
    secs = np.where(slow, 5.0, 0.5)
    other = Measured(
        "b", secs[1:], np.zeros(999, np.bool_), np.zeros(999, np.bool_), np.arange(1, 1000)
    )
    answer = what_if(recorded(measured("a", secs), other), FAST)
    assert answer.independence.is_measured
    assert answer.outcome("race(2)").percentiles["p99"] == 5.0


def test_a_file_without_one_answer_is_refused() -> None:
    """Of failures or interruptions alone nothing can be replayed."""
    secs = np.full(50, 0.3)
    for kind in ("censored", "failed"):
        with pytest.raises(HedgeError, match="no request of a was answered"):
            what_if(recorded(measured("a", secs, **{kind: np.ones(50, np.bool_)})), FAST)


# ---- trust


def test_independent_turns_are_found_independent() -> None:
    """Within what chance explains."""
    independence = what_if(recorded(measured("x", trace(HOSTED, 3000))), FAST).independence
    assert independence.holds
    assert abs(independence.rank_correlation) < 1.5 * independence.noise
    assert independence.text.startswith("turns appear independent")


def test_why_it_is_not_worth_it() -> None:
    """The second is slow in the same turns; it is slow at all; or the deadline is met anyhow."""
    slow = np.random.default_rng(3).random(3000) < 0.1
    secs = np.where(slow, 5.0, 0.5) + np.random.default_rng(4).uniform(0, 0.01, 3000)
    together = what_if(recorded(measured("a", secs), measured("b", secs + 0.01)), FAST)
    assert together.recommended == "no hedging"
    assert "% of its slowest turns the second provider is slow as well" in together.why
    slower = what_if(recorded(measured("a", secs), measured("b", np.full(99, 9.0))), FAST)
    assert slower.recommended == "no hedging"
    assert slower.why.endswith("the second request is too slow to overtake the first")
    met = what_if(
        recorded(measured("a", trace(HOSTED, 2000))),
        Question(budgets=(0.05,), deadline_secs=60.0, min_turns=1),
    )
    assert met.recommended == "no hedging"
    assert met.why.endswith("100.00 % of turns are within 60 s without it")


# ---- what logs leave out


def test_failures_are_replayed_as_failures() -> None:
    """Without a second attempt they are turns without an answer."""
    secs = trace(HOSTED, 3000)
    failed = np.random.default_rng(1).random(3000) < 0.05
    answer = what_if(recorded(measured("x", np.where(failed, 0.05, secs), failed=failed)), FAST)
    assert answer.policies[0].unanswered == pytest.approx(float(failed.mean()))
    assert answer.policies[0].percentiles["p99"] == math.inf
    adaptive = answer.outcome("adaptive(5 %)")
    assert adaptive.unanswered == pytest.approx(0.0025, abs=0.002)
    assert adaptive.extra_requests <= 0.055
    assert adaptive.replacements == pytest.approx(0.05, abs=0.01)
    fallback = answer.policies[1]
    assert fallback.policy == "fallback(2)"
    assert fallback.extra_requests == 0
    assert fallback.replacements == pytest.approx(float(failed.mean()), abs=0.005)
    assert fallback.percentiles["p99"] < math.inf


def test_failures_alone_are_no_reason_to_hedge() -> None:
    """They are replaced without: what is compared is what hedging does beyond that."""
    secs = np.random.default_rng(2).normal(0.5, 0.03, 2000)
    failed = np.random.default_rng(1).random(2000) < 0.05
    answer = what_if(recorded(measured("x", secs, failed=failed)), FAST)
    assert answer.recommended == "fallback(2)"


def test_what_was_cut_short_is_estimated() -> None:
    """As if the hedges had not been: within what chance explains of the truth."""
    truth, hedge = trace("gpt-4.1", 6_000, 3), trace("gpt-4.1", 6_000, 4)
    won = np.minimum(truth, 1.2 + hedge)
    cut = truth > won
    file = recorded(measured("gpt", np.where(cut, won, truth), censored=cut))
    answer = what_if(file, FAST)
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        expected = percentile(np.sort(truth), p)
        assert answer.policies[0].percentiles[name] == pytest.approx(expected, rel=0.12)
    assert any(f"{cut.sum()} requests to gpt were cancelled" in each for each in answer.caveats)


def test_a_log_of_races_cannot_tell_how_long_a_tail_is() -> None:
    """And says so, where it would recommend not to hedge."""
    one, other = trace(HOSTED, 800, 1), trace(HOSTED, 800, 2)
    won = np.minimum(one, other)
    file = recorded(
        measured("a", won, censored=one > won), measured("b", won, censored=other > won)
    )
    answer = what_if(file, FAST)
    bound = answer.policies[0].at_least["p99"]
    unhedged = next(row for row in show(answer, 120).splitlines() if "no hedging" in row)
    assert f"> {1000 * bound:.0f} ms" in unhedged
    assert "so the tail is unknown: log some turns under" in answer.why


def test_turns_that_are_slow_together_are_found_out() -> None:
    """A second request to the same provider would be slow as well."""
    secs = trace(HOSTED, 4000)
    secs[np.repeat(np.random.default_rng(2).random(200) < 0.04, 20)] += 4.0
    answer = what_if(recorded(measured("x", secs)), FAST)
    assert not answer.independence.holds
    assert answer.independence.clustering > 3
    assert any(each.startswith("slow turns cluster") for each in answer.caveats)


def test_an_order_that_is_learned_follows_a_provider_that_turned_slow() -> None:
    """Each request has its own provider's latency, whichever is asked first."""
    first, second = (PROFILES["claude-haiku-4-5"].samples(1200, seed) for seed in (1, 2))
    slow = np.where(np.arange(1200) >= 400, 5 * first, first)
    others = [
        (order, HedgePolicy.adaptive(0.1, order=order, stall_secs=None))
        for order in ("given", "learned")
    ]
    question = Question(budgets=(), others=others, min_turns=1)  # type: ignore[arg-type]
    answer = what_if(recorded(measured("a", slow), measured("b", second)), question)
    given, learned = (answer.outcome(name).mean_secs for name in ("given", "learned"))
    assert learned < 0.75 * given < answer.policies[0].mean_secs


def test_a_dearer_provider_is_hedged_to_less_often() -> None:
    """A budget counts a hedge for what it costs, as the service does."""
    a, b = trace("claude-haiku-4-5", 4000), trace("claude-haiku-4-5", 4000, 2)
    both = recorded(measured("a", a), measured("b", b))
    dear = dataclasses.replace(both, usd_per_mtok={"a": (1.0, 5.0), "b": (2.0, 10.0)})
    question = Question(budgets=(0.1,), min_turns=1)
    usual, less = (
        what_if(file, question).outcome("adaptive(10 %)").extra_requests for file in (both, dear)
    )
    assert usual == pytest.approx(0.1, abs=0.02)
    assert less < 0.7 * usual


# ---- sizes


def test_a_larger_file_is_sampled_and_it_says_so() -> None:
    """In blocks of consecutive turns."""
    answer = what_if(
        recorded(measured("x", trace(HOSTED, 30_000))), Question(budgets=(0.05,), max_turns=5000)
    )
    assert answer.replayed == 5000
    assert "5,000 of 30,000 turns were replayed, in blocks of 1,000" in answer.caveats[0]


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"attempts": 1}, "attempts must be at least 2 to hedge, got 1"),
        ({"prompt_tokens": math.nan}, "prompt_tokens must be positive, got nan"),
        ({"usd_per_mtok": (1.0, -1.0)}, "usd_per_mtok must be two prices, not negative"),
        ({"max_turns": 10}, "turns must be at least 1000, got 10"),
        ({"slo": Slo(), "deadline_secs": 1.0}, "both set the time of an answer"),
        ({"slo": Slo(ttft_secs=None)}, "slo has no ttft_secs"),
        ({"others": (("three", HedgePolicy.race(3)),)}, "one of the other policies makes more"),
    ],
)
def test_a_question_that_cannot_be_asked_names_the_field(
    question: dict[str, Any], message: str
) -> None:
    with pytest.raises(HedgeError, match=message):
        Question(**question)


# ---- the command


def test_the_recommendation_comes_first_and_every_policy_has_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Within 80 columns, nothing cut off; the bad lines and the unit are named."""
    file = tmp_path / "mine.csv"
    rows = "\n".join(f"{1000 * s:.0f}" for s in trace(HOSTED, 600))
    file.write_text(f"ttft_ms\n{rows}\nx\n")
    options = ["--budget", "0.05", "--budget", "0.1", "--deadline", "1", "--after", "0.7"]
    assert main(["whatif", str(file), *options, "--usd-per-mtok", "3", "15"]) == 2
    capsys.readouterr()
    prices = ["--prompt-tokens", "4000", "--usd-per-mtok", "3", "15"]
    assert main(["whatif", str(file), *options, *prices]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Recommended: adaptive(5 %)\np99 ")
    assert "of turns within 1 s instead of" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    names = ("no hedging", "race(2)", "after(0.7 s)", "SingleR(p99, 5 %)", "adaptive(10 %)")
    for each in (*names, "> adaptive(5 %)", "≤ 1 s", "$/1,000", "milliseconds", "1 bad line"):
        assert each in shown


def test_few_turns_have_no_p99_and_a_caveat() -> None:
    """Six latencies are a hint; a hundred have a p99."""
    few = what_if(recorded(measured("x", trace(HOSTED, 6))))
    assert "p99" not in show(few).replace("SingleR(p99", "").replace("have no p99", "")
    assert few.caveats == ("6 turns have no p99: the result is rough",)
    assert few.replayed == 600
    enough = what_if(recorded(measured("x", trace(HOSTED, 100))), FAST)
    assert " p99 " in show(enough)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_is_never_wider_than_the_terminal(width: int) -> None:
    """Columns are dropped; a long name stands on a line of its own."""
    name = "a-provider-whose-name-is-as-long-as-a-name-may-be-and-has-no-blank"
    answer = what_if(recorded(measured(name, trace(HOSTED, 200))), FAST)
    assert all(len(row) <= max(width, len(name)) for row in show(answer, width).splitlines())


def test_json_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure of the table."""
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(f"{s:.3f}" for s in trace(HOSTED, 300)))
    status = main(["whatif", str(file), "--budget", "0.05", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert status == 0
    assert answer["version"] == 2
    assert answer["turns"] == 300
    assert answer["recommended"] in [policy["policy"] for policy in answer["policies"]]
    race = next(policy for policy in answer["policies"] if policy["policy"] == "race(2)")
    assert race["extra_requests"] == 1.0
    interval = race["intervals"]["p95"]
    assert interval["low"] <= race["percentiles"]["p95"] <= interval["high"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["none.csv"], "none.csv cannot be read: No such file"),
        (["empty.csv"], "there is no latency in"),
        (["one.csv", "--attempts", "1"], "attempts must be at least 2"),
        (["one.csv", "--usd-per-mtok", "3", "15"], "usd_per_mtok needs prompt_tokens"),
        (["one.csv", "--column", "ttft"], "no field called ttft is a number"),
        (["one.csv", "--budget", "-1"], "budget must be a share of turns"),
        (["one.csv", "--first", "x"], "first: 'x' was not measured; measured: latency"),
    ],
)
def test_what_cannot_be_answered(
    arguments: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Is one line on the error stream, and status 2."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "one.csv").write_text("0.5\n0.6\n0.7\n")
    assert main(["whatif", *arguments]) == 2
    errors = " ".join(capsys.readouterr().err.split())
    assert errors.startswith("pipecat-hedge whatif: ")
    assert told in errors


def test_the_command_does_not_load_pipecat(tmp_path: Path) -> None:
    """It starts in a moment."""
    module = "pipecat_hedge.tools.analysis.whatif"
    code = f"import sys, {module}; sys.exit('pipecat' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
