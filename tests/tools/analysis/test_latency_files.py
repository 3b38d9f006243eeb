"""What is read of files, and what is said of lines that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipecat_hedge.race import AttemptReport
from pipecat_hedge.tools.analysis.latency_files import Recorded, read_latencies
from pipecat_hedge.tools.analysis.turn_log import ReadingError
from tests.tools.analysis.made_up import attempt, line


def read(tmp_path: Path, text: str, name: str = "file.csv", **options: Any) -> Recorded:
    (tmp_path / name).write_text(text)
    return read_latencies([tmp_path / name], **options)


def secs(recorded: Recorded) -> dict[str, list[float]]:
    return {name: measured.secs.round(6).tolist() for name, measured in recorded.providers.items()}


def turn(*attempts: AttemptReport) -> str:
    return json.dumps(line(*attempts))


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("0.5\n0.6\n", {}, {"latency": [0.5, 0.6]}),
        ("\ufeff0.5\r\n\r\n0.6", {}, {"latency": [0.5, 0.6]}),
        ("500\n600\n", {"unit": "ms"}, {"latency": [0.5, 0.6]}),
        ("latency\n0.5\n0.6\n", {}, {"latency": [0.5, 0.6]}),
        ("hosted_ms\n500\n", {}, {"hosted": [0.5]}),
        ("hosted_secs\n500\n", {"unit": "ms"}, {"hosted": [500]}),
        ("id,ttft_ms,total_ms\n7,500,900\n", {}, {"ttft": [0.5]}),
        ("id, ms \n7, 500 \n", {}, {"latency": [0.5]}),
        ("provider,secs\na,0.5\nb,0.1\na,0.6\n", {}, {"a": [0.5, 0.6], "b": [0.1]}),
        ('"id",a_ms,b\n7,500,\n8,,0.2\n', {"columns": ["a_ms", "b"]}, {"a": [0.5], "b": [0.2]}),
        ('{"ttft_ms": 500}\n{"ttft_ms": 600, "id": 8}\n', {}, {"ttft": [0.5, 0.6]}),
        ('{"provider": "a", "secs": 0.5, "id": 7}\n', {}, {"a": [0.5]}),
        ('{"id": 7, "wait": 500}\n', {"columns": ["wait"], "unit": "ms"}, {"wait": [0.5]}),
    ],
)
def test_a_column_and_its_unit_are_named_or_known(
    tmp_path: Path, text: str, options: dict[str, Any], expected: dict[str, list[float]]
) -> None:
    """By its own name, else by the user; a plain figure is in seconds."""
    recorded = read(tmp_path, text, **options)
    assert (secs(recorded), recorded.skipped) == (expected, 0)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("id,wait\n7,500\n", {}, "csv:2: several columns: name .* with --column; found: id, wait"),
        ("500,0.1\n", {}, "give a turn log, or a file with a column"),
        ("500,0.1\n600,0.2\n", {}, "with --column; found: 500, 0.1"),
        ('{"id": 7, "wait": 500}\n', {}, "with --column; found: id, wait"),
        ("id,wait\n7,5\n", {"columns": ["ttft"]}, "no column ttft: name .*; found: id, wait"),
        ("x\n490\n480\n", {}, "half of the figures of x are over 485: give --unit ms"),
    ],
)
def test_a_column_or_unit_is_never_guessed(
    tmp_path: Path, text: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ReadingError, match=message):
        read(tmp_path, text, **options)


def test_a_turn_log(tmp_path: Path) -> None:
    """Each attempt is an observation: an answer, longer than so much, or a failure."""
    lost = {"outcome": "superseded", "output_tokens": 7, "usd": 0.002}
    lines = [
        turn(attempt("a", 0.5, input_tokens=4000)),
        turn(attempt("a", None, ended=1.1, **lost), attempt("b", 0.4, launched=0.7)),
        turn(
            attempt("a", None, ended=0.1, outcome="failed", error_category="rate_limit"),
            attempt("b", 0.3, launched=0.1),
        ),
        turn(attempt("a", None, ended=30, outcome="failed", error_category="timeout")),
    ]
    recorded = read(tmp_path, "\n".join(lines), "turns.jsonl")
    a, b = recorded.providers["a"], recorded.providers["b"]
    assert list(recorded.providers) == ["a", "b"]
    assert a.secs.tolist() == pytest.approx([0.5, 1.1, 0.1, 30])
    assert a.censored.tolist() == [False, True, False, True]
    assert a.failed.tolist() == [False, False, True, False]
    assert (a.row.tolist(), b.row.tolist()) == ([0, 1, 2, 3], [1, 2])
    assert (recorded.prompt_tokens, recorded.lost_tokens, recorded.lost_usd) == (4000, 7, 0.002)
    assert recorded.turns == 4


def test_prices_follow_from_what_requests_cost(tmp_path: Path) -> None:
    """Exactly where prompts differ in size; where all are alike they come to the same dollars."""
    alike: dict[str, Any] = {"input_tokens": 1000, "output_tokens": 10}
    lines = [
        turn(
            attempt("a", 0.5, input_tokens=i, output_tokens=o, usd=(2 * i + 8 * o) / 1e6),
            attempt("b", 0.4, usd=0.004, **alike),
            attempt("c", 0.4, **alike),
        )
        for i, o in [(900, 20), (2400, 31), (1700, 7)]
    ]
    prices = read(tmp_path, "\n".join(lines), "turns.jsonl").usd_per_mtok
    assert prices["a"] == pytest.approx((2.0, 8.0))
    assert prices["b"][0] * 1000 + prices["b"][1] * 10 == pytest.approx(0.004 * 1e6)
    assert set(prices) == {"a", "b"}


def test_skipped_are_counted_and_named(tmp_path: Path) -> None:
    """The first five by file, line and fault, without their content; the others are used."""
    recorded = read(tmp_path, "\n0.5\nnever\n-1\nnan\n0.5,0.6\n\ninf\n0.7\nsoon\n")
    assert secs(recorded) == {"latency": [0.5, 0.7]}
    assert recorded.skipped == 6
    assert recorded.named_skips == tuple(
        f"{tmp_path / 'file.csv'}:{fault}"
        for fault in (
            "3: latency: not a number",
            "4: latency: negative, or too large",
            "5: latency: negative, or too large",
            "6: more cells than columns",
            "8: latency: negative, or too large",
        )
    )


def test_foreign_lines_of_a_log_are_skipped(tmp_path: Path) -> None:
    """A line of `TurnLatencyObserver` is none of them."""
    lines = [turn(attempt("a", 0.5)), '{"anchor": "user_silence"}', "[]", "{", "{}", '{"a": null}']
    recorded = read(tmp_path, "\n".join(lines), "turns.jsonl")
    assert (secs(recorded), recorded.skipped) == ({"a": [0.5]}, 4)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", r"there is no latency in .*: give a turn log, or a file"),
        ("x.csv", b"nothing\nhere\n", r"there is no latency in .*csv:2: nothing: not a number"),
        ("x.wav", bytes(range(200, 256)) * 10, "is not text: give a turn log, JSONL or CSV"),
        ("none.csv", None, r"none\.csv cannot be read: No such file"),
        (".", None, "cannot be read: Is a directory"),
    ],
)
def test_a_file_without_latencies_is_an_error(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ReadingError, match=message):
        read_latencies([tmp_path / name])


def test_several_files_are_one_stretch(tmp_path: Path) -> None:
    """In the order given, each with its own unit and kind."""
    (tmp_path / "one.csv").write_text("0.5\n")
    (tmp_path / "two.jsonl").write_text('{"secs": 0.6}\n')
    (tmp_path / "log.jsonl").write_text(turn(attempt("x", 0.5)))
    (tmp_path / "y.csv").write_text("y_ms\n550\n")
    paths = [tmp_path / name for name in ("one.csv", "two.jsonl", "log.jsonl", "y.csv")]
    recorded = read_latencies(paths)
    assert secs(recorded) == {"latency": [0.5, 0.6], "x": [0.5], "y": [0.55]}
    assert np.array_equal(recorded.providers["latency"].row, [0, 1])


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("at,a_ms\n30,700\n10,500\n20.5,600\n", {}),
        (
            "a_ms,asked_ms\n700,30000\n500,10000\n600,20500\n",
            {"columns": ["a_ms"], "at": "asked_ms"},
        ),
        ("a_ms,asked\n700,30000\n500,10000\n600,20500\n", {"at": "asked", "at_unit": "ms"}),
        (
            "at,a_ms\n1970-01-01T00:00:30Z,700\n1970-01-01T00:00:10,500\n"
            "1970-01-01T01:00:20.5+01:00,600\n",
            {},
        ),
        ('{"at": 30, "a_ms": 700}\n{"at": 10, "a_ms": 500}\n{"at": 20.5, "a_ms": 600}\n', {}),
    ],
    ids=["at", "named unit", "given unit", "dates", "jsonl"],
)
def test_turns_are_in_the_order_of_their_times(
    tmp_path: Path, text: str, options: dict[str, Any]
) -> None:
    recorded = read(tmp_path, text, **options)
    assert secs(recorded) == {"a": [0.5, 0.6, 0.7]}
    assert recorded.asked_at is not None
    assert recorded.asked_at.tolist() == [10, 20.5, 30]
    assert recorded.providers["a"].row.tolist() == [0, 1, 2]


def test_logs_are_in_the_order_in_which_turns_began(tmp_path: Path) -> None:
    """A line is written when its turn has ended."""
    turns = [(100.0, 0.9), (50.0, 0.7), (10.0, 0.5)]
    lines = [json.dumps(line(attempt("a", ttft), at=at)) for at, ttft in turns]
    recorded = read(tmp_path, "\n".join(lines), "turns.jsonl")
    assert secs(recorded) == {"a": [0.5, 0.7, 0.9]}
    assert recorded.asked_at == pytest.approx([10, 50, 100])


def test_a_turn_without_a_time_leaves_the_order_of_the_file(tmp_path: Path) -> None:
    recorded = read(tmp_path, "at,a_ms\n30,700\n,500\n20,600\n")
    assert (recorded.asked_at, secs(recorded)) == (None, {"a": [0.7, 0.5, 0.6]})


@pytest.mark.parametrize(
    ("text", "options", "fault"),
    [
        ("at,a_ms\nMonday,500\n1,600\n", {}, "at: neither a figure nor a date of ISO 8601"),
        ("t,a_ms\n,500\n1,600\n", {"at": "t"}, "no t: name the column of times with --at"),
        ("t,a_ms\n1.7e12,500\n1,600\n", {"at": "t"}, "t: too large for seconds: give --at-unit ms"),
        ("at,a_ms\n-1,500\n1,600\n", {}, "at: negative, or too large"),
    ],
)
def test_a_time_that_cannot_be_read_is_named(
    tmp_path: Path, text: str, options: dict[str, Any], fault: str
) -> None:
    recorded = read(tmp_path, text, **options)
    assert secs(recorded) == {"a": [0.6]}
    assert recorded.named_skips == (f"{tmp_path / 'file.csv'}:2: {fault}",)
