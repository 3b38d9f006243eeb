"""Turn logs are read as they are, whoever wrote them and however they end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge.cli import main
from pipecat_hedge.tools.analysis.report import read_logs
from pipecat_hedge.tools.analysis.report.turns import connecting_secs, was_sent
from pipecat_hedge.tools.analysis.whatif.reading import ReadingError, read_latencies, recorded_from
from tests.tools.analysis.report.made_up import BEGIN_AT, attempt, cold, line

SAID = "my card is 4929 1234"


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text(
        "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines)
    )
    return path


def test_a_turn_is_what_its_line_says(tmp_path: Path) -> None:
    """Every figure, its time of beginning, and nothing that it lacks."""
    log = read_logs(
        [write(tmp_path / "turns.jsonl", line(attempt(stages=cold(0.3)), tier="premium"))]
    )
    turn = log.turns[0]
    assert (turn.tier, turn.policy, turn.lacks) == ("premium", "adaptive(10 %)", frozenset())
    assert turn.began_at == pytest.approx(BEGIN_AT)
    assert connecting_secs(turn.report.attempts[0]) == 0.3
    assert log.files == ("turns.jsonl",)


def test_a_broken_last_line_is_counted_and_named(tmp_path: Path) -> None:
    """The process was killed in mid-line; the turns before it count."""
    half = json.dumps(line())[:70]
    log = read_logs([write(tmp_path / "turns.jsonl", line(), line(), half)])
    assert (len(log.turns), log.skipped) == (2, 1)
    assert log.named_skips[0].startswith("turns.jsonl:3: ")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"ttft_secs": SAID}, "ttft_secs is no number"),
        ({"ttft_secs": -1}, "ttft_secs is negative, or too large"),
        ({"ttft_secs": 10**400}, "ttft_secs is negative, or too large"),
        ({"ttft_secs": True}, "ttft_secs is no number"),
        ({"at": 1.8e12}, "at is negative, or too large"),
        ({"duration_secs": None}, "no duration_secs in it"),
        ({"outcome": SAID}, "outcome is none that is known"),
        ({"outcome": [SAID]}, "outcome is none that is known"),
        ({"attempts": [{"provider": 3}]}, "an attempt without a provider"),
        ({"attempts": SAID}, "no turn: it has no attempts"),
        (SAID, "no turn"),
        (4929_1234_0000, "no turn"),
        ([SAID], "no turn"),
    ],
)
def test_a_line_that_cannot_be_meant_is_skipped(tmp_path: Path, broken: Any, why: str) -> None:
    """It is named by file, line and field, never by what stood there; the others are read."""
    bad = {**line(), **broken} if isinstance(broken, dict) else broken
    path = write(tmp_path / "turns.jsonl", json.dumps(bad), line(), SAID, "[" * 100_000)
    log = read_logs([path])
    assert (len(log.turns), log.skipped) == (1, 3)
    assert log.named_skips == (
        f"turns.jsonl:1: {why}",
        "turns.jsonl:3: not JSON",
        "turns.jsonl:4: not JSON",
    )


def test_what_somebody_said_is_on_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Be it in a line that is none, or in place of a figure or a word; nor in the terminal."""
    lines = [SAID, json.dumps(SAID), {**line(), "outcome": SAID}, {**line(), "ttft_secs": SAID}]
    path = write(tmp_path / "turns.jsonl", line(), line(), *lines)
    page = tmp_path / "page.html"
    assert main(["report", str(path), "--out", str(page), "--no-replay"]) == 0
    told = capsys.readouterr()
    assert "4 lines skipped" in told.out
    for text in (page.read_text(), told.out, told.err):
        assert "4929" not in text
        assert "my card" not in text


def test_what_an_older_log_lacks_is_unknown(tmp_path: Path) -> None:
    """Not the default of a field that came later."""
    old = {k: v for k, v in line().items() if k not in ("tier", "ttfs_secs", "at", "policy")}
    del old["attempts"][0]["sent_secs"], old["attempts"][0]["stages"]
    turn = read_logs([write(tmp_path / "old.jsonl", old)]).turns[0]
    assert turn.lacks == {"tier", "ttfs_secs", "sent_secs"}
    assert (turn.tier, turn.at, turn.policy) == (None, None, None)
    assert was_sent(turn.report.attempts[0], turn.lacks)


