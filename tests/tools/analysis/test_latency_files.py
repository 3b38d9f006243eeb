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
    ("text", "expected"),
    [
        ("0.5\n0.6\n", {"latency": [0.5, 0.6]}),
        ("\ufeff0.5\r\n\r\n0.6", {"latency": [0.5, 0.6]}),
        ("latency\n0.5\n0.6\n", {"latency": [0.5, 0.6]}),
        ("ttft_ms\n500\n600\n", {"ttft": [0.5, 0.6]}),
        ("ttft_secs\n500\n600\n", {"ttft": [500, 600]}),
        ("500\n600\n", {"latency": [0.5, 0.6]}),
        ("claude,local\n0.5,0.1\n0.6,0.2\n", {"claude": [0.5, 0.6], "local": [0.1, 0.2]}),
        ('"claude",local\n0.5,\n,0.2\n', {"claude": [0.5], "local": [0.2]}),
        ("0.5,0.1\n0.6,0.2\n", {"latency 1": [0.5, 0.6], "latency 2": [0.1, 0.2]}),
        ("timestamp,ttft\n1700000000,0.5\n", {"ttft": [0.5]}),
        ("model,ttft\ngpt,0.5\n", {"ttft": [0.5]}),
        ("claude;local\n0,5;0,1\n0,6;0,2\n", {"claude": [0.5, 0.6], "local": [0.1, 0.2]}),
        ("claude\tlocal\n0.5\t0.1\n", {"claude": [0.5], "local": [0.1]}),
        ("claude|local\n0.5|0.1\n", {"claude": [0.5], "local": [0.1]}),
        ("487 ms\n1.2 s\n", {"latency": [0.487, 1.2]}),
        ("ttft_ms,other\n487ms,1\n", {"ttft": [0.487]}),
        ("ttft_us\n487000\n", {"ttft": [0.487]}),
        ("ttft [ms]\n487\n", {"ttft": [0.487]}),
        ("ttft (s)\n487\n", {"ttft": [487.0]}),
        ("ttft ns\n487000000\n", {"ttft": [0.487]}),
        ("a_ms,b_secs\n500,0.5\n", {"a": [0.5], "b": [0.5]}),
        ("provider,ttft_ms\ngpt_s,500\n", {"gpt_s": [0.5]}),
        ("outcome,ttft\nok,0.5\ntimeout,0.6\n", {"ttft": [0.5, 0.6]}),
    ],
)
def test_csv_is_one_a_line_or_a_column_a_provider(
    tmp_path: Path, text: str, expected: dict[str, list[float]]
) -> None:
    """With a header or without, in any unit."""
    recorded = read(tmp_path, text)
    assert (secs(recorded), recorded.skipped) == (expected, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5\n0.6\n", {"latency": [0.5, 0.6]}),
        ('{"ttft": 0.5}\n{"ttft": 0.6}\n', {"ttft": [0.5, 0.6]}),
        ('{"claude": 0.5, "local": 0.1}\n', {"claude": [0.5], "local": [0.1]}),
        (
            '{"provider": "claude", "ttft_ms": 500}\n{"provider": "local", "ttft_ms": 100}\n',
            {"claude": [0.5], "local": [0.1]},
        ),
        ("[0.5, 0.6]\n", {"latency": [0.5, 0.6]}),
        ('[\n  {"ttft": 0.5},\n  {"ttft": 0.6}\n]\n', {"ttft": [0.5, 0.6]}),
        ("[0.5, 0.1]\n[0.6, 0.2]\n", {"latency 1": [0.5, 0.6], "latency 2": [0.1, 0.2]}),
    ],
)
def test_jsonl_is_a_number_an_object_or_a_list_a_line(
    tmp_path: Path, text: str, expected: dict[str, list[float]]
) -> None:
    recorded = read(tmp_path, text, "file.jsonl")
    assert (secs(recorded), recorded.skipped) == (expected, 0)


def test_slow_answers_are_not_dropped(tmp_path: Path) -> None:
    """Thousands with their commas, and answers that never came, which take long or none."""
    text = 'latency\n998\n"1,234.5"\ntimeout\n700\nerror\n'
    measured = read(tmp_path, text).providers["latency"]
    assert measured.secs.tolist() == pytest.approx([0.998, 1.2345, 1.2345, 0.7, 0.0])
    assert measured.failed.tolist() == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("text", "unit", "found", "expected"),
    [
        ("500\n", "s", "s", [500]),
        ("0.5\n", "ms", "ms", [0.0005]),
        ("500\n", None, "ms", [0.5]),
        ("0.5\n", None, "s", [0.5]),
        ("490000\n", "us", "us", [0.49]),
    ],
)
def test_the_unit_can_be_said(
    tmp_path: Path, text: str, unit: str | None, found: str, expected: list[float]
) -> None:
    """And is told where it is not."""
    recorded = read(tmp_path, text, **({"unit": unit} if unit else {}))
    assert (recorded.unit or unit, secs(recorded)) == (found, {"latency": expected})


