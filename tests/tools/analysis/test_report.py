"""What a report says of turns, on the command line, as JSON and on the page."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import async_playwright

from pipecat_hedge import Slo
from pipecat_hedge.race import AttemptReport, SpeechReport, TranscriptReport
from pipecat_hedge.tools.analysis import Report, read_logs, report_of
from pipecat_hedge.tools.analysis.incidents import bad_stretches
from pipecat_hedge.tools.analysis.report_command import explained, headline, page_of, summary_of
from pipecat_hedge.tools.analysis.slow_turns import slowest_turns
from pipecat_hedge.tools.analysis.turn_log import Log, LoggedTurn
from tests.live.browser import NO_BROWSER, chromium
from tests.tools.analysis.made_up import BEGIN_AT, attempt, cold, line, turn, two_hours, write
from tests.tools.conftest import Ran
from tests.tools.markup import Markup

EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(2)>&amp;'
LONG = "a-provider-whose-name-is-as-long-as-a-name-may-be-and-has-no-blank-in-it-anywhere"


def log_of(*turns: LoggedTurn) -> Log:
    return Log(("turns.jsonl",), list(turns))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Log:
    folder = tmp_path_factory.mktemp("logs")
    heard = {"anchor": "user_silence", "at": BEGIN_AT, "first_answer_secs": 1.2}
    return read_logs([write(folder / "turns.jsonl", [*two_hours(), heard])])


@pytest.fixture(scope="module")
def report(log: Log) -> Report:
    return report_of(log, slo=Slo(), zone=UTC, against=log)


# ---- the figures


def test_waits_by_tier_and_by_hour(report: Report) -> None:
    assert report.all_turns.turns == sum(group.turns for group in report.periods) == 300
    tiers = {group.name: group.turns for group in report.tiers}
    assert tiers == {"premium": 100, "standard": 100, "economy": 100}
    assert report.periods[0].name == "13:00"
    slow = [group.ttft.p95.secs for group in report.periods if group.ttft.p95 is not None]
    assert max(slow) > 1.5 > min(slow)
    assert report.voice_to_voice.count == 1


def test_an_incident_has_its_time_and_its_cost(report: Report) -> None:
    """One provider is six times as slow from 13:40 to 14:00."""
    [incident] = [each for each in report.incidents if each.provider == "one"]
    assert incident.kind == "slow"
    assert incident.begin_at == pytest.approx(BEGIN_AT + 2400, abs=120)
    assert incident.end_at == pytest.approx(BEGIN_AT + 3600, abs=120)
    assert incident.p50 is not None
    assert incident.usual_p50 is not None
    assert incident.p50.secs > 1.5 > incident.usual_p50.secs
    assert (incident.extra_wait_secs or 0) > 20
    assert incident.extra_requests > 10
    assert any("one was slow 2026-03-02 13:4" in sentence for sentence in headline(report, UTC))


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        ([False] * 200, []),
        ([n % 20 == 0 for n in range(400)], []),
        ([100 <= n < 120 for n in range(300)], [(100, 120)]),
        ([100 <= n < 120 or 600 <= n < 630 for n in range(1000)], [(100, 120), (600, 630)]),
        ([True] * 100, []),
    ],
)
def test_a_stretch_must_be_more_than_chance(bad: list[bool], found: list[tuple[int, int]]) -> None:
    assert bad_stretches(bad) == found


def test_a_p99_needs_a_hundred_waits() -> None:
    """Below, it would be the longest wait by another name."""
    few, enough = (report_of(log_of(*[turn()] * n), replay=False) for n in (99, 100))
    assert few.all_turns.ttft.p99 is None
    assert re.search(r"all callers +99 +500 ms +500 ms +– +500 ms\n", summary_of(few, width=80))
    assert enough.all_turns.ttft.p99 == enough.all_turns.ttft.longest


def test_interrupted_turns_count_as_longer_waits() -> None:
    """Of 300 turns 100 are given up after 8 s in silence: the p95 is not that of the others."""
    gone = attempt(ttft=None, ended=8.0, outcome="interrupted")
    turns = [turn()] * 200 + [turn(gone, ttft=None, outcome="interrupted")] * 100
    found = report_of(log_of(*turns), replay=False)
    p50, p95 = found.all_turns.ttft.p50, found.all_turns.ttft.p95
    assert p50 is not None
    assert p95 is not None
    assert (p50.secs, p95.secs, p95.at_least) == (0.5, 8.0, True)
    assert "callers gave up on 100" in [*headline(found)][1]


def test_recognisers_have_a_table_if_they_are_reported(report: Report) -> None:
    calm = TranscriptReport("deepgram", 0.25, 1, None)
    made = turn(transcripts=(calm, replace(calm, transcript_secs=3.0, is_rescued=True)))
    (found,) = report_of(log_of(made), zone=UTC).recognisers
    assert (found.recogniser, found.utterances, found.rescued) == ("deepgram", 2, 1)
    assert found.transcript.longest is not None
    assert found.transcript.longest.secs == 3
    summary = summary_of(report_of(log_of(made), zone=UTC), UTC, 80)
    assert "Waits for transcripts" in summary
    assert report.recognisers == ()


def test_voices_have_a_table_if_they_are_reported(report: Report) -> None:
    calm = SpeechReport("cartesia", 3, 0, 0, 0.2, 0.1, 90, 0)
    rescued = replace(calm, rescued=2, left_out=1, first_sound_secs=0.9, extra_characters=45)
    silent = SpeechReport(None, 1, 0, 1, None, 0.0, 10, 10)
    log = log_of(turn(), turn(speech=(calm,)), turn(speech=(rescued, silent)))
    found, none = report_of(log, zone=UTC).voices
    assert (found.voice, found.sentences, found.rescued, found.left_out) == ("cartesia", 6, 2, 1)
    assert found.first_sound.longest is not None
    assert found.first_sound.longest.secs == 0.9
    assert (found.extra_characters, found.silent_secs) == (0.25, 0.1)
    assert (none.voice, none.left_out, none.first_sound.longest) == (None, 1, None)
    summary = summary_of(report_of(log, zone=UTC), UTC, 80)
    assert "Waits for the first sound" in summary
    assert "Waits for the first sound" in page_of(report_of(log, zone=UTC), UTC)
    assert report.voices == ()


def test_objectives_are_reported_only_with_an_slo(report: Report, log: Log) -> None:
    assert report_of(log, replay=False).objectives == ()
    made = {(p.objective, p.tier): p for p in report.objectives}
    assert len(made) == 7
    one = made["ttft", "premium"]
    assert one.turns == 100
    assert 0 < one.met < one.turns
    assert any(each.startswith("SLO missed: ") for each in headline(report))


def test_hedging_is_judged_by_one_figure(report: Report) -> None:
    hedging = report.hedging
    assert hedging.hedges == hedging.won > 20
    assert hedging.replacements == 8
    assert sum("Hedging" in sentence or "hedges" in sentence for sentence in headline(report)) == 1
    assert report.whatif is not None
    assert any(each.startswith("Recommended policy: ") for each in headline(report))


def test_two_logs_are_compared(report: Report, log: Log) -> None:
    """A log does not differ from itself; one that is half a second slower does."""
    assert report.other_files == ("turns.jsonl",)
    same = {each.name: each.verdict for each in report.comparison}
    assert same.pop("cost of an answered turn") == "unknown"  # not every request has a price
    assert {*same.values()} <= {"no difference shown", "too few turns"}
    slower = [
        replace(each, report=replace(each.report, ttft_secs=(each.report.ttft_secs or 0) + 0.5))
        for each in log.turns
    ]
    found = report_of(log_of(*slower), against=log, replay=False).comparison
    verdicts = {each.name: each.verdict for each in found}
    assert verdicts["first token, p50"] == "differs"
    assert verdicts["first token, p99"] == "too few turns"
    assert verdicts["requests per turn"] == "no difference shown"


# ---- the slowest turns

FAILED = attempt(ttft=None, ended=4.1, outcome="failed", error_category="rate_limit")
REJECTED = attempt(ttft=None, outcome="failed", error_category="empty", sent_secs=None)
GONE = attempt(ttft=None, ended=9.0, outcome="interrupted")
STALLED = cold(0, new_connection=False, headers=0.3)


def lost(secs: float, **fields: Any) -> AttemptReport:
    return attempt(ttft=None, ended=secs, outcome="superseded", **fields)


def second(at: float, ttft: float, reason: str = "hedge") -> AttemptReport:
    return attempt("two", ttft, launched=at, reason=reason)


@pytest.mark.parametrize(
    ("made", "cause", "explanation"),
    [
        (
            turn(attempt(ttft=4.0), ttft=4.0),
            "slow",
            "one took 4.00 s to its first token, 8.0 times its usual 500 ms",
        ),
        (
            turn(lost(1.02), second(0.74, 0.28), ttft=1.02),
            "silence",
            "one was silent for 1.02 s; hedge to two launched at 740 ms won at 1.02 s",
        ),
        (
            turn(lost(4.4, stages=STALLED), second(4.2, 0.2), ttft=4.4),
            "silence",
            "one stalled 4.10 s after headers; hedge to two launched at 4.20 s won at 4.40 s",
        ),
        (
            turn(FAILED, second(4.1, 0.3, "failure"), ttft=4.4),
            "failure",
            "one failed at 4.10 s (rate limit); replacement two launched at 4.10 s won at 4.40 s",
        ),
        (
            turn(attempt(ttft=1.5, stages=cold(0.9)), ttft=1.5),
            "connection",
            "one took 1.50 s to its first token, 3.0 times its usual 500 ms, "
            "900 ms of it to open a connection",
        ),
        (
            turn(FAILED, ttft=None, outcome="failed", duration_secs=4.1),
            "failure",
            "one failed at 4.10 s (rate limit); the caller had no answer",
        ),
        (
            turn(GONE, ttft=None, outcome="interrupted"),
            "silence",
            "one was silent for 9.00 s; the caller gave up",
        ),
        (
            turn(REJECTED, ttft=None, outcome="failed", degraded_reason="x"),
            "no request",
            "one: no request was sent; the caller heard the fallback text",
        ),
    ],
)
def test_the_cause_of_a_slow_turn(made: LoggedTurn, cause: str, explanation: str) -> None:
    """Whatever took most of the wait, with its provider and its times."""
    (slow,) = slowest_turns([made], {"one": 0.5, "two": 0.3})
    assert (slow.cause, explained(slow)) == (cause, explanation)


def test_the_slowest_turns_come_first() -> None:
    turns = [turn(ttft=1.0), turn(FAILED, ttft=None, outcome="failed"), turn(ttft=5.0)]
    assert [slow.place for slow in slowest_turns(turns, {}, most=2)] == [3, 2]


# ---- the command


def test_the_summary_fits_a_terminal(tmp_path: Path, ran: Callable[..., Ran]) -> None:
    """At 80 columns, with what could not be read and the page's name."""
    path, page = write(tmp_path / "turns.jsonl", two_hours(LONG)), tmp_path / "page.html"
    path.write_text(path.read_text() + '{"at": 17')
    options = ["--slo-ttft", "0.8", "--tz", "UTC", "--out", page, "--no-replay"]
    status, shown, _ = ran("report", path, "--against", path, *options)
    assert status == 0
    assert shown.startswith("- 300 turns: callers waited ")
    rows = [row for row in shown.splitlines() if LONG not in row and str(page) not in row]
    assert max(map(len, rows)) <= 80
    assert "…" not in shown
    assert "1 line skipped: turns.jsonl:301: not JSON" in shown
    assert page.read_text().lstrip().startswith("<!doctype html>")


