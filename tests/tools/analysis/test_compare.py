"""How much answers to the same turns differ."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from pipecat.classifiers.llm.classifier import LLMClassifier

from pipecat_hedge import HedgePolicy
from pipecat_hedge.cli import main
from pipecat_hedge.race import DrainedAnswer
from pipecat_hedge.testing import Say, Wait
from pipecat_hedge.tools.analysis.agreement import Said, disagreements
from pipecat_hedge.tools.analysis.compare import threshold_for
from pipecat_hedge.tools.analysis.judge import judge, judge_model
from pipecat_hedge.tools.analysis.pairs import Pair, read_pairs, wilson
from pipecat_hedge.tools.simulator import Simulator
from tests.service.builders import racing, scripted
from tests.support.line import Line
from tests.support.simulated import close

BOOK = '[["book", {"guests": 2, "at": "19:00"}]]'


@pytest.mark.parametrize(
    ("one", "other", "differs_by"),
    [
        pytest.param("We open at noon.", "Our doors open at 12.", [], id="paraphrase"),
        pytest.param("Yes, at 7 pm.", "Sure, at 19:00 then.", [], id="the same time"),
        pytest.param("It is $1,200.00 in all.", "In total $1200.", [], id="the same price"),
        pytest.param("It costs 12 euros.", "It costs 21 euros.", ["figures"], id="changed price"),
        pytest.param("See you on Friday.", "See you on Sunday.", ["dates"], id="changed day"),
        pytest.param("Yes, we are open.", "No, we are not open.", ["polarity"], id="negation"),
        pytest.param("Yes, we are open.", "Yes, we aren't open.", ["polarity"], id="contraction"),
        pytest.param("It is $120.", "A hundred and twenty dollars.", [], id="number in words"),
        pytest.param(
            "Twenty-five euros.", "Twenty or five euros.", ["figures"], id="parts of a number"
        ),
        pytest.param("At seven thirty.", "At 7:30.", ["figures"], id="time in words"),
        pytest.param("Dial five one two.", "Dial two one five.", ["figures"], id="digit by digit"),
        pytest.param("The second floor.", "The third floor.", ["figures"], id="ordinals"),
        pytest.param(
            "Yes, we are open. We deliver, too.",
            "Yes, we are open. We do not deliver.",
            ["polarity"],
            id="negation in a later sentence",
        ),
        pytest.param("No. We do not deliver.", "We don't deliver.", [], id="no, and why"),
        pytest.param("It is blue.", "I'm sorry, but I am.", ["refusal"], id="refusal"),
        pytest.param(
            "Yes, we are open.", "Yes. " + "We are open all day. " * 9, ["length"], id="rambles"
        ),
    ],
)
def test_seeded_differences_are_found(one: str, other: str, differs_by: list[str]) -> None:
    assert disagreements(Said(one), Said(other)) == differs_by
    assert disagreements(Said(other), Said(one)) == differs_by


@pytest.mark.parametrize(
    ("calls", "differs"),
    [
        ('[["book", {"at": "19:00 ", "guests": 2.0}]]', False),
        ('[["book", {"at": "19:00", "guests": "2"}]]', False),
        ('[["book", {"at": "19:00", "guests": "3"}]]', True),
        ('[["book", {"guests": 3, "at": "19:00"}]]', True),
        ('[["cancel", {"guests": 2, "at": "19:00"}]]', True),
        ("[]", True),
    ],
)
def test_tool_calls_are_compared_by_name_and_arguments(calls: str, differs: bool) -> None:
    assert disagreements(Said("", BOOK), Said("", calls)) == (["tools"] if differs else [])


def test_interval_is_wilsons() -> None:
    """Against the values of his formula for 8 of 10."""
    assert wilson(8, 10) == pytest.approx((0.490, 0.943), abs=1e-3)
    assert wilson(10, 10)[1] == pytest.approx(1.0)


def line(one: str, other: str, **more: Any) -> str:
    record = {"winner": "a", "provider": "b", "complete": True, "said": one, "text": other}
    return json.dumps({"said_tool_calls": "[]", "tool_calls": "[]", **record, **more})


def test_command_shows_pairs_and_fails_below_a_floor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "losers.jsonl"
    lines = [line("We open at noon.", "At 12 we open.")] * 8
    lines += [line("It costs 12 euros.", "It does not cost 21 euros.", question="How much?")] * 2
    log.write_text("\n".join([*lines, line("x", "y", complete=False)]))
    assert main(["compare", str(log)]) == 0
    out = capsys.readouterr().out
    assert "a / b" in out
    assert "80.0 % (49.0 % to 94.3 %)" in out
    worst = "figures, polarity: How much?\n  a (heard): It costs 12 euros.\n  b: It does not cost"
    assert worst in out
    assert main(["compare", str(log), "--floor", "0.9", "--json"]) == 1
    (figures,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert (figures["turns"], figures["differs_by"]) == (10, {"figures": 2, "polarity": 2})
    log.write_text("")
    assert main(["compare", str(log)]) == 2
    assert "has no answers side by side" in capsys.readouterr().err


def test_heard_answer_is_marked_wherever_its_name_sorts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    losers, shadow = tmp_path / "losers.jsonl", tmp_path / "shadow.jsonl"
    losers.write_text(line("It is 3.", "It is 4.", winner="z"))
    answers = {"said": "It is 5.", "faq": "It is 6."}
    shadow.write_text(json.dumps({"question": "Really?", "answers": answers, "similarity": 0.9}))
    assert main(["compare", str(losers), str(shadow)]) == 0
    out = capsys.readouterr().out
    assert "  b: It is 4.\n  z (heard): It is 3." in out
    assert "figures: Really?\n  faq: It is 6.\n  said (heard): It is 5." in out


def test_every_check_fits_80_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a pipe, with names as long as those of models on Bedrock."""
    log = tmp_path / "losers.jsonl"
    names = {"winner": "bedrock/eu.anthropic.claude-haiku", "provider": "azure/gpt-4.1-mini"}
    log.write_text(line("It costs 12 euros.", "It costs 21.", **names))
    assert main(["compare", str(log)]) == 0
    out = capsys.readouterr().out
    assert all(len(each) <= 80 for each in out.splitlines())
    checks = next(each for each in out.splitlines() if "tools" in each)
    assert checks.split() == [
        "providers",
        "tools",
        "figures",
        "dates",
        "polarity",
        "refusal",
        "length",
    ]