def test_a_unit_that_cannot_be_is_not_guessed(tmp_path: Path) -> None:
    """Nobody waits eight minutes for the usual answer; whose column says so, does."""
    with pytest.raises(ReadingError, match="half of the latencies of x would be over 490 s: give"):
        read(tmp_path, "x\n490000\n480000\n490000\n")


def test_the_columns_can_be_said(tmp_path: Path) -> None:
    """Then nothing else is taken, whatever it is called."""
    text = "count,ttft\n0.5,0.1\n0.6,\n,0.2\n"
    recorded = read(tmp_path, text, columns=["count"])
    assert secs(recorded) == {"count": [0.5, 0.6]}
    assert recorded.named_skips[0].endswith("csv:4: no field called count is a number")


@pytest.mark.parametrize(
    ("header", "row", "taken"),
    [
        ("created_at,request_id,ttft_ms", "1700000000,17,500", {"ttft": [0.5]}),
        ("ts,model,prompt_tokens,ttft", "1,gpt,4000,0.5", {"ttft": [0.5]}),
        (",ttft", "0,0.5", {"ttft": [0.5]}),
        ("ttft_ms,duration_ms", "500,2000", {"ttft": [0.5]}),
        ("claude_ms,local_ms,row", "500,100,1", {"claude": [0.5], "local": [0.1]}),
        ("claude,local,completion_tokens", "0.5,0.1,80", {"claude": [0.5], "local": [0.1]}),
    ],
)
def test_what_is_no_latency_is_left_out_and_named(
    tmp_path: Path, header: str, row: str, taken: dict[str, list[float]]
) -> None:
    """Counts, times of day and numbers of rows; and what a column says that it is counts."""
    recorded = read(tmp_path, f"{header}\n{row}\n")
    assert secs(recorded) == taken
    assert recorded.ignored


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


def test_a_log_as_one_list(tmp_path: Path) -> None:
    """As an export of turns may be; what is wrong is named by its place."""
    text = f"[{turn(attempt('a', 0.5))},\n{{}},\n{turn(attempt('a', 0.6))}]"
    recorded = read(tmp_path, text, "turns.json")
    assert secs(recorded) == {"a": [0.5, 0.6]}
    assert recorded.named_skips == (f"{tmp_path}/turns.json:2: no field is a number",)


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
    """The first five by file, number and fault; the others are used."""
    recorded = read(tmp_path, "0.5\nnever\n-1\nnan\n0.5,0.6\ninf\n0.7\nsoon\n")
    assert secs(recorded) == {"latency": [0.5, 0.7]}
    assert recorded.skipped == 6
    assert recorded.named_skips == tuple(
        f"{tmp_path / 'file.csv'}:{fault}"
        for fault in (
            "2: no field is a number",
            "3: -1.0 is not a latency",
            "4: nan is not a latency",
            "5: 2 cells under 1 columns",
            "6: inf is not a latency",
        )
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.csv", b"", r"there is no latency in .*: give a turn log, or one"),
        ("x.csv", b"nothing\nhere\n", r"there is no latency in .*: give a turn log, or one"),
        ("x.wav", bytes(range(200, 256)) * 10, "is not text: give a turn log, JSONL or CSV"),
        ("none.csv", None, r"none\.csv cannot be read: No such file"),
        (".", None, "cannot be read: Is a directory"),
    ],
)
def test_a_file_without_latencies_is_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ReadingError, match=message):
        read_latencies([tmp_path / name])


def test_several_files_are_one_stretch(tmp_path: Path) -> None:
    """In the order given, each with its own unit and kind."""
    (tmp_path / "one.csv").write_text("0.5\n")
    (tmp_path / "two.jsonl").write_text("0.6\n")
    (tmp_path / "log.jsonl").write_text(turn(attempt("x", 0.5)))
    (tmp_path / "y.csv").write_text("y\n550\n")
    paths = [tmp_path / name for name in ("one.csv", "two.jsonl", "log.jsonl", "y.csv")]
    recorded = read_latencies(paths)
    assert secs(recorded) == {"latency": [0.5, 0.6], "x": [0.5], "y": [0.55]}
    assert np.array_equal(recorded.providers["latency"].row, [0, 1])
