"""The whole report of an hour in which one provider was slow for five minutes."""

from __future__ import annotations

import dataclasses
import io
import json
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scripts.example_turns import BEGIN_AT, Hour, write_log

from pipecat_hedge import HedgePolicy
from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.tools.analysis.report import Figures, Log, figures_of, read_logs
from pipecat_hedge.tools.analysis.report.headlines import difference_told, headlines_of, spell_told
from pipecat_hedge.tools.analysis.report.page import page_of
from pipecat_hedge.tools.analysis.report.showing import as_dict, show
from pipecat_hedge.tools.analysis.report.waits import Estimate
from tests.tools.analysis.report.made_up import attempt, turn

HOUR = Hour(
    secs=1800.0,
    slow_from=600.0,
    slow_until=900.0,
    policy=HedgePolicy.adaptive(0.1, order="given"),  # else callers hardly notice the slow minutes
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "turns.jsonl"
    write_log(path, HOUR)
    return path


@pytest.fixture(scope="module")
def log(path: Path) -> Log:
    return read_logs([path])


@pytest.fixture(scope="module")
def figures(log: Log) -> Figures:
    return figures_of(log, zone=UTC)


def test_it_names_the_provider_the_minutes_and_the_cost(figures: Figures) -> None:
    """The drill's own question: who, when, and what it cost."""
    (spell,) = figures.spells
    assert (spell.provider, spell.kind) == ("haiku", "slow")
    assert spell.begin_at == pytest.approx(BEGIN_AT + 600, abs=20)
    assert spell.end_at == pytest.approx(BEGIN_AT + 900, abs=20)
    assert spell.extra_wait_secs is not None
    assert spell.extra_wait_secs > 60
    page = page_of(figures, UTC)
    assert "haiku was slow 2026-03-02 13:10 – 13:15 (5 minutes)" in page
    assert "s of waiting in" in page


def test_every_total_is_the_logs_own(figures: Figures, path: Path) -> None:
    """Counted again from the lines, by other means."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    sent = [a for t in lines for a in t["attempts"] if a["sent_secs"] is not None]
    assert figures.heard.turns == len(lines)
    assert figures.hedging.requests == len(sent) == figures.bill.total.requests
    assert figures.bill.total.usd == pytest.approx(sum(a["usd"] for a in sent))
    for key in ("input_tokens", "output_tokens"):
        assert getattr(figures.bill.total, key) == sum(a[key] for a in sent)
    for field in ("ttft_secs", "ttfs_secs"):
        waits = getattr(figures.heard, field.removesuffix("_secs"))
        known = [t[field] for t in lines if t[field] is not None]
        for p, mine in ((0.5, waits.p50_secs), (0.95, waits.p95_secs), (0.99, waits.p99_secs)):
            assert mine == percentile(known, p)
    for name, number in figures.heard.outcomes.items():
        assert number == sum(t["outcome"] == name for t in lines)
    assert sum(m.turns for m in figures.heard.over_time) == len(lines)


def test_promises_are_told_by_tier_and_time(figures: Figures) -> None:
    """Each was worst while the provider was slow."""
    assert {p.tier for p in figures.promises} == {"premium", "standard", "economy"}
    standard = next(p for p in figures.promises if p.tier == "standard" and p.objective == "ttft")
    assert standard.is_kept is False
    assert standard.worst is not None
    assert BEGIN_AT + 540 <= standard.worst[0].begin <= BEGIN_AT + 900


def test_the_slowest_turns_are_those_of_the_slow_minutes(figures: Figures) -> None:
    """Nearly all of them, each with who and why."""
    assert len(figures.slowest) == 10
    inside = [t for t in figures.slowest if BEGIN_AT + 590 < (t.at or 0) < BEGIN_AT + 910]
    assert len(inside) >= 8
    assert all("haiku" in turn.told for turn in inside)


def test_who_was_hardly_seen_is_not_advised(figures: Figures) -> None:
    """Some dozens of hedges, cut short before they were slow, do not tell how slow it can be."""
    replays = figures.replays
    assert replays is not None
    assert {c.kind for c in replays.changes} <= {"policy", "race", "second"}
    ((name, known),) = replays.unseen
    assert name == "gpt"
    assert known < replays.as_it_was.p95_secs


def test_the_log_is_replayed_by_its_own_policy_and_prices(figures: Figures) -> None:
    """A hedge to a provider twice as dear counts for two.

    Replays know no bound of how much is sent at once, so in the slow minutes they send more.
    """
    replays, sent = figures.replays, figures.hedging.extra_requests
    assert replays is not None
    assert sent is not None
    assert figures.candidates.policy == HOUR.policy
    assert replays.policy_is_told
    assert replays.as_it_was.requests == pytest.approx(1 + sent, abs=0.06)


def test_a_caller_is_a_session(log: Log) -> None:
    """As with a service each; so logs are compared by calls."""
    assert len({turn.session for turn in log.turns}) == 12


def test_the_json_holds_every_figure(figures: Figures) -> None:
    """As plain values, what is not known as null and nothing infinite."""
    told = json.loads(json.dumps(as_dict(figures), allow_nan=False))
    assert told["version"] == 1
    assert told["heard"]["ttft"]["p95_secs"] == figures.heard.ttft.p95_secs
    assert told["heard"]["voice_to_voice"]["p50_secs"] is None
    assert told["promises"][0]["overall"]["share"] == figures.promises[0].overall.share
    assert set(told) == {f.name for f in dataclasses.fields(figures)} | {"version"}


def test_the_summary_fits_a_terminal(figures: Figures) -> None:
    """And names what matters."""
    for width in (80, 110):
        written = io.StringIO()
        show(figures, Console(file=written, width=width, highlight=False), UTC)
        text = written.getvalue()
        assert "haiku was slow" in " ".join(text.split())
        assert all(len(line) <= width for line in text.splitlines())


def test_without_slow_minutes_none_is_named(tmp_path: Path) -> None:
    """The same callers on a calm half hour."""
    path = tmp_path / "calm.jsonl"
    write_log(path, dataclasses.replace(HOUR, slow_times=1.0))
    assert figures_of(read_logs([path]), zone=UTC, replay=False).spells == ()


def test_two_policies_are_told_apart(log: Log, tmp_path: Path) -> None:
    """By what each costs and what it brings, each as far as such logs can show."""
    path = tmp_path / "race.jsonl"
    write_log(path, dataclasses.replace(HOUR, secs=600.0, policy=HedgePolicy.race(2), seed=2))
    found = figures_of(log, zone=UTC, against=read_logs([path]), replay=False).comparison
    assert found is not None
    by_name = {d.name: d for d in found.differences}
    assert by_name["requests a turn"].verdict == "differs"
    assert difference_told(by_name["requests a turn"], found.other_turns) == "better"
    assert by_name["first token, p99"].verdict == "too few turns"
    assert by_name["answered to the end"].verdict == "no difference shown"


def test_an_old_log_makes_a_report(path: Path, tmp_path: Path) -> None:
    """What it does not tell is a dash, everywhere."""
    old = tmp_path / "old.jsonl"
    with old.open("w") as file:
        for line in path.read_text().splitlines()[:200]:
            told: dict[str, Any] = json.loads(line)
            for name in ("at", "tier", "ttfs_secs", "queued_secs", "committed_secs"):
                del told[name]
            for attempt in told["attempts"]:
                for name in ("usd", "stages", "sent_secs", "input_tokens", "output_tokens"):
                    del attempt[name]
            file.write(json.dumps(told) + "\n")
    figures = figures_of(read_logs([old]), zone=UTC, replay=False)
    assert (figures.begin_at, figures.heard.ttfs.count, figures.bill.total.usd) == (None, 0, None)
    assert figures.lacking["tier"] == 200
    page = page_of(figures, UTC)
    assert "$0" not in page
    assert "What a successful turn cost is not known" in page


def test_callers_who_hung_up_are_not_left_out() -> None:
    """A hundred of three hundred, after 8 s of silence: in the headline, the cards, the slowest."""
    cut = attempt(ttft=None, ended=8.0, outcome="interrupted")
    turns = [
        turn(cut, ttft=None, outcome="interrupted", at=BEGIN_AT + 10 * n)
        if n % 3 == 0
        else turn(ttft=0.4, at=BEGIN_AT + 10 * n)
        for n in range(300)
    ]
    figures = figures_of(Log(("turns.jsonl",), tuple(turns)), zone=UTC, replay=False)
    assert figures.heard.ttft.p95_secs == 0.4
    assert figures.heard.ttft_all.p95 == Estimate(8.0, is_least=True)
    text = headlines_of(figures, UTC)[0].text
    assert "0.40 s for the first token (p50), > 8.00 s (p95)" in text
    assert "100 turns (33.3 %) had none before the caller spoke again or went, after 8.00 s" in text
    assert "Nobody" not in text
    assert [(s.waited_secs, s.given_up) for s in figures.slowest] == [(8.0, True)] * 10
    page = page_of(figures, UTC)
    assert "<b>100</b><span>given up by the caller before the first token" in page
    assert "the same, counting those given up" in page
    written = io.StringIO()
    show(figures, Console(file=written, width=80, highlight=False), UTC)
    assert "> 8.00 s  one was silent for 8.00 s; the caller gave up" in written.getvalue()


def test_a_spell_counts_those_who_gave_up() -> None:
    """A provider that hangs for a while, and callers who do not wait for it."""
    cut = attempt(ttft=None, ended=6.0, outcome="interrupted")
    turns = [
        turn(cut, ttft=None, outcome="interrupted", at=BEGIN_AT + 10 * n)
        if 100 <= n < 130
        else turn(ttft=0.4, at=BEGIN_AT + 10 * n)
        for n in range(300)
    ]
    (spell,) = figures_of(Log(("x",), tuple(turns)), zone=UTC, replay=False).spells
    assert (spell.given_up.count, spell.given_up.p50_secs, spell.unanswered) == (30, 6.0, 0)
    assert "30 turns that callers gave up, after 6.00 s (p50)" in spell_told(spell, UTC)
