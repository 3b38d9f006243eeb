"""A replay's figures, its pictures, and the folder that holds them."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.replay import TurnResult, check_folder, summarise, write_report
from pipecat_hedge.tools.replay.conversation import Waves
from pipecat_hedge.tools.replay.rtvi import STAGES
from tests.tools.markup import Markup

SVG = "{http://www.w3.org/2000/svg}"


def turn(recording: str = "hours", secs: float | None = 0.8, **fields: Any) -> TurnResult:
    """A caller who speaks for a second, and a bot that answers after ``secs``."""
    at = np.arange(240) / 60
    caller = np.where((at > 0.2) & (at < 1.2), 0.5, 0.001)
    bot = np.where(at > 1.2 + (secs or 9.0), 0.4, 0.0)
    fields.setdefault("voice_to_voice_secs", secs)
    fields.setdefault("stages", {"turn_end": 0.4, "first_text": 0.6})
    return TurnResult(
        recording,
        first_sound_secs=secs,
        answer_text="<b>Till nine</b> & later",
        understood_text="open?",
        waves=Waves(caller, bot, 4.0, 1.2, None if secs is None else 1.2 + secs),
        **fields,
    )


# ---- figures


def test_percentiles_by_recording_and_overall() -> None:
    """Turns that were not answered are counted, and have no latency."""
    turns = [turn("a", secs / 100) for secs in range(1, 21)]
    turns += [turn("b", None, error="silent"), turn("b", 3.0, silent_after_secs=0.4)]
    summary = summarise(turns)
    a, b = summary.recordings
    assert (a.name, a.turns, a.answered, a.p50, a.p95, a.max) == ("a", 20, 20, 0.1, 0.19, 0.2)
    assert (b.name, b.turns, b.answered, b.p50, b.p95, b.max) == ("b", 2, 1, 3.0, 3.0, 3.0)
    assert (b.silent_p50, b.silent_max, a.silent_p50) == (0.4, 0.4, None)
    assert (summary.overall.turns, summary.overall.answered, summary.overall.max) == (22, 21, 3.0)
    unanswered = summarise([turn(secs=None, error="silent")]).overall
    assert (unanswered.p50, unanswered.answered) == (None, 0)


def test_stages_are_medians_of_alike_answered_turns() -> None:
    """A filler is not the answer, and a turn that ends with one takes no part."""
    quick = turn(secs=0.7, stages={"turn_end": 0.3, "llm_started": 0.31})
    filler = turn(secs=1.2, voice_to_voice_secs=None, error="a filler was heard, but no answer")
    summary = summarise([turn(secs=0.8), turn(secs=0.9), turn(secs=1.0), quick, filler])
    assert summary.stages == {"turn_end": 0.4, "first_text": 0.6, "heard": 0.9}
    assert summarise([turn(stages={}), filler]).stages == {}


_MOMENTS = st.lists(st.floats(0, 10), min_size=6, max_size=6).map(sorted)


@given(st.lists(st.tuples(_MOMENTS, st.sets(st.sampled_from([*STAGES.values()]))), min_size=1))
def test_stages_come_out_in_their_order(turns: list[tuple[list[float], set[str]]]) -> None:
    """Whatever stages some turns lack; where all are alike, the last is p50."""
    results = [
        TurnResult(
            "hours",
            voice_to_voice_secs=moments[-1],
            stages={
                name: at
                for name, at in zip(STAGES.values(), moments[:-1], strict=True)
                if name in names
            },
        )
        for moments, names in turns
    ]
    summary = summarise(results)
    assert list(summary.stages.values()) == sorted(summary.stages.values())
    if summary.stages and all(t.stages.keys() == results[0].stages.keys() for t in results):
        assert summary.stages["heard"] == summary.overall.p50


@pytest.mark.parametrize(
    ("late", "pacing"),
    [
        ([{"late_secs": 0.019, "bot_late_secs": 0.06}], None),
        (
            [{}, {"late_secs": 0.15}, {"late_secs": 0.03}],
            "the machine, not the bot, was the bottleneck in 2 of 3 turns: the caller's frames "
            "were up to 150 ms late; ",
        ),
        (
            [{}, {"bot_late_secs": 0.4}],
            "the bot's machine was the bottleneck in 1 of 2 turns: its audio was up to 400 ms late",
        ),
    ],
)
def test_pacing_names_the_machine_that_fell_behind(
    late: list[dict[str, Any]], pacing: str | None
) -> None:
    summary = summarise([turn(**fields) for fields in late])
    assert summary.kept_up is (pacing is None)
    assert summary.pacing.startswith(pacing or "both sides kept real time")


# ---- pictures


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., str]:
    """The page of these turns."""

    def write(*turns: TurnResult, about: str = "About.") -> str:
        write_report(tmp_path, turns, about)
        return (tmp_path / "report.html").read_text()

    return write


def picture(page: str) -> ElementTree.Element:
    return ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])


def lines(drawn: ElementTree.Element, kind: str) -> list[float]:
    return [float(line.attrib["x1"]) for line in drawn.iterfind(f"{SVG}line[@class='{kind}']")]


def test_picture_marks_the_gap(page: Callable[..., str]) -> None:
    """From the caller's last sound to the bot's first, with its length."""
    drawn = picture(page(turn(secs=0.8)))
    edges, ticks = lines(drawn, "edge"), lines(drawn, "tick")
    per_second = ticks[2] - ticks[0]  # a tick each half second
    assert edges[1] - edges[0] == pytest.approx(0.8 * per_second, abs=0.3)
    assert edges[0] == pytest.approx(ticks[0] + 1.2 * per_second, abs=0.3)
    band = drawn.find(f"{SVG}rect[@class='band']")
    assert band is not None
    assert float(band.attrib["x"]) == edges[0]
    waves = {path.attrib["class"]: path.attrib["d"] for path in drawn.iterfind(f"{SVG}path")}
    assert waves.keys() == {"caller", "bot"}
    loud = [x for x, y in (p.split(",") for p in waves["bot"].strip("MZ").split()) if float(y) < 75]
    assert min(map(float, loud)) == pytest.approx(edges[1], abs=6)
    assert drawn.findtext(f"{SVG}text[@class='gap']") == "0.80 s"
    assert len(lines(drawn, "stage")) == 2


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (turn(secs=None, error="the bot was silent for 15 s & more"), "no answer"),
        (turn(secs=-0.4), "-0.40 s"),
        (turn(secs=0.6, voice_to_voice_secs=2.0), "first sound"),
        (turn(secs=0.6, voice_to_voice_secs=None), "first sound"),
        (TurnResult("x<y", error="the <bot> hung up"), "the <bot> hung up"),
        (turn(silent_after_secs=0.6), "silent 0.60 s after the interruption began"),
    ],
)
def test_odd_turns_have_well_formed_pictures(
    page: Callable[..., str], odd: TurnResult, text: str
) -> None:
    assert text in " ".join(picture(page(odd)).itertext())


# ---- the report


def test_page_is_self_contained_and_escaped(page: Callable[..., str]) -> None:
    """No script, no link, no file; text from outside is no markup; the worst turn comes first."""
    turns = [
        turn("a", 0.5),
        turn("b<i>", 1.5, silent_after_secs=0.3),
        turn("c", None, error="<silent>"),
    ]
    html = page(*turns, about="3 recordings into <http://127.0.0.1:7860>.")
    found = Markup(html)
    assert found.refers == []
    assert {"i", "silent"}.isdisjoint(found.tags)
    assert "url(" not in html
    assert found.tags.count("svg") == 3
    for text in ("<b>Till nine</b> & later", "2 of 3", "Where the time goes"):
        assert text in found.text
    order = [found.text.index(f"{name}, run 1, caller 1:") for name in ("c", "b<i>", "a")]
    assert order == sorted(order)
    assert "Where the time goes" not in page(turn(stages={}))


def test_folder_holds_page_and_rows(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    check_folder(folder)
    answered = replace(turn("open/sunday", 0.51234), run=2)
    write_report(folder, [answered, turn(secs=None, error="silent")], "About.")
    first, second = json.loads((folder / "replay.json").read_text())
    assert (first["recording"], first["run"]) == ("open/sunday", 2)
    assert (first["voice_to_voice_secs"], first["error"]) == (0.5123, None)
    assert (second["voice_to_voice_secs"], second["error"]) == (None, "silent")
    names = (
        "recording run caller voice_to_voice_secs first_sound_secs error silent_after_secs "
        "answer_text understood_text stages record late_secs bot_late_secs"
    )
    assert " ".join(first) == " ".join(second) == names
    assert "About." in (folder / "report.html").read_text()


def test_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"report: .*file.* cannot be written to"):
        check_folder(tmp_path / "file")
