"""What another policy would have done, and how far the answer can be trusted."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console

from pipecat_hedge import HedgeError, Slo
from pipecat_hedge.cli import main
from pipecat_hedge.policy.hedge_policy import HedgePolicy
from pipecat_hedge.policy.profiles import PROFILES
from pipecat_hedge.tools.analysis.whatif import (
    Answer,
    Costs,
    Measured,
    Outcome,
    Question,
    Recorded,
    what_if,
)
from pipecat_hedge.tools.analysis.whatif.showing import show
from pipecat_hedge.tools.analysis.whatif.trust import percentile

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
HOSTED, LOCAL = "gemma-4-31b-baseten", "qwen3.8-27b-local"
FAST = Question(budgets=(0.05,), least_turns=2000)


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
    return Recorded({m.name: m for m in providers}, len(providers[0].secs), 0, (), "s")


def trace(profile: str, count: int, seed: int = 1) -> Floats:
    return PROFILES[profile].samples(count, seed)


def of(answer: Answer, policy: str) -> Outcome:
    return next(o for o in answer.outcomes if o.policy == policy)


@pytest.fixture(scope="module")
def hosted() -> Answer:
    return what_if(
        recorded(measured("claude", trace(HOSTED, 6000))),
        Question(deadline_secs=1.2, least_turns=1),
    )


# ---- promises


def test_a_promise_is_compared_with_and_without() -> None:
    """Each adaptive policy, by the share of turns that keep it."""
    promise = Slo(0.8, ttfs_secs=None, voice_to_voice_secs=None)
    question = Question(budgets=(0.1,), slo=promise, least_turns=6000)
    answer = what_if(recorded(measured("jagged", trace("jagged", 6000))), question)
    assert answer.deadline_secs == 0.8
    plain, aimed = of(answer, "adaptive(10 %)"), of(answer, "adaptive(10 %, slo)")
    assert plain.under_deadline is not None
    assert aimed.under_deadline is not None
    assert aimed.under_deadline > plain.under_deadline


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"slo": Slo(), "deadline_secs": 1.0}, "both say when an answer should be there"),
        ({"slo": Slo(ttft_secs=None)}, "slo promises nothing of the first token"),
    ],
)
def test_promises_that_cannot_be_compared(options: dict[str, Any], told: str) -> None:
    """Said where they are written."""
    with pytest.raises(HedgeError, match=told):
        Question(**options)


# ---- the figures


def test_without_hedging_it_is_the_file_itself(hosted: Answer) -> None:
    """Percentiles, maximum and mean of what was measured."""
    none, secs = hosted.outcomes[0], np.sort(trace(HOSTED, 6000))
    assert none.policy == "no hedging"
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)):
        assert none.percentiles[name] == percentile(secs, p)
    assert none.max_secs == secs[-1]
    assert none.mean_secs == pytest.approx(float(secs.mean()))
    assert none.under_deadline == pytest.approx(float((secs <= 1.2).mean()))
    assert none.extra_requests == 0


def test_every_policy_is_there(hosted: Answer) -> None:
    """The same turns under each."""
    assert [o.policy for o in hosted.outcomes] == [
        "no hedging",
        "race(2)",
        f"after({np.quantile(trace(HOSTED, 6000), 0.95):.3f} s)",
        "SingleR(p99, 5 %)",
        "adaptive(1 %)",
        "adaptive(2 %)",
        "adaptive(5 %)",
        "adaptive(10 %)",
        "adaptive(25 %)",
    ]
    race, adaptive = of(hosted, "race(2)"), of(hosted, "adaptive(5 %)")
    assert race.extra_requests == 1.0
    assert 0.03 < adaptive.extra_requests < 0.055
    assert adaptive.percentiles["p99"] < 0.3 * hosted.outcomes[0].percentiles["p99"]
    assert race.percentiles["p99.9"] < adaptive.percentiles["p99.9"]


def test_it_recommends_the_last_request_that_is_worth_it(hosted: Answer) -> None:
    """And says what it brings, and what more would bring."""
    assert hosted.recommended.startswith("adaptive(")
    assert hosted.why.startswith("p99 ")
    assert "instead of" in hosted.why
    assert "% of turns within 1.2 s instead of" in hosted.why
    assert "less than the 0.15 s that one is worth" in hosted.why


def test_a_light_tail_is_not_to_be_hedged() -> None:
    """With the figure that says so."""
    answer = what_if(recorded(measured("gemini", trace("gemini-3.6-flash", 3000))), FAST)
    assert answer.recommended == "no hedging"
    assert answer.why.startswith("an extra request saves 0.")
    assert "the tail is too light to hedge, the p99 is 1." in answer.why


def test_where_a_request_is_worth_a_lot_more_are_sent() -> None:
    """The worth is the user's to say."""
    file = recorded(measured("gpt", trace("gpt-4.1", 3000)))
    thrifty = what_if(file, Question(min_saving_secs=1.0, least_turns=1))
    generous = what_if(file, Question(min_saving_secs=0.0, least_turns=1))
    assert (
        of(thrifty, thrifty.recommended).extra_requests
        < of(generous, generous.recommended).extra_requests
    )
    assert generous.recommended == "race(2)"


