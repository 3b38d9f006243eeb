"""The command line: what every command has in common."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from pipecat_hedge.tools.analysis import report_command
from tests.tools.analysis.made_up import line, write
from tests.tools.conftest import Ran


def main(*arguments: str, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, where modules can be taken away."""
    code = (
        f"import sys\n{before}\nfrom pipecat_hedge.cli import main\n"
        f"try:\n    status = main({list(arguments)})\n"
        f"except SystemExit as error:\n    status = error.code\n{after}\nsys.exit(status)"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_help_does_not_import_pipecat() -> None:
    found = main("--help", after="assert 'pipecat' not in sys.modules")
    assert (found.returncode, found.stderr) == (0, "")
    commands = re.findall(r"^    (\w+) ", found.stdout, re.MULTILINE)
    assert commands == [
        *("simulate", "replay", "whatif", "report", "compare", "top", "stats"),
        *("proxy", "bench", "drill"),
    ]
    assert found.stdout.isascii()


def test_whatif_does_not_import_pipecat() -> None:
    found = main("whatif", "--help", after="assert 'pipecat' not in sys.modules")
    assert (found.returncode, found.stderr) == (0, "")


def test_help_of_a_command_is_all_it_prints() -> None:
    found = main("drill", "--help")
    assert (found.returncode, found.stderr) == (0, "")


def test_version_is_printed(ran: Callable[..., Ran]) -> None:
    status, out, _ = ran("--version")
    assert status == 0
    assert re.fullmatch(r"pipecat-hedge \d+\.\d+\.\d+\S*\n", out)


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("replay", "aiortc", "replay"),
        ("drill", "rich", "tools"),
        ("compare", "text_to_num", "tools"),
    ],
)
def test_a_missing_extra_is_named(command: str, missing: str, extra: str) -> None:
    found = main(command, "--help", before=f"sys.modules[{missing!r}] = None")
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        f'pipecat-hedge {command}: {missing} is not installed: pip install "pipecat-hedge[{extra}]"'
    )
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        ("simulate --prot 1", "--prot 1 (did you mean --port?)"),
        ("replay a.wav --run 1 --nosuch", "--nosuch"),
        ("whatif a.csv --nosuch", "--nosuch"),
        ("report a.jsonl --agianst=b", "--agianst=b (did you mean --against?)"),
        ("compare a.jsonl --nosuch", "--nosuch"),
        ("top --evry 1", "--evry (did you mean --every?)"),
        ("stats export --nosuch", "--nosuch"),
        ("proxy --chekc", "--chekc (did you mean --check?)"),
        ("bench --turn 1 --nosuch", "--nosuch"),
        ("drill hang --varients best", "--varients best (did you mean --variants?)"),
    ],
)
def test_an_unknown_option_is_named_below_its_commands_usage(
    ran: Callable[..., Ran], arguments: str, unknown: str
) -> None:
    command = arguments.partition(" ")[0]
    status, out, err = ran(*arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith(f"usage: pipecat-hedge {command} ")
    assert err.endswith(f"pipecat-hedge {command}: error: unrecognized arguments: {unknown}\n")


@pytest.mark.parametrize(
    ("mistyped", "meant"),
    [("reprot", "report"), ("bnech --turns 1", "bench"), ("--verison", "--version")],
)
def test_a_mistyped_command_is_corrected(
    ran: Callable[..., Ran], mistyped: str, meant: str
) -> None:
    status, out, err = ran(*mistyped.split())
    assert (status, out) == (2, "")
    assert err.endswith(f" (did you mean {meant}?)\n")


def test_a_missing_module_of_its_own_is_a_defect() -> None:
    module = "pipecat_hedge.tools.analysis.report_command"
    found = main("report", "--help", before=f"sys.modules[{module!r}] = None")
    assert found.returncode == 1
    assert "Traceback" in found.stderr


def test_ctrl_c_ends_a_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, ran: Callable[..., Ran]
) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(report_command, "run", interrupted)
    ended = ran("report", "turns.jsonl")
    assert (ended.status, ended.err) == (130, "pipecat-hedge report: interrupted\n")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn log, latencies, a recording, and files that are none of these."""
    monkeypatch.chdir(tmp_path)
    write(Path("turns.jsonl"), [line()])
    Path("one.csv").write_text("0.5\n0.6\n0.7\n")
    Path("semi.csv").write_text("when;ttft\n1;0.5\n")
    Path("empty.csv").touch()
    Path("folder").mkdir()
    tone = 0.3 * np.sin(2 * np.pi * 440 * np.arange(19_200) / 48_000)
    soundfile.write("hello.wav", tone, 48_000)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("simulate --port 70000", "port: expected a number from 0 to 65535, got 70000"),
        ("simulate --capacity 0", "capacity: expected a whole number, 1 or more"),
        ("simulate --host 192.0.2.1", "port 8900 on 192.0.2.1 is not available"),
        ("replay hello.wav --url http://127.0.0.1:9", "nothing answers at http://127.0.0.1:9/api"),
        ("replay hello.wav --url 127.0.0.1", "url must be like http://127.0.0.1:7860"),
        ("replay empty.csv", "not an audio file"),
        ("replay missing.wav", "missing.wav"),
        ("replay hello.wav --runs 0", "runs must be at least 1, got 0"),
        ("replay hello.wav --callers -1", "callers must be at least 1, got -1"),
        ("replay hello.wav --timeout 0", "timeout_secs must be positive, got 0"),
        ("replay hello.wav --greeting -1", "greeting_secs must not be negative, got -1"),
        ("replay hello.wav --loss 1.5", "loss must be a share from 0 to below 1, got 1.5"),
        ("replay hello.wav --interrupt-with missing.wav", "missing.wav"),
        ("replay hello.wav --interrupt-with folder", "is a folder, but exactly one recording"),
        ("replay hello.wav --report one.csv", "cannot be written to"),
        ("whatif semi.csv", "separated by semicolons: separate them by commas"),
        ("whatif none.csv", "none.csv cannot be read: No such file"),
        ("whatif empty.csv", "there is no latency in"),
        ("whatif one.csv --attempts 1", "attempts must be at least 2"),
        ("whatif one.csv --usd-per-mtok 3 15", "usd_per_mtok needs prompt_tokens"),
        ("whatif one.csv --prompt-tokens 900", "prompt_tokens needs usd_per_mtok"),
        (
            "whatif one.csv --column ttft",
            "no column ttft: name that of the latencies with --column",
        ),
        ("whatif one.csv --deadline -1", "deadline_secs must be above 0 and at most 60 s, got -1"),
        ("whatif one.csv --budget -1", "budget must be a share of turns"),
        ("whatif one.csv --first x", "first: 'x' was not measured; measured: latency"),
        ("report turns.jsonl --tz Mars/Olympus", "tz: 'Mars/Olympus' is not a time zone"),
        ("report turns.jsonl --slo-ttft -1", "ttft_secs must be a positive number"),
        ("report turns.jsonl --slo-ttft 1 --slo-share 95", "share must be above 0 and below 1"),
        ("report turns.jsonl --slo-share 0.9", "--slo-share needs a time, such as --slo-ttft 0.8"),
        ("report turns.jsonl --out no/such/x.html", "out: there is no folder no/such"),
        ("report turns.jsonl --against absent.jsonl", "absent.jsonl cannot be read"),
        ("top bot:x", "bot:x is not an address: write http://127.0.0.1:7860"),
        ("top --every 0", "--every must be from 0.05 to 60 s, got 0"),
        ("drill fly", "unknown drill 'fly'; known drills: calm, down, hang"),
        ("drill --variants bare,best", "unknown variant 'best'; known variants: bare, retry"),
        ("drill --processes 0", "--processes must be more than 0, got 0"),
        ("proxy --new-key=", "--new-key is empty: give the client's name"),
        ("fly", "invalid choice: 'fly'"),
        ("", "required: COMMAND"),
    ],
)
def test_a_wrong_argument_is_named(ran: Callable[..., Ran], command: str, message: str) -> None:
    """On the error stream alone, with status 2."""
    status, out, err = ran(*command.split())
    assert (status, out) == (2, "")
    assert message in " ".join(err.split())
    assert "Traceback" not in err
