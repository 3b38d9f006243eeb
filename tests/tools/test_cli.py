"""The command line: what every command has in common."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pipecat_hedge import cli
from pipecat_hedge.tools.analysis import report


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python in a process of its own."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def main(*arguments: str, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, where modules can be taken away."""
    return run(
        f"import sys\n{before}\nfrom pipecat_hedge.cli import main\n"
        f"try:\n    status = main({list(arguments)})\n"
        f"except SystemExit as error:\n    status = error.code\n{after}\nsys.exit(status)"
    )


def test_help_does_not_import_pipecat():
    found = main("--help", after="assert 'pipecat' not in sys.modules")
    assert (found.returncode, found.stderr) == (0, "")
    commands = re.findall(r"^    (\w+) ", found.stdout, re.MULTILINE)
    assert commands == ["simulate", "replay", "whatif", "report", "top", "bench", "drill"]
    assert found.stdout.isascii()


@pytest.mark.parametrize("command", ["bench", "drill"])
def test_help_of_a_command_is_all_it_prints(command: str):
    found = main(command, "--help")
    assert (found.returncode, found.stderr) == (0, "")


def test_version_is_printed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"pipecat-hedge \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "missing", "extra"), [("replay", "aiortc", "replay"), ("drill", "rich", "tools")]
)
def test_a_missing_extra_is_named(command: str, missing: str, extra: str):
    found = main(command, "--help", before=f"sys.modules[{missing!r}] = None")
    assert found.returncode == 2
    assert found.stderr.splitlines()[-1] == (
        f'pipecat-hedge {command}: {missing} is not installed: pip install "pipecat-hedge[{extra}]"'
    )
    assert "Traceback" not in found.stderr


def test_a_missing_module_of_its_own_is_a_defect():
    module = "pipecat_hedge.tools.analysis.report"
    found = main("report", "--help", before=f"sys.modules[{module!r}] = None")
    assert found.returncode == 1
    assert "Traceback" in found.stderr


def test_ctrl_c_ends_a_command_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "run", interrupted)
    assert cli.main(["report", "turns.jsonl"]) == 130
    assert capsys.readouterr().err == "pipecat-hedge report: interrupted\n"
