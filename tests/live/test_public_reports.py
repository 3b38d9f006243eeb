"""The scripts of public reports end by themselves, and print what their page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.realtime]

NOTHING = "nothing"


def played(name: str) -> dict[str, tuple[str, str]]:
    """Run a script; return its rows, bare and hedged."""
    done = subprocess.run(
        [sys.executable, "-m", f"examples.reports.{name}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()[3:]
    return {line[:44].strip(): (line[44:62].strip(), line[62:].strip()) for line in lines}


def secs(text: str) -> float:
    """Return the seconds of a cell."""
    return float(text.removesuffix(" s"))


@pytest.mark.timeout(120)
def test_a_half_open_voice_is_replaced_and_what_nobody_heard_is_not_told() -> None:
    first, second, third, unheard = played("pipecat_5305").values()
    assert secs(first[0]) < 1 > secs(first[1])
    assert second[0] == third[0] == NOTHING
    assert secs(second[1]) < 1.5 > secs(third[1])
    assert unheard == ("2 of 3", "0 of 3")


@pytest.mark.timeout(120)
def test_silent_sentences_are_heard() -> None:
    heard, unheard, silence = played("pipecat_5601").values()
    assert (heard, unheard) == (("49 of 56", "56 of 56"), ("7", "0"))
    assert secs(silence[0]) > 2.9 > 2 > secs(silence[1])


@pytest.mark.timeout(120)
def test_dribbling_answers_are_answered_by_another_provider() -> None:
    rows = played("pipecat_5804").values()
    assert [bare for bare, _ in rows] == [NOTHING] * 3
    assert all(secs(hedged) < 5.5 for _, hedged in rows)


@pytest.mark.timeout(120)
def test_keepalives_are_no_answer() -> None:
    for alone, hedged in played("livekit_6171").values():
        assert alone == NOTHING
        assert secs(hedged) < 4