@pytest.mark.parametrize("seed", range(6))
def test_three_hundred_latencies_of_ones_own(seed: int) -> None:
    """The faster of each two in a row is within the interval of racing two."""
    secs = trace(HOSTED, 300, seed)
    race = of(what_if(recorded(measured("mine", secs)), FAST), "race(2)")
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
        interval = of(answer, "race(2)").intervals["p95"]
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
    assert of(answer, "adaptive(5 %)").percentiles["p99"] < 0.9
    turned = what_if(file, Question(first="local", budgets=(0.05,), least_turns=1))
    assert (turned.first, turned.second) == ("local", "claude")
    itself = what_if(file, Question(second="claude", budgets=(0.05,), least_turns=1))
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
    race = of(answer, "race(2)")
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
    assert of(answer, "race(2)").percentiles["p99"] == 5.0


def test_ties_are_no_dependence() -> None:
    """Latencies rounded to whole seconds have no order among their equals."""
    rng = np.random.default_rng(5)
    answer = what_if(recorded(measured("x", np.round(rng.uniform(0.5, 2.5, 3000)))), FAST)
    assert abs(answer.independence.rank_correlation) < 0.08
    assert answer.independence.holds


def test_a_log_of_races_cannot_tell_how_long_a_tail_is() -> None:
    """And says so, where it would recommend not to hedge."""
    one, other = trace(HOSTED, 800, 1), trace(HOSTED, 800, 2)
    won = np.minimum(one, other)
    file = recorded(
        measured("a", won, censored=one > won), measured("b", won, censored=other > won)
    )
    answer = what_if(file, FAST)
    assert any("were cut short by a hedge or an interruption" in note for note in answer.notes)
    least = answer.outcomes[0].at_least["p99"]
    told = io.StringIO()
    show(answer, Console(file=told, width=120))
    unhedged = next(line for line in told.getvalue().splitlines() if "no hedging" in line)
    assert f"> {1000 * least:.0f} ms" in unhedged
    assert "these turns cannot tell how long the tail is: log some under" in answer.why


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
    assert independence.text.startswith("independence holds here: ")


def test_turns_that_are_slow_together_are_found_out() -> None:
    """And the answer says what that does to it."""
    secs = trace(HOSTED, 4000)
    spell = np.random.default_rng(2).random(200) < 0.04
    secs[np.repeat(spell, 20)] += 4.0
    answer = what_if(recorded(measured("x", secs)), FAST)
    assert not answer.independence.holds
    assert answer.independence.clustering > 3
    assert "Hedging to the same provider will help less" in answer.independence.text
    chosen = of(answer, answer.recommended)
    assert chosen.if_slow_together is not None
    assert chosen.if_slow_together > 1.2 * chosen.percentiles["p99"]


def test_slow_turns_that_keep_apart_are_not_said_to_come_together() -> None:
    """As those of a provider that is slow every fourth time."""
    secs = trace(HOSTED, 4000)
    secs[::4] += 1.0
    independence = what_if(recorded(measured("x", secs)), FAST).independence
    assert not independence.holds
    assert independence.text.startswith("turns follow each other, though slow ones keep apart: ")


def test_why_it_is_not_worth_it() -> None:
    """The second is slow in the same turns; it is slow at all; or the deadline is met anyhow."""
    slow = np.random.default_rng(3).random(3000) < 0.1
    secs = np.where(slow, 5.0, 0.5) + np.random.default_rng(4).uniform(0, 0.01, 3000)
    together = what_if(recorded(measured("a", secs), measured("b", secs + 0.01)), FAST)
    assert together.recommended == "no hedging"
    assert "% of its slowest turns, the second provider is slow as well" in together.why
    slower = what_if(recorded(measured("a", secs), measured("b", np.full(99, 9.0))), FAST)
    assert slower.recommended == "no hedging"
    assert slower.why.endswith("the second request is too slow to overtake the first")
    met = what_if(
        recorded(measured("a", trace(HOSTED, 2000))),
        Question(budgets=(0.05,), least_turns=1, deadline_secs=60.0),
    )
    assert met.recommended == "no hedging"
    assert met.why.endswith("100.00% of turns are within 60 s without it")


