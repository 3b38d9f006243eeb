"""What a replay comes to, and the page that shows it."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.tools.replay.conversation import HeardTurn, Waves
from pipecat_hedge.tools.replay.picture import LANE, WIDTH, picture
from pipecat_hedge.tools.replay.report import check_folder, report_html, write_report
from pipecat_hedge.tools.replay.summary import summarise
from pipecat_hedge.tools.replay.told import STAGES


def turn(
    recording: str = "hours",
    secs: float | None = 0.8,
    *,
    late_secs: float = 0.002,
    error: str | None = None,
    silent_secs: float | None = None,
    run: int = 1,
) -> HeardTurn:
    """A caller who speaks for a second, and a bot that answers after ``secs``."""
    at = np.arange(240) / 60
    caller = np.where((at > 0.2) & (at < 1.2), 0.5, 0.001)
    bot = np.where(at > 1.2 + (secs or 9.0), 0.4, 0.0)
    waves = Waves(caller, bot, 4.0, 1.2, None if secs is None else 1.2 + secs)
    return HeardTurn(
        recording,
        run=run,
        voice_to_voice_secs=secs,
        first_sound_secs=secs,
        error=error,
        silent_after_secs=silent_secs,
        answer_text="<b>Till nine</b> & later",
        understood_text="open?",
        stages={"turn_end": 0.4, "first_text": 0.6},
        late_secs=late_secs,
        waves=waves,
    )


# ---- figures


def test_percentiles_by_recording_and_over_all() -> None:
    """Those that were not answered are counted, and have no latency."""
    turns = [turn("a", secs / 100) for secs in range(1, 21)]
    turns += [turn("b", None, error="silent"), turn("b", 3.0, silent_secs=0.4)]
    summary = summarise(turns)
    a, b = summary.recordings
    assert (a.name, a.turns, a.answered, a.p50, a.p95, a.most) == ("a", 20, 20, 0.1, 0.19, 0.2)
    assert (b.name, b.turns, b.answered, b.p50, b.p95, b.most) == ("b", 2, 1, 3.0, 3.0, 3.0)
    assert (b.silent_p50, b.silent_most, a.silent_p50) == (0.4, 0.4, None)
    assert (summary.everything.turns, summary.everything.answered) == (22, 21)
    assert summary.everything.most == 3.0


def test_where_the_time_goes() -> None:
    """The median of each stage and of the answer, of turns that have what most turns have."""
    quick = dataclasses.replace(turn(secs=0.7), stages={"turn_end": 0.3, "llm_started": 0.31})
    summary = summarise([turn(secs=0.8), turn(secs=0.9), turn(secs=1.0), quick])
    assert summary.stages == {"turn_end": 0.4, "first_text": 0.6, "heard": 0.9}
    assert summary.stages_told == "turn end 0.40 s, first text 0.60 s, heard 0.90 s"
    assert "Where the time goes" in report_html([quick], "About.")
    mute = dataclasses.replace(turn(), stages={})
    assert summarise([mute]).stages == {}
    assert "Where the time goes" not in report_html([mute], "About.")


def test_a_filler_takes_no_part_in_where_the_time_goes() -> None:
    """It is the answer that is heard; a turn that ends with a filler is left out."""
    first = dataclasses.replace(turn(secs=3.0), first_sound_secs=1.2)
    stages = {"turn_end": 0.4, "tts_started": 1.1}
    unanswered = dataclasses.replace(
        first, voice_to_voice_secs=None, stages=stages, error="a filler was heard, but no answer"
    )
    assert summarise([first, unanswered]).stages == {**turn().stages, "heard": 3.0}
    assert summarise([unanswered]).stages == {}


_MOMENTS = st.lists(st.floats(0, 10), min_size=6, max_size=6).map(sorted)


@given(st.lists(st.tuples(_MOMENTS, st.sets(st.sampled_from([*STAGES.values()]))), min_size=1))
def test_stages_come_out_in_their_order(turns: list[tuple[list[float], set[str]]]) -> None:
    """Whatever stages some turns lack; the last is as high as p50 where all turns are alike."""
    heard = [
        HeardTurn(
            "hours",
            voice_to_voice_secs=moments[-1],
            first_sound_secs=moments[-1],
            stages={
                name: at
                for name, at in zip(STAGES.values(), moments[:-1], strict=True)
                if name in told
            },
        )
        for moments, told in turns
    ]
    summary = summarise(heard)
    assert list(summary.stages.values()) == sorted(summary.stages.values())
    if summary.stages and all(t.stages.keys() == heard[0].stages.keys() for t in heard):
        assert summary.stages["heard"] == summary.everything.p50


def test_nobody_was_answered() -> None:
    """There is a page about that, too."""
    summary = summarise([turn(secs=None, error="the bot was silent for 15 s")])
    assert summary.everything.p50 is None
    assert summary.everything.answered == 0


def test_who_fell_behind() -> None:
    """It says when the machine was the bottleneck, and in how many turns."""
    assert summarise([turn(late_secs=0.019)]).pacing.kept_up
    pacing = summarise([turn(), turn(late_secs=0.15), turn(late_secs=0.03)]).pacing
    assert not pacing.kept_up
    assert pacing.told.startswith(
        "the machine, not the bot, was the bottleneck in 2 of 3 turns: the caller's frames were up "
        "to 150 ms late; "
    )
    pacing = summarise([turn(), dataclasses.replace(turn(), bot_late_secs=0.4)]).pacing
    assert not pacing.kept_up
    assert pacing.told.startswith(
        "the bot's machine was the bottleneck in 1 of 2 turns: its sound came up to 400 ms late"
    )


# ---- pictures


def test_a_picture_marks_the_gap() -> None:
    """From the caller's last sound to the bot's first, with its length."""
    drawn = ElementTree.fromstring(picture(turn(secs=0.8), alone=True))
    svg = "{http://www.w3.org/2000/svg}"
    band = drawn.find(f"{svg}rect[@class='band']")
    assert band is not None
    edges = [float(line.attrib["x1"]) for line in drawn.iterfind(f"{svg}line[@class='edge']")]
    assert len(edges) == 2
    assert float(band.attrib["x"]) == edges[0]
    per_second = (edges[1] - edges[0]) / 0.8
    ticks = [float(line.attrib["x1"]) for line in drawn.iterfind(f"{svg}line[@class='tick']")]
    assert ticks[2] - ticks[0] == pytest.approx(per_second, abs=0.3), "a tick each half second"
    assert edges[0] == pytest.approx(ticks[0] + 1.2 * per_second, abs=0.3)
    waves = {path.attrib["class"]: path.attrib["d"] for path in drawn.iterfind(f"{svg}path")}
    assert waves.keys() == {"caller", "bot"}
    gap = drawn.find(f"{svg}text[@class='gap']")
    assert gap is not None
    assert gap.text == "0.80 s"
    assert len(drawn.findall(f"{svg}line[@class='stage']")) == 2


@pytest.mark.parametrize(
    ("answered", "words", "name"),
    [(2.0, "Till nine.", "filler"), (None, "", "filler"), (None, "We are", "sound")],
)
def test_a_picture_names_a_sound_that_is_no_answer(
    answered: float | None, words: str, name: str
) -> None:
    """Above its beginning, in the caller's lane, who is silent: it is not drawn over a wave."""
    heard = dataclasses.replace(
        turn(secs=0.6),
        voice_to_voice_secs=answered,
        error=None if answered else "no answer",
        answer_text=words,
    )
    drawn = ElementTree.fromstring(picture(heard))
    svg = "{http://www.w3.org/2000/svg}"
    (label,) = (text for text in drawn.iterfind(f"{svg}text") if text.text in ("filler", "sound"))
    gap, mark = drawn.find(f"{svg}text[@class='gap']"), drawn.find(f"{svg}line[@class='other']")
    assert gap is not None
    assert mark is not None
    assert label.text == name
    assert float(label.attrib["y"]) <= float(gap.attrib["y"]) - 12, "nor over what the gap is told"
    assert float(label.attrib["y"]) <= LANE
    bot = drawn.find(f"{svg}path[@class='bot']")
    assert bot is not None
    points = (point.split(",") for point in bot.attrib["d"].strip("MZ").split())
    loud = [float(x) for x, y in points if float(y) < LANE * 1.5]
    assert float(mark.attrib["x1"]) == pytest.approx(min(loud), abs=4)
    assert 0 < float(label.attrib["x"]) - float(mark.attrib["x1"]) < 10


