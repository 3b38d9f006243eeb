"""Every command of the documentation exists, with its options."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from functools import cache

import pytest

from pipecat_hedge.cli import main
from tests.docs.pages import OTHERS, PAGES, ROOT, Page, doc

COMMANDS = (
    *("simulate", "replay", "whatif", "report", "compare", "top", "stats", "proxy"),
    *("bench", "drill"),
)
GUIDES = {
    "replay.md": ("replay",),
    "whatif.md": ("whatif",),
    "report.md": ("report",),
    "compare.md": ("compare",),
    "top.md": ("top",),
    "simulator.md": ("simulate",),
    "drills.md": ("bench", "drill"),
    "proxy.md": ("proxy",),
}
"""Pages about commands."""
_OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")


@cache
def help_of(command: str) -> str:
    with contextlib.redirect_stdout(out := io.StringIO()), pytest.raises(SystemExit):
        main([command, "--help"])
    return out.getvalue()


def command_lines(page: Page) -> list[list[str]]:
    """The commands of a page, in blocks and in sentences, as words."""
    lines: list[str] = []
    for block in page.blocks("console", "sh"):
        shown = block.code.replace("\\\n", " ").split("\n")
        prompted = block.language == "console"
        lines += [
            line[2:] if prompted else line for line in shown if not prompted or line[:1] == "$"
        ]
    starts = ("make ", "pipecat-hedge ", "pytest ", "python ")
    lines += [span for span in page.spans if span.startswith(starts)]
    found: list[list[str]] = []
    for line in lines:
        words = shlex.split(line, comments=True)
        while words:  # one command after the other
            end = next((i for i, word in enumerate(words) if word in ("&&", "&", "|")), len(words))
            command, words = words[:end], words[end + 1 :]
            while command and re.match(r"[A-Z_]+=", command[0]):
                command = command[1:]
            found.append(command)
    return [command for command in found if command]


def problems(command: list[str]) -> list[str]:
    """What does not exist of a command."""
    name, arguments = command[0], command[1:]
    if name == "pipecat-hedge" and arguments and arguments[0] in COMMANDS:
        known = _OPTION.findall(help_of(arguments[0]))
        given = [word.partition("=")[0] for word in arguments if word.startswith("--")]
        return [option for option in given if option not in known]
    if name == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        return [word for word in arguments if "=" not in word and word not in targets]
    if name == "pytest":
        paths = [word for word in arguments if word.startswith("tests/")]
        missing = [path for path in paths if not (ROOT / path).exists()]
        if "-k" in arguments and paths and not missing:
            wanted = arguments[arguments.index("-k") + 1]
            files = [f for p in paths for f in [ROOT / p, *(ROOT / p).rglob("*.py")] if f.is_file()]
            if not any(wanted in file.read_text() for file in files):
                missing.append(f"-k {wanted}")
        return missing
    if name == "python" and arguments[:1] == ["-m"]:
        module = ROOT / arguments[1].replace(".", "/")
        is_ours = arguments[1].split(".")[0] in ("scripts", "tests", "examples")
        exists = module.with_suffix(".py").exists() or (module / "__main__.py").exists()
        return [] if exists or not is_ours else [arguments[1]]
    if name == "python" and arguments[:1] and arguments[0].startswith("scripts/"):
        return [] if (ROOT / arguments[0]).exists() else [arguments[0]]
    if name == "pipecat-hedge":
        return [a for a in arguments[:1] if a not in ("COMMAND", "--version", "--help")]
    return []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=str)
def test_every_command_exists(page: Page) -> None:
    found = {" ".join(command): problems(command) for command in command_lines(page)}
    assert not {command: missing for command, missing in found.items() if missing}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_names_every_option(command: str) -> None:
    described = set(_OPTION.findall(doc("reference/commands.md").section(command)))
    assert described == set(_OPTION.findall(help_of(command))) - {"--help"}


@pytest.mark.parametrize(("page", "commands"), GUIDES.items())
def test_a_guides_options_exist(page: str, commands: tuple[str, ...]) -> None:
    known = {option for command in commands for option in _OPTION.findall(help_of(command))}
    named = {option for span in doc(page).spans for option in _OPTION.findall(span)}
    assert named <= known


@pytest.mark.parametrize(
    ("page", "part", "blocks"),
    [("whatif.md", "p95", 2), ("one-voice-two-models.md", "agree (95 %)", 1)],
)
def test_a_command_prints_what_its_page_shows(
    page: str, part: str, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    shown = [b.code for b in doc(page).blocks("console") if part in b.code]
    assert len(shown) == blocks
    for block in shown:
        command, _, output = block.partition("\n")
        command, _, tail = command.partition(" | tail -n ")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(shlex.split(command)[2:]) == 0
        lines = [line.rstrip() for line in printed.getvalue().splitlines()]
        assert lines[-int(tail or len(lines)) :] == output.splitlines()


def test_the_commands_are_found() -> None:
    """A page without its commands would pass."""
    assert sum(len(command_lines(page)) for page in PAGES) > 60