def test_json_for_programs(tmp_path: Path, ran: Callable[..., Ran]) -> None:
    """Nothing else on the standard output; a small log has one caveat."""
    path = write(tmp_path / "turns.jsonl", [line(ttft=0.4 + n / 100) for n in range(60)])
    options = ["--slo-ttft", "0.605", "--slo-share", "0.9", "--json", "--no-replay"]
    found = json.loads(ran("report", path, *options).out)
    assert found["version"] == 2
    (objective,) = found["objectives"]
    assert (objective["met"], objective["turns"], objective["target"]) == (21, 60, 0.9)
    assert found["caveat"] == "60 turns are too few for a p99: the percentiles are rough."
    assert found["whatif"] is None


def test_no_prompt_or_answer_comes_out(tmp_path: Path, ran: Callable[..., Ran]) -> None:
    """Whatever texts stand beside the figures."""
    secret = "the caller's card number"
    filler = {"cause": "slow", "spoken_secs": None, "reason": secret}
    record = line(degraded_reason=secret, hedge_reason=secret, filler=filler)
    record.update(prompt=secret, answer=secret)
    record["attempts"][0].update(launch_detail=secret, text=secret)
    path, page = write(tmp_path / "turns.jsonl", [record] * 30), tmp_path / "page.html"
    shown = [ran("report", path, "--no-replay", *each) for each in (["--out", page], ["--json"])]
    assert [each.status for each in shown] == [0, 0]
    assert secret not in page.read_text() + shown[0].out + shown[1].out