def test_a_picture_tells_an_error_within_its_width() -> None:
    """However late the caller has finished; the details are on the page."""
    why = "a sound was heard (a filler perhaps), but the bot did not finish its answer within 15 s"
    odd = turn(secs=None, error=f"{why}; its last messages were metrics, bot-llm-started")
    assert odd.waves is not None
    for spoken_secs in (0.5, 2.0, 2.7, 3.9):
        late = dataclasses.replace(odd.waves, spoken_secs=spoken_secs)
        drawn = ElementTree.fromstring(picture(dataclasses.replace(odd, waves=late)))
        gap = drawn.find("{http://www.w3.org/2000/svg}text[@class='gap']")
        assert gap is not None
        assert gap.text == why
        at, width = float(gap.attrib["x"]), 6.4 * len(why)
        begins = at if gap.attrib["text-anchor"] == "start" else at - width
        assert 0 <= begins <= WIDTH - width


@pytest.mark.parametrize(
    "odd",
    [
        turn(secs=None, error="the bot was silent for 15 s & more"),
        turn(secs=-0.4),
        HeardTurn("x<y", error="the bot hung up"),
        turn(silent_secs=0.6),
    ],
)
def test_odd_turns_have_pictures_too(odd: HeardTurn) -> None:
    """Well-formed ones, which say what was wrong."""
    drawn = ElementTree.fromstring(picture(odd, alone=True))
    words = " ".join(drawn.itertext())
    assert (odd.error or "s") in words
    assert ("silent 0.60 s" in words) is (odd.silent_after_secs is not None)


