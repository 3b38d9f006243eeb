"""The scripts of public reports end by themselves, and print what their page says."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import pytest

pytestmark = [pytest.mark.live, pytest.mark.realtime, pytest.mark.timeout(120)]

NOTHING = "nothing"
Rows: TypeAlias = dict[str, tuple[str, str]]


def played(name: str) -> Rows:
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


def a_half_open_voice_is_replaced_and_what_nobody_heard_is_not_told(rows: Rows) -> None:
    first, second, third, unheard = rows.values()
    assert secs(first[0]) < 1 > secs(first[1])
    assert second[0] == third[0] == NOTHING
    assert secs(second[1]) < 1.5 > secs(third[1])
    assert unheard == ("2 of 3", "0 of 3")


def silent_sentences_are_heard(rows: Rows) -> None:
    heard, unheard, silence = rows.values()
    assert (heard, unheard) == (("49 of 56", "56 of 56"), ("7", "0"))
    assert secs(silence[0]) > 2.9 > 2 > secs(silence[1])


def dribbling_answers_are_answered_by_another_provider(rows: Rows) -> None:
    assert [bare for bare, _ in rows.values()] == [NOTHING] * 3
    assert all(secs(hedged) < 5.5 for _, hedged in rows.values())


def keepalives_are_no_answer(rows: Rows) -> None:
    for alone, hedged in rows.values():
        assert alone == NOTHING
        assert secs(hedged) < 4


CLAIMS = {
    "pipecat_5305": a_half_open_voice_is_replaced_and_what_nobody_heard_is_not_told,
    "pipecat_5601": silent_sentences_are_heard,
    "pipecat_5804": dribbling_answers_are_answered_by_another_provider,
    "livekit_6171": keepalives_are_no_answer,
}


def test_scripts_print_what_their_pages_claim(subtests: pytest.Subtests) -> None:
    with ThreadPoolExecutor() as pool:
        played_rows = {name: pool.submit(played, name) for name in CLAIMS}
    for name, claim in CLAIMS.items():
        with subtests.test(claim.__name__):
            claim(played_rows[name].result())