# ---- the page


def test_the_page_needs_nothing_else(report: Report) -> None:
    """No script, no other file, no address; every part is there."""
    page = page_of(report, UTC)
    assert Markup(page).refers == []
    assert not re.search(r"https?:|//[a-z]|url\(|@import", page)
    assert re.findall(r'<h2 id="([a-z]+)"', page) == [
        *("compared", "callers", "objectives", "incidents", "hedging", "whatif", "slowest"),
    ]
    assert page.count('<div class="turn">') == 10
    assert page.count('<td class="bars"') > 1


def test_a_providers_name_is_only_a_name(tmp_path: Path) -> None:
    """Markup in the name of a provider or a file stays text."""
    log = read_logs([write(tmp_path / "turns.jsonl", two_hours(EVIL))])
    log.files, log.skipped, log.named_skips = (EVIL,), 1, [EVIL]
    made = page_of(report_of(log, against=log, replay=False), UTC)
    assert Markup(made).refers == []
    assert "&lt;script&gt;" in made


@pytest.mark.parametrize(
    "made",
    [turn(at=None), turn(REJECTED, ttft=None, outcome="failed", degraded_reason="full")],
    ids=["no time of day", "no request"],
)
def test_a_log_of_one_turn_makes_a_page(made: LoggedTurn) -> None:
    report = report_of(log_of(made), zone=UTC)
    Markup(page_of(report, UTC))
    assert "1 turn" in summary_of(report, UTC)