# ---- the report


class Page(HTMLParser):
    """Collects a page's tags and the addresses in it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_needs_nothing_else() -> None:
    """No script, no link, no file; words from outside are words, not markup."""
    turns = [turn("a", 0.5), turn("b<i>", 1.5, silent_secs=0.3), turn("c", None, error="silent")]
    html = report_html(turns, "3 recordings into http://127.0.0.1:7860.")
    page = Page()
    page.feed(html)
    assert page.addresses == []
    assert {"script", "link", "img", "i"}.isdisjoint(page.tags)
    assert "url(" not in html
    assert page.tags.count("svg") == 3
    words = "".join(page.words)
    assert "<b>Till nine</b> & later" in words
    assert "2 of 3" in words
    order = [words.index(f"{name}, run 1") for name in ("c", "b<i>", "a")]
    assert order == sorted(order), "what is worst comes first"


def test_the_bots_own_record_is_shown() -> None:
    """Who answered and who was asked; whatever else a bot sends is left alone."""
    attempts = [{"provider": "a", "outcome": "superseded"}, {"provider": "b<i>", "outcome": "won"}]
    record = {"type": "turn", "ttft_secs": 0.42, "winner": "b<i>", "attempts": attempts}
    html = report_html([dataclasses.replace(turn(), record=record)], "About.")
    assert "first token after 0.42 s, winner b&lt;i&gt;, a superseded, b&lt;i&gt; won" in html
    for odd in ({"attempts": 3, "ttft_secs": "x", "winner": None}, {"attempts": [1, {}]}):
        assert "own record" not in report_html([dataclasses.replace(turn(), record=odd)], "About.")


def test_a_folder_of_it(tmp_path: Path) -> None:
    """The page, an object a turn, and a picture each."""
    folder = tmp_path / "deep" / "out"
    check_folder(folder)
    write_report(
        folder, [turn("open/sunday", 0.51234, run=2), turn(secs=None, error="silent")], "About."
    )
    first, second = json.loads((folder / "replay.json").read_text())
    assert (first["recording"], first["run"]) == ("open/sunday", 2)
    assert (first["voice_to_voice_secs"], first["error"]) == (0.5123, None)
    assert (second["voice_to_voice_secs"], second["error"]) == (None, "silent")
    assert "waves" not in first
    for row in (first, second):
        ElementTree.fromstring((folder / row["picture"]).read_text())
    assert re.search("About", (folder / "report.html").read_text())


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """Is found out before the calls are made."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"report: .*file.* cannot be written to"):
        check_folder(tmp_path / "file")
