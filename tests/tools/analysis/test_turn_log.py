"""Turn logs read back while they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge import HedgePolicy
from pipecat_hedge.race import FillerReport, TurnReport
from pipecat_hedge.tools.analysis.turn_log import ReadingError, parse_turn, read_logs
from tests.tools.analysis.made_up import BEGIN_AT, LINES, attempt, cold, line, write


def test_what_is_written_is_read() -> None:
    """A line is the same turn again, with all that it may have."""
    report = TurnReport(
        turn=3,
        winner='b\u2028"',
        outcome="answered",
        ttft_secs=1.5,
        ttfs_secs=None,
        duration_secs=2.25,
        attempts=(
            attempt(ttft=None, outcome="superseded", stages=cold(0.1), usd=0.25),
            attempt('b\u2028"', 0.5, launched=1.0, reason="hedge", input_tokens=900),
        ),
        filler=FillerReport("slow", 0.8, "1.9 s left to wait"),
        hedge_reason="worth it",
        tier="premium",
    )
    assert parse_turn(json.loads(json.dumps(LINES.line(report, 1.0)))) == report


def test_a_log_of_before_the_renames_is_read(tmp_path: Path) -> None:
    """Fields that were renamed, that came later, that are gone, and of a later release."""
    old = line(attempt(stages=cold(0.1)))
    old.update(order_reason="one turned slow", prior_share=0.25, of_a_later_release=[])
    del old["routing_reason"], old["prior_weight"], old["tier"], old["ttfs_secs"]
    stages = old["attempts"][0]["stages"]
    stages["is_cold"] = stages.pop("new_connection")
    stages["server_secs"] = 0.1
    del old["attempts"][0]["sent_secs"], old["attempts"][0]["model"]
    rule = {"kind": "adaptive", "budget": 0.1, "worth_secs": 0.3, "deadline_secs": 0.8}
    rule["order"] = "given"
    old["policy_settings"] = {"rule": rule, "attempts": 3, "stall_secs": None}
    log = read_logs([write(tmp_path / "old.jsonl", [old])])
    [logged] = log.turns
    assert logged.policy == HedgePolicy.adaptive(
        0.1, 3, target_ttft_secs=0.8, min_saving_secs=0.3, order="given", stall_secs=None
    )
    report = logged.report
    assert (report.routing_reason, report.prior_weight) == ("one turned slow", 0.25)
    assert report.attempts[0].stages == cold(0.1)
    assert (report.attempts[0].sent_secs, report.tier) == (0.0, "standard")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attempts": 3}, "attempts: not a list"),
        ({"duration_secs": "a secret"}, "duration_secs: input should be a valid number"),
        ({"duration_secs": -1}, "duration_secs: negative, or too large"),
        ({"ttft_secs": float("nan")}, "ttft_secs: negative, or too large"),
        ({"outcome": "a secret"}, "outcome: input should be"),
        ({"attempts": [{"provider": "a secret"}]}, "attempts.0.launched_secs: field required"),
        ({"at": "a secret"}, "at: not a number"),
    ],
)
def test_a_bad_line_is_named_by_file_line_and_field(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """Never by what it holds, which may be what a caller said."""
    log = read_logs([write(tmp_path / "turns.jsonl", [line(), {**line(), **change}, line()])])
    assert (len(log.turns), log.skipped) == (2, 1)
    assert log.named_skips[0].startswith(f"turns.jsonl:2: {message}")
    assert "secret" not in log.named_skips[0]


def test_control_characters_are_stripped_from_names(tmp_path: Path) -> None:
    """A provider's name cannot steer a terminal."""
    log = read_logs([write(tmp_path / "turns.jsonl", [line(attempt("a\x1b[3m\u202eb"))])])
    assert log.turns[0].report.attempts[0].provider == "a[3mb"


def test_long_names_are_cut(tmp_path: Path) -> None:
    """A name of megabytes costs a report no time and no paper."""
    long = line(attempt("n" * 1_000_000), degraded_reason="\x07m" * 1_000_000)
    log = read_logs([write(tmp_path / "turns.jsonl", [long])])
    report = log.turns[0].report
    assert report.attempts[0].provider == report.winner == "n" * 199 + "…"
    assert report.degraded_reason == "m" * 199 + "…"


@pytest.mark.parametrize("depth", [900, 100_000])
def test_line_nested_too_deep_is_skipped(tmp_path: Path, depth: int) -> None:
    path = write(tmp_path / "turns.jsonl", [line(), line()])
    for inner in ('"\\u0007"', "1"):
        deep = json.dumps(line())[:-1] + f', "more": {"[" * depth}{inner}{"]" * depth}}}'
        path.write_text(f"{path.read_text()}{deep}\n")
    log = read_logs([path])
    assert (len(log.turns), log.skipped) == (2, 2)
    assert log.named_skips[0].startswith("turns.jsonl:3: n")


def test_turns_of_several_logs_are_in_the_order_of_time(tmp_path: Path) -> None:
    early, late = line(at=BEGIN_AT), line(at=BEGIN_AT + 60)
    paths = [write(tmp_path / f"{n}.jsonl", [each]) for n, each in enumerate((late, early))]
    log = read_logs(paths)
    assert [turn.began_at for turn in log.turns] == pytest.approx([BEGIN_AT, BEGIN_AT + 60])
    assert log.files == ("0.jsonl", "1.jsonl")


def test_a_file_without_a_turn_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "no.jsonl").write_text("17\n")
    with pytest.raises(ReadingError, match=r"no turn in .*1 line skipped; no.jsonl:1: not an obj"):
        read_logs([tmp_path / "no.jsonl"])
