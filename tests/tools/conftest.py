"""The command line, as a user calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from pipecat_hedge.cli import main


class Ran(NamedTuple):
    """What a command returned and printed."""

    status: object
    out: str
    err: str


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """Run ``pipecat-hedge`` with these arguments, at 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> Ran:
        try:
            status: object = main([*map(str, arguments)])
        except SystemExit as ended:
            status = ended.code
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return run