def test_slow_spells_when_another_provider_is_hedged_to() -> None:
    """May be its spells too, or not: the file cannot tell."""
    secs = trace(HOSTED, 4000)
    secs[np.repeat(np.random.default_rng(2).random(200) < 0.04, 20)] += 4.0
    answer = what_if(recorded(measured("x", secs), measured("y", trace(LOCAL, 900))), FAST)
    assert "measure both side by side" in answer.independence.text
    assert of(answer, "race(2)").if_slow_together is None


def test_too_few_turns_to_tell() -> None:
    """Is said."""
    answer = what_if(recorded(measured("x", trace(HOSTED, 8))), FAST)
    assert "too few turns" in answer.independence.text
    assert any("8 turns say nothing of a tail" in note for note in answer.notes)


# ---- what logs leave out


def test_what_was_cut_short_is_filled_in() -> None:
    """As if the hedges had not been: within what chance explains of the truth."""
    truth, hedge = trace("gpt-4.1", 20_000, 3), trace("gpt-4.1", 20_000, 4)
    won = np.minimum(truth, 1.2 + hedge)
    cut = truth > won
    file = recorded(measured("gpt", np.where(cut, won, truth), censored=cut))
    answer = what_if(file, FAST)
    filled = answer.outcomes[0].percentiles
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert filled[name] == pytest.approx(percentile(np.sort(truth), p), rel=0.1)
    assert any(f"{int(cut.sum())} latencies of gpt were cut short by " in n for n in answer.notes)
    assert answer.sources[0].cut_short == int(cut.sum())


def test_failures_are_replayed_as_failures() -> None:
    """Without a second attempt they are turns without an answer."""
    secs = trace(HOSTED, 3000)
    failed = np.random.default_rng(1).random(3000) < 0.05
    answer = what_if(recorded(measured("x", np.where(failed, 0.05, secs), failed=failed)), FAST)
    assert answer.outcomes[0].unanswered == pytest.approx(float(failed.mean()))
    assert answer.outcomes[0].percentiles["p99"] == math.inf
    adaptive = of(answer, "adaptive(5 %)")
    assert adaptive.unanswered == pytest.approx(0.0025, abs=0.002)
    assert adaptive.extra_requests <= 0.055
    assert adaptive.replacements == pytest.approx(0.05, abs=0.01)
    fallback = answer.outcomes[1]
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


# ---- sizes


def test_a_larger_file_is_sampled_and_it_says_so() -> None:
    """In blocks of consecutive turns."""
    answer = what_if(
        recorded(measured("x", trace(HOSTED, 30_000))), Question(budgets=(0.05,), most_turns=5000)
    )
    assert answer.sampled
    assert answer.replayed == 5000
    assert "5,000 of 30,000 turns were replayed, in blocks of 1,000" in answer.notes[0]


def wandering(turns: int) -> Floats:
    """Latencies whose level never rests: 0.8 of each turn's logarithm goes over to the next."""
    rng, logs = np.random.default_rng(5), np.zeros(turns)
    for turn in range(1, turns):
        logs[turn] = 0.8 * logs[turn - 1] + rng.normal(0, 0.6)
    return 0.5 * np.exp(logs)


def yardstick_secs() -> float:
    """What a fixed amount of plain Python takes of this processor's time now."""
    began = time.process_time()
    counts: dict[int, float] = {}
    for number in range(1_000_000):
        counts[number & 1023] = counts.get(number & 1023, 0.0) + math.sqrt(number)
    return time.process_time() - began


