"""What is seen on terminals of all sizes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pipecat_hedge.tools.top.fleet import Fleet
from pipecat_hedge.tools.top.screen import screen
from pipecat_hedge.tools.top.words import burn, line, percent, secs, window
from tests.tools.top.test_fleet import answer, attempt, fleet_of, promise, provider, turn

NOW = 1010.0
HEDGED = turn(
    2,
    winner="b",
    ttft_secs=0.91,
    attempts=[
        attempt(outcome="superseded", ttft_secs=None),
        attempt("b", launch_reason="hedge", launched_secs=0.62, ttft_secs=0.29),
    ],
)
BUSY = answer(
    turns=[turn(n) for n in range(3, 60)] + [HEDGED],
    providers=[
        provider(),
        provider("b", breaker="open", failed=5),
        provider("c", retry_after_secs=11.2),
    ],
    slos=[promise(200, 20), promise(20, 0, "premium", objective="voice_to_voice")],
)


def drawn(fleet: Fleet, width: int, height: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(screen(fleet, width, height, NOW))
    return [row.rstrip() for row in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [36, 40, 52, 60, 76, 80, 100, 110, 132, 200])
@pytest.mark.parametrize("height", [24, 50])
def test_it_fits(width: int, height: int) -> None:
    """Nothing is wrapped, nothing sticks out, and the turns use the rows that are left."""
    rows = drawn(fleet_of(BUSY), width, height)
    assert all(len(row) <= width for row in rows)
    assert height - 3 <= len(rows) <= height
    figures = [word for row in rows for word in row.split() if "…" in word and word[0].isdigit()]
    assert figures == []
    assert rows[0].startswith(("pipecat-hedge top", "top"))


def test_what_is_seen() -> None:
    """Promises, providers, the budget and turns, the latest first."""
    text = "\n".join(drawn(fleet_of(BUSY), 132, 80))
    assert "here · 1 call · 58 turns in 5 min · 2% hedged" in text
    assert "standard: first token ≤ 0.8 s" in text
    assert "premium: voice to voice ≤ 0.8 s" in text
    assert "-100 %" in text  # of the error budget: ten per cent were bad, five may be
    assert "2.0×" in text
    for state in ("usable", "left alone", "rests 12 s"):
        assert state in text
    assert "budget 10 % of turns: 1.0 saved, at most 4 requests, 2 % spent in 5 min" in text
    assert "a superseded; b won, hedge at 620 ms" in text
    assert text.index("1.59 ") < text.index("1.3 ")


def test_a_count_that_is_only_of_what_is_kept_says_so() -> None:
    """A bot keeps its latest turns, and so does who looks; in five minutes there may be more."""
    turns = [turn(n, at=NOW - 0.1) for n in range(1, 601)]
    assert "500+ turns in 5 min" in drawn(fleet_of(answer(turns=turns)), 132, 40)[0]
    for since, told in ((NOW - 299, "1+ turns"), (NOW - 301, "1 turns"), (None, "1 turns")):
        fleet = fleet_of(answer(turns=[turn(1)], turns_since=since))
        assert f"· {told} in 5 min" in drawn(fleet, 132, 40)[0]


def test_a_narrow_one_keeps_what_matters() -> None:
    """Who won, and how soon."""
    text = "\n".join(drawn(fleet_of(BUSY), 60, 90))
    assert "winner" in text
    assert "who was asked" not in text
    assert "910 ms" in text


def test_who_is_away_is_said() -> None:
    """And since when; the others go on."""
    fleet = fleet_of(answer("p"), answer("q"))
    fleet.bots[1].is_away("connection refused", NOW - 12)
    text = "\n".join(drawn(fleet, 120, 30))
    assert "http://bot2 is away since 12 s: connection refused; asking again" in text
    assert "1 of 2 bots" in text
    assert drawn(Fleet(["http://bot"]), 80, 24)[1] == "http://bot: asking"


def test_before_the_first_turn() -> None:
    """It says what to do."""
    text = "\n".join(drawn(fleet_of(answer(turns=[], slos=[], budgets=[])), 80, 24))
    assert "no turn yet: talk to the bot" in text


def test_names_that_look_like_markup_are_names() -> None:
    """Providers are called what their users like."""
    fleet = fleet_of(answer(providers=[provider("[red]x[/red]")]))
    assert "[red]x[/red]" in "\n".join(drawn(fleet, 120, 30))


def test_figures() -> None:
    """Unknown is not 0."""
    assert [secs(v) for v in (None, 0.0, 0.0004, 0.9126, 9.9994, 12.34)] == [
        *("–", "0 ms", "0 ms", "913 ms", "9999 ms", "12.3 s")
    ]
    assert [percent(v) for v in (None, 1.0, 0.9996, 0.5, 0.0, -1.0)] == [
        *("–", "100 %", "> 99.9 %", "50 %", "0 %", "-100 %")
    ]
    assert [burn(v) for v in (None, 0.0, 1.04, 14.4)] == ["–", "0.0×", "1.0×", "14×"]
    assert [window(v) for v in (300.0, 3600.0, 259_200.0, 5.0)] == ["5 min", "1 h", "3 d", "5 s"]


def test_a_line_of_its_own() -> None:
    """For a pipe."""
    told = line("here", HEDGED)
    assert told.endswith(
        "here call 1 turn 2 standard: answered, winner b, first token 910 ms, sentence 600 ms, "
        "heard 1200 ms, a superseded; b won, hedge at 620 ms"
    )
