"""The table of what callers of the live tests heard, at the end of the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

import pytest


@dataclass(frozen=True, slots=True)
class Row:
    """What one recording was answered with.

    Parameters:
        recording: Its name.
        voice_to_voice_secs: From its last speech leaving the microphone to the bot's first sound.
        ttft_secs: Of the turn that was heard.
        winner: Whose answer it was.
        circumstances: What else the caller waited for.
    """

    recording: str
    voice_to_voice_secs: float
    ttft_secs: float
    winner: str
    circumstances: str = ""


_ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture(scope="session")
def tabulate(request: pytest.FixtureRequest) -> Callable[[Row], None]:
    """Adds a row to the table that is printed at the end of the run."""
    return request.config.stash.setdefault(_ROWS, []).append


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table, if live tests ran."""
    rows = config.stash.get(_ROWS, [])
    if not rows:
        return
    terminalreporter.section("voice to voice, as the caller hears it")
    terminalreporter.write_line(f"{'recording':<54} {'ms':>5} {'TTFT':>5}  winner")
    for recording, voice_to_voice, ttft, winner, circumstances in map(astuple, rows):
        figures = f"{voice_to_voice * 1000:>5.0f} {ttft * 1000:>5.0f}"
        terminalreporter.write_line(
            f"{recording:<54} {figures}  {winner:<15}  {circumstances}".rstrip()
        )