def test_unreadable_lines_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "losers.jsonl"
    deep = "[" * 900 + "]" * 900
    bad = ["a secret", "17", '{"a secret": 1}', line("x", "y", text=3), deep, "[" * 9_000]
    good = line("Yes.\u2028Till 9.", "Yes, till nine.")
    log.write_text("\n".join([good, *bad, "", good]), encoding="utf-8-sig")
    assert main(["compare", str(log)]) == 0
    out = capsys.readouterr().out
    assert "6 lines skipped: losers.jsonl:2: not JSON; losers.jsonl:3: no answers" in out
    assert "secret" not in out
    assert main(["compare", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["skipped"], found["comparisons"][0]["turns"]) == (6, 2)


def test_binary_file_is_one_line_of_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "call.wav"
    log.write_bytes(bytes(range(256)))
    assert main(["compare", str(log)]) == 2
    err = capsys.readouterr().err
    assert err.endswith("call.wav is not text: give a log of drained answers\n")
    assert len(err.splitlines()) == 1


def test_answers_cannot_steer_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "losers.jsonl"
    log.write_text(line("It is 3.\x1b[2J", "4\ud800", winner="a\x1b[3m", question="\u202eWhy?"))
    assert main(["compare", str(log)]) == 0
    out = capsys.readouterr().out
    assert "figures: Why?\n  a[3m (heard): It is 3.[2J\n  b: 4\n" in out


@pytest.mark.live
@pytest.mark.parametrize(("probability", "agree"), [(0.9, 1.0), (0.1, 0.0)])
async def test_a_model_judges_a_sample(tmp_path: Path, probability: float, agree: float) -> None:
    log = tmp_path / "losers.jsonl"
    log.write_text("\n".join([line("We open at noon.", "At 12 we open.")] * 20))
    verdict = quote(json.dumps({"same": {"probability": probability}}), safe="")
    async with Simulator() as sim:
        model = judge_model(f"fixed@ttft=0,tps=1000,answer={verdict}", sim.openai_url)
        (found,) = await judge(read_pairs([str(log)])[0], model, 5)
        assert len(sim.ledger.requests) == 5
        assert isinstance(model, LLMClassifier)
        await close(model.llm)
    assert (found.names, found.asked, found.agreement) == (("a", "b"), 5, agree)
    assert found.low < agree + 0.1
    assert len(found.missed) == (0 if agree else 5)


@pytest.mark.live
def test_judge_that_cannot_be_asked_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "losers.jsonl"
    log.write_text(line("Yes.", "No."))
    assert main(["compare", str(log), "--judge", "m", "--judge-url", "http://127.0.0.1:1/v1"]) == 0
    end = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"; 1 pair without a judgement: .*failed to answer: Connection error", end)