def test_a_newer_log_is_read_too(tmp_path: Path) -> None:
    """Fields that are not known here are passed over."""
    newer = {**line(), "mood": "fine", "tier": "platinum"}
    newer["attempts"][0]["colour"] = "blue"
    assert read_logs([write(tmp_path / "new.jsonl", newer)]).turns[0].tier == "platinum"


def test_several_logs_are_one_stretch_of_turns(tmp_path: Path) -> None:
    """In the order of time, whatever the order of the files."""
    late = write(tmp_path / "late.jsonl", line(at=BEGIN_AT + 60))
    early = write(tmp_path / "early.jsonl", line(at=BEGIN_AT), line(at=BEGIN_AT + 90))
    log = read_logs([late, early])
    assert [turn.began_at for turn in log.turns] == pytest.approx(
        [BEGIN_AT, BEGIN_AT + 60, BEGIN_AT + 90]
    )


def test_what_was_heard_is_read_beside_the_turns(tmp_path: Path) -> None:
    """The log of a TurnLatencyObserver; a turn that answers nobody is left out."""
    heard = {"turn": 1, "at": BEGIN_AT, "anchor": "user_silence", "first_answer_secs": 1.2}
    silent = {**heard, "first_answer_secs": None, "interrupted": True, "context_secs": 0.8}
    greeting = {**heard, "anchor": "context"}
    raced = {**heard, "ended_secs": 9.0, "reports": [line(tier="premium", degraded_reason="no")]}
    odd = {**heard, "reports": ["said"]}
    path = write(tmp_path / "latency.jsonl", heard, silent, greeting, raced, odd)
    log = read_logs([write(tmp_path / "turns.jsonl", line()), path])
    assert [turn.voice_to_voice_secs for turn in log.heard] == [1.2, None, 1.2]
    assert [turn.latency.ended_secs for turn in log.heard] == [1.2, 0.8, 9.0]
    assert [turn.tier for turn in log.heard] == [None, None, "premium"]
    assert log.heard[2].latency.reports[0].degraded_reason is not None
    assert log.named_skips == ("latency.jsonl:5: reports are no turns",)


@pytest.mark.parametrize("text", ["", "nothing\n", "ttft\n0.5\n"])
def test_a_file_without_a_turn_is_refused(tmp_path: Path, text: str) -> None:
    """With the remedy."""
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(ReadingError, match="turn_log="):
        read_logs([path])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """With its name."""
    with pytest.raises(ReadingError, match=r"absent\.jsonl cannot be read"):
        read_logs([tmp_path / "absent.jsonl"])


def test_nothing_that_was_said_is_taken_up(tmp_path: Path) -> None:
    """Whatever text a line holds beside names: reasons, messages, somebody's own fields."""
    secret = "sk-secret said Alice"
    told = {**line(), "degraded_reason": secret, "hedge_reason": secret, "prompt": secret}
    told["attempts"][0]["launch_detail"] = secret
    log = read_logs([write(tmp_path / "turns.jsonl", told)])
    assert secret not in repr(log)


def test_turns_that_were_read_say_to_whatif_what_their_file_says(tmp_path: Path) -> None:
    """Latency by latency: one reading for both tools."""
    lost = attempt(ttft=None, ended=0.9, outcome="superseded", output_tokens=3, usd=0.1)
    failed = attempt(ttft=None, ended=0.2, outcome="failed", error_category="server")
    shed = attempt("two", None, ended=0.0, outcome="failed", error_category="shed", sent_secs=None)
    path = write(
        tmp_path / "turns.jsonl",
        line(lost, attempt("two", 0.4, launched=0.5, reason="hedge")),
        line(failed, attempt("two", 0.4, launched=0.2, reason="failure"), shed),
        line(attempt(input_tokens=900)),
    )
    one = read_latencies([path])
    other = recorded_from(turn.report for turn in read_logs([path]).turns)
    for name, measured in one.providers.items():
        for field in dataclasses.fields(measured):
            mine = getattr(other.providers[name], field.name)
            assert list(getattr(measured, field.name)) == list(mine)
    assert (one.turns, one.prompt_tokens, one.lost_tokens, one.lost_usd) == (
        other.turns,
        other.prompt_tokens,
        other.lost_tokens,
        other.lost_usd,
    )
