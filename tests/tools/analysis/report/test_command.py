"""The command, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipecat_hedge.cli import main
from tests.tools.analysis.report.made_up import BEGIN_AT, line


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "turns.jsonl"
    lines = [line(ttft=0.4 + n / 100, at=BEGIN_AT + 5 * n, tier="standard") for n in range(60)]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines) + '{"at": 17')
    return path


def test_a_page_and_a_summary(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary names the page, and what could not be read."""
    page = tmp_path / "report.html"
    assert main(["report", str(log), "--out", str(page), "--tz", "UTC"]) == 0
    told = capsys.readouterr().out
    assert "60 turns." in told
    assert "1 line skipped: turns.jsonl:61" in told
    assert "report.html" in told
    assert page.read_text().startswith("<!doctype html>")


def test_json_for_programs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else on the standard output; promises as they were given."""
    options = ["--slo-ttft", "0.605", "--slo-ttfs", "none", "--slo-share", "0.9"]
    more = ["--slo-tier", "premium:0.5", "--json", "--no-replay"]
    assert main(["report", str(log), *options, *more]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["slos"]["all"] == {
        "ttft_secs": 0.605,
        "ttfs_secs": None,
        "voice_to_voice_secs": 1.5,
        "share": 0.9,
    }
    assert told["slos"]["premium"]["ttft_secs"] == 0.5
    (promise,) = told["promises"]
    assert promise["overall"] == {"kept": 21, "told": 60, "share": 0.35}
    assert (told["skipped"], told["replays"]) == (1, None)


def test_two_logs(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against itself nothing differs."""
    assert main(["report", str(log), "--against", str(log), "--no-replay"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "Compared with turns.jsonl" in told
    assert "no difference that this" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tz", "Mars/Olympus"], "tz: 'Mars/Olympus' is no time zone"),
        (["--slo-ttft", "soon"], "slo-ttft: 'soon' is no number of seconds"),
        (["--slo-ttft", "-1"], "ttft_secs must be a positive number"),
        (["--slo-share", "95"], "share must be above 0 and below 1"),
        (["--slo-tier", "gold:1"], "slo-tier: 'gold:1' is no promise"),
        (["--out", "no/such/folder/x.html"], "out: there is no folder no/such/folder"),
        (["--against", "absent.jsonl"], "absent.jsonl cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    log: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the option and the remedy, before anything is replayed."""
    assert main(["report", str(log), *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_no_prompt_or_answer_comes_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever somebody has put beside the figures."""
    secret = "the caller's card number"
    told = line(degraded_reason=secret, hedge_reason=secret, filler={"reason": secret})
    told.update(prompt=secret, answer=secret)
    told["attempts"][0].update(launch_detail=secret, text=secret)
    path, page = tmp_path / "turns.jsonl", tmp_path / "page.html"
    path.write_text("".join(json.dumps(told) + "\n" for _ in range(30)))
    assert main(["report", str(path), "--out", str(page)]) == 0
    assert main(["report", str(path), "--json"]) == 0
    assert secret not in page.read_text() + capsys.readouterr().out