_BEYOND = """
() => {
  const wrong = [];
  if (document.documentElement.scrollWidth > innerWidth)
    wrong.push(`the page is ${document.documentElement.scrollWidth} wide`);
  for (const cell of document.querySelectorAll(".wide th, .wide td")) {
    const right = cell.closest(".wide").getBoundingClientRect().right + 1;
    if (cell.getBoundingClientRect().right > right) wrong.push(cell.textContent);
  }
  const light = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255).map(
      c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  for (const each of document.querySelectorAll("p, td, th, span, b, h1, h2, h3, li, summary")) {
    const ink = light(getComputedStyle(each).color);
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    if (ratio < 4.5) wrong.push(`contrast ${ratio}: ${each.textContent.slice(0, 30)}`);
  }
  return wrong;
}
"""


@pytest.mark.live
async def test_the_page_fits_a_laptop_and_a_telephone(report: Report, tmp_path: Path) -> None:
    """Light and dark, with names as long as can be; on paper it is light."""
    if chromium() is None:
        pytest.fail(NO_BROWSER)
    long = report_of(read_logs([write(tmp_path / "turns.jsonl", two_hours(LONG))]), replay=False)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments)
        tab = await browser.new_page()
        for made in (report, long):
            path = tmp_path / "page.html"
            path.write_text(page_of(made, UTC))
            await tab.goto(path.as_uri())
            for width in (1280, 390):
                await tab.set_viewport_size({"width": width, "height": 844})
                for scheme in ("light", "dark"):
                    await tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                    assert await tab.evaluate(_BEYOND) == [], (width, scheme)
        await tab.emulate_media(media="print", color_scheme="dark")
        paper = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == "rgb(255, 255, 255)"
        await browser.close()