@pytest.mark.parametrize("latencies", [trace(HOSTED, 10_000), wandering(10_000)])
def test_a_hundred_thousand_turns_take_about_a_minute(
    latencies: Floats, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under all policies, on a quiet machine; how busy this one is, plain Python tells meanwhile.

    Taken of a tenth of the turns.
    """
    file = recorded(measured("x", latencies))
    shares: list[float] = []
    yardsticks = [yardstick_secs() for _ in range(3)]
    began = time.process_time()
    what_if(file, Question(least_turns=1), progress=lambda _, share: shares.append(share))
    spent = 10 * (time.process_time() - began)
    yardsticks += [yardstick_secs() for _ in range(3)]
    ratio = spent / statistics.median(yardsticks)
    with capsys.disabled():
        print(f"\n100,000 turns under all policies: {spent:.0f} s, {ratio:.0f} times plain Python")
    assert ratio < 1200
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(shares) > 100


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (lambda: Question(attempts=1), "attempts must be at least 2 to hedge, got 1"),
        (lambda: Costs(prompt_tokens=-1.0), r"prompt_tokens must be positive, got -1\.0"),
        (lambda: Costs(prompt_tokens=math.nan), "prompt_tokens must be positive, got nan"),
        (lambda: Costs(1.0, (1.0, -1.0)), "usd_per_mtok must be two prices, not negative"),
        (lambda: Question(most_turns=10), "turns must be at least 1000, got 10"),
    ],
)
def test_questions_that_cannot_be_asked(question: object, told: str) -> None:
    """Name the field."""
    assert callable(question)
    with pytest.raises(HedgeError, match=told):
        question()


# ---- the command


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One row a policy, what to take, how far to trust it, and the bad lines."""
    file = tmp_path / "mine.csv"
    file.write_text(
        "ttft_ms\n" + "\n".join(f"{1000 * s:.0f}" for s in trace(HOSTED, 600)) + "\nx\n"
    )
    status = main(
        ["whatif", str(file), "--budget", "0.05", "--deadline", "1", "--after", "0.7",
         "--least-turns", "1", "--prompt-tokens", "4000", "--usd-per-mtok", "3", "15"]
    )  # fmt: skip
    told = capsys.readouterr().out
    assert status == 0
    for expected in (
        "600 turns: ttft alone, and hedged to itself",
        "no hedging",
        "after(0.7 s)",
        "▶ adaptive(5 %)",
        "≤ 1 s",
        "tokens",
        "$ per",
        "4,000",
        "12.000",
        "independence holds here",
        "1 bad lines skipped",
        "mine.csv:602: ",
        "the figures were taken for milliseconds",
    ):
        assert expected in " ".join(told.split()), expected


def test_json_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs and for slides."""
    file = tmp_path / "mine.csv"
    file.write_text("\n".join(f"{s:.3f}" for s in trace(HOSTED, 300)))
    picture = tmp_path / "out.png"
    status = main(
        [
            "whatif",
            str(file),
            "--budget",
            "0.05",
            "--json",
            "--plot",
            str(picture),
            "--least-turns",
            "1",
        ]
    )
    answer = json.loads(capsys.readouterr().out)
    assert status == 0
    assert answer["version"] == 1
    assert answer["turns"] == 300
    assert answer["recommended"] in [policy["policy"] for policy in answer["policies"]]
    race = next(policy for policy in answer["policies"] if policy["policy"] == "race(2)")
    assert race["extra_requests"] == 1.0
    interval = race["intervals"]["p95"]
    assert interval["low"] <= race["percentiles"]["p95"] <= interval["high"]
    assert picture.read_bytes().startswith(b"\x89PNG")


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
        (
            ["one.csv", "--budget", "0.05", "--plot", "out.docx"],
            "plot: out.docx is of no kind that can be",
        ),
        (
            ["one.csv", "--budget", "0.05", "--plot", "none/out.png"],
            "plot: there is no folder none",
        ),
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
    module = "pipecat_hedge.tools.analysis.whatif.command"
    code = f"import sys, {module}; sys.exit('pipecat' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_dearer_provider_is_hedged_to_less_often() -> None:
    """A budget counts a hedge for what it costs, as the service does."""
    question = Question(
        least_turns=4000,
        policies=(
            ("none", HedgePolicy.fallback(1, stall_secs=None)),
            ("adaptive", HedgePolicy.adaptive(0.1, stall_secs=None)),
        ),
    )
    a, b = trace("claude-haiku-4-5", 4000), trace("claude-haiku-4-5", 4000, 2)
    both = recorded(measured("a", a), measured("b", b))
    dear = dataclasses.replace(both, usd_per_mtok={"a": (1.0, 5.0), "b": (2.0, 10.0)})
    usual, less = (of(what_if(r, question), "adaptive").extra_requests for r in (both, dear))
    assert usual == pytest.approx(0.1, abs=0.01)
    assert less == pytest.approx(0.05, abs=0.01)
