"""The screen on terminals of all sizes."""

from __future__ import annotations

import io
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pipecat_hedge.race import SpeechReport, TranscriptReport
from pipecat_hedge.tools.top.feed import Fleet
from pipecat_hedge.tools.top.screen import screen, turn_line
from tests.tools.top.test_feed import answer, attempt, fleet_of, provider, slo, turn

NOW = 1010.0
HEDGED = turn(
    2,
    winner="b",
    ttft_secs=0.91,
    attempts=[
        attempt(outcome="superseded"),
        attempt("b", launch_reason="hedge", launched_secs=0.62),
    ],
)
BUSY = answer(
    turns=[turn(n) for n in range(3, 60)] + [HEDGED],
    providers=[
        provider(),
        provider("b", breaker="open", failed=5),
        provider("[red]c[/red]", retry_after_secs=11.2),
        provider("d", server={"is_up": True, "waiting": 3}),
    ],
    slos=[slo(200, 20), slo(20, 0, "premium", objective="voice_to_voice")],
)


def drawn(fleet: Fleet, width: int, height: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(screen(fleet, width, height, NOW))
    return [row.rstrip() for row in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 52, 60, 76, 80, 100, 110, 132, 200])
@pytest.mark.parametrize("height", [24, 50])
def test_it_fits(width: int, height: int) -> None:
    """Nothing is wrapped or too wide, no figure is cut, and the turns use the remaining rows."""
    rows = drawn(fleet_of(BUSY), width, height)
    assert all(len(row) <= width for row in rows)
    assert height - 3 <= len(rows) <= height
    text = "\n".join(rows)
    assert all(figure in text for figure in ("2.0×", "-100 %", "1.10 s", "400 ms"))
    assert ("attempts" in text, "winner" in text) == (width > 60, width <= 60)


def test_no_part_of_the_headline_is_cut_at_80_columns() -> None:
    fleet = fleet_of(answer(turns=[turn(1)], name="a-restaurant-with-a-long-name"))
    rows = drawn(fleet, 80, 24)
    assert rows[0] == "top  a-restaurant-with-a-long-name · 1 call · 1 turns in 5 min · 0% hedged"
    assert rows[1] == "     first token p50 400 ms, p95 400 ms"


def test_a_proxys_turns_have_no_column_of_voices() -> None:
    silent = "\n".join(drawn(fleet_of(answer(turns=[turn(1, voice_to_voice_secs=None)])), 80, 24))
    assert "voice" not in silent.replace("voice to voice", "")


def test_everything_is_shown() -> None:
    """SLOs, providers, the budget and turns, the latest first."""
    text = "\n".join(drawn(fleet_of(BUSY), 140, 80))
    for expected in (
        "here · 1 call · 58 turns in 5 min · 2% hedged · first token p50 400 ms, p95 400 ms",
        *("standard: first token ≤ 0.8 s", "premium: voice to voice ≤ 0.8 s"),
        *("-100 %", "2.0×", "burn 5 min", "burn 3 d"),
        *("usable", "breaker open", "retry in 12 s", "queue of 3", "[red]c[/red]", "1 of 20"),
        "budget 10 % of turns: 1.0 credit, at most 4 requests, 2% spent in 5 min",
        "a superseded; b won, hedge at 620 ms",
    ):
        assert expected in text
    assert text.index("1.59 ") < text.index("1.3 ")


def test_transcripts_and_voices_have_columns_if_they_are_reported() -> None:
    """With what had to be rescued; a wide terminal has room for them."""
    late = TranscriptReport("deepgram", 0.45, 1, None, is_rescued=True, was_replaced=True)
    spoken = SpeechReport("cartesia", 3, 1, 0, 0.31, 0.0, 90, 30, turn=1)
    later = {"transcripts": [asdict(late)], "spoken": asdict(spoken)}
    fleet = fleet_of(answer(turns=[turn(1, **later), turn(2)]))
    rows = drawn(fleet, 132, 40)
    (heads,) = [row for row in rows if "attempts" in row]
    assert "transcript" in heads
    assert "first sound" in heads
    assert any("450 ms rescued replaced" in row and "310 ms 1 rescued" in row for row in rows)
    assert "first sound" not in "".join(drawn(fleet, 110, 40))
    assert "first sound" not in "".join(drawn(fleet_of(BUSY), 132, 40))
    lines = [turn_line("here", each) for _, each in fleet.turns()]
    assert "transcript 450 ms rescued replaced, first sound 310 ms 1 rescued" in lines[1]
    assert "first sound" not in lines[0]


def test_an_incomplete_count_has_a_plus() -> None:
    for since, expected in ((NOW - 299, "1+ turns"), (NOW - 301, "1 turns"), (None, "1 turns")):
        fleet = fleet_of(answer(turns_since=since))
        fleet.bots[0].complete_since = since or 0.0
        assert f"· {expected} in 5 min" in drawn(fleet, 132, 40)[0]


def test_a_bot_that_is_away_is_named() -> None:
    fleet = fleet_of(answer("p"), answer("q"))
    fleet.bots[1].lose("connection refused", NOW - 12)
    text = "\n".join(drawn(fleet, 120, 30))
    assert "http://bot2 is away for 12 s; reconnecting\n  connection refused\n" in text
    assert "1 of 2 bots" in text
    assert drawn(Fleet(["http://bot"]), 80, 24)[1] == "http://bot: connecting"


def test_before_the_first_turn_it_says_what_to_do() -> None:
    text = "\n".join(drawn(fleet_of(answer(turns=[], slos=[], budgets=[])), 80, 24))
    assert "no turn yet: talk to the bot" in text


def test_a_turn_in_one_line() -> None:
    ((_, shown),) = fleet_of(answer(turns=[HEDGED])).turns()
    text = turn_line("here", shown)
    assert text.endswith(
        "here call 1 turn 2 standard: answered, winner b, first token 910 ms, sentence 600 ms, "
        "voice to voice 1.20 s, a superseded; b won, hedge at 620 ms"
    )


@given(st.text(st.characters(categories=["Cc", "Cf"]), min_size=1))
def test_control_characters_do_not_reach_the_terminal(name: str) -> None:
    turns = [turn(winner=name, attempts=[attempt(name)])]
    fleet = fleet_of(answer(name=name, turns=turns, providers=[provider(name)]))
    ((_, shown),) = fleet.turns()
    for text in (*drawn(fleet, 132, 40), *drawn(fleet, 60, 40), turn_line(name, shown)):
        assert text.isprintable()