def test_judge_needs_a_key_or_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    log = tmp_path / "losers.jsonl"
    log.write_text(line("Yes.", "No."))
    assert main(["compare", str(log), "--judge", "gpt-4.1-mini"]) == 2
    assert "needs OPENAI_API_KEY, or --judge-url" in capsys.readouterr().err


def test_threshold_follows_from_the_stated_error_rate() -> None:
    def shadow(similarity: float, *, wrong: bool) -> Pair:
        answers = Said("Yes."), Said("No.")
        return Pair(("faq", "said"), answers, 1, "", similarity, ("polarity",) if wrong else ())

    pairs = [shadow(0.96, wrong=False)] * 300 + [shadow(0.93, wrong=True)] * 30
    assert threshold_for(pairs, 0.02) == 0.96
    assert threshold_for(pairs, 0.2) == 0.93
    assert threshold_for(pairs[:20], 0.02) is None


@pytest.mark.virtual_time
@pytest.mark.parametrize(("share", "drained"), [(1.0, 20), (0.0, 0)])
async def test_drained_losers_are_logged_beside_what_was_said(
    tmp_path: Path, share: float, drained: int, logged: list[str]
) -> None:
    """The question is nowhere else."""
    log, turns = tmp_path / "losers.jsonl", tmp_path / "turns.jsonl"
    policy = HedgePolicy.race(2, losers="drain", drain_share=share)
    members = (
        scripted(Wait(0.1), Say("Yes. "), Wait(0.5), Say("Till nine.")),
        scripted(Wait(0.2), Say("Till 9.")),
    )
    async with Line(racing(*members, policy=policy, drained_log=log, turn_log=turns)) as line:
        for turn in range(20):
            await line.ask(f"How about day {turn}?")
            await line.report(turn + 1)
    records = [json.loads(text) for text in log.read_text().splitlines()] if drained else []
    assert len(records) == drained
    assert "How about" not in turns.read_text() + "".join(logged)
    for turn, record in enumerate(records):
        assert record["question"] == f"How about day {turn}?"
        assert (record["winner"], record["said"]) == ("a", "Yes. Till nine.")
        assert (record["provider"], record["text"]) == ("b", "Till 9.")


@pytest.mark.virtual_time
async def test_loser_that_finishes_first_is_logged_with_the_whole_answer_and_holds_no_permit() -> (
    None
):
    slow = scripted(Wait(0.1), Say("Yes. "), Wait(2.5), Say("Till nine."))
    members = slow, scripted(Wait(0.2), Say("Till 9."))
    llm = racing(*members, policy=HedgePolicy.race(2, losers="drain"))
    answers: list[DrainedAnswer] = []

    @llm.event_handler("on_loser_drained")
    async def on_loser_drained(_: object, answer: DrainedAnswer) -> None:
        answers.append(answer)

    async with Line(llm) as line:
        asked = asyncio.create_task(line.ask())
        await asyncio.sleep(1.0)
        assert [state.in_flight for state in llm.provider_states()] == [1, 0]
        await asked
        await asyncio.sleep(0.1)
        assert [answer.said for answer in answers] == ["Yes. Till nine."]
        asked = asyncio.create_task(line.ask())
        await asyncio.sleep(1.0)
        await line.interrupt()
        await asyncio.sleep(1.0)
        assert [answer.said for answer in answers] == ["Yes. Till nine.", "Yes. "]
        asked.cancel()
