"""Curated answers: found by other words, and never for another question."""

from __future__ import annotations

import asyncio
import datetime
import threading
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge import FaqAnswers
from pipecat_hedge.answers import FaqEntry
from pipecat_hedge.answers.faq import Faq
from pipecat_hedge.answers.meaning import Vocabulary
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service.known_answers import Question
from tests.answers.phrases import ENTRIES, PARAPHRASES

TODAY = datetime.date(2026, 11, 25)
QUESTIONS = [(q, name) for name, asked in ENTRIES.items() for q in asked] + PARAPHRASES


def faq(*left_out: str, **options: Any) -> Faq:
    entries = [FaqEntry(questions=q, answer=n) for n, q in ENTRIES.items() if n not in left_out]
    return Faq(entries, synonyms=[["fit", "seat", "hold"]], **options)


def all_alike(texts: Sequence[str]) -> list[list[float]]:
    """The worst embeddings that there can be."""
    return [[1.0, 0.0] for _ in texts]


def found(faq: Faq, text: str, threshold: float = 0.92, *, is_first: bool = False) -> str | None:
    match = asyncio.run(faq.match(text, threshold, TODAY, is_first=is_first))
    return None if match is None else match.entry.answer


@pytest.mark.parametrize("embed", [None, all_alike])
def test_no_question_gets_the_answer_to_another(embed: Any) -> None:
    """Of all pairs, opposites and near-duplicates, even if the embeddings see no difference."""
    threshold = 0.0 if embed is None else 0.92
    for name in ENTRIES:
        others = faq(name, embed=embed)
        for question in (q for q, of in QUESTIONS if of == name):
            assert found(others, question, threshold, is_first=True) is None, question


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Is the trip from Bonn to Kiel free?", "Is the trip from Kiel to Bonn free?"),
        ("Is red cheaper than blue?", "Is blue cheaper than red?"),
        ("Do I have to pay a deposit?", "Can I pay a deposit?"),
        ("Are all dishes vegan?", "Are the dishes vegan?"),
        ("Is it open by default?", "Is it closed by default?"),
        ("Can I come without a ticket?", "Can I come with a ticket?"),
        ("Is lunch at 12:30?", "Is lunch at 13:30?"),
        ("Are you only open on Friday?", "Are you open on Friday?"),
        ("Are you just open on Friday?", "Are you open on Friday?"),
        ("Do you have openings on Friday?", "Are you open on Friday?"),
        ("Is the bar open on Friday?", "Are you open on Friday?"),
        ("Are you open by 5?", "Are you open at 5?"),
        ("Was breakfast included?", "Is breakfast included?"),
        ("Where did I park?", "Where can I park?"),
        ("Can I get an appointment?", "Do I need an appointment?"),
        ("Will I have to bring my dog?", "Can I bring my dog?"),
        ("Can you bring wine?", "Can I bring wine?"),
        ("Do you have dogs?", "Are dogs allowed?"),
        ("Why do you charge for parking?", "How much do you charge for parking?"),
        ("How much baggage can I bring?", "How much is a bag?"),
        ("Which dishes are vegan?", "Are the dishes vegan?"),
        ("Where am I?", "Where are you?"),
        ("How are you?", "Where are you?"),
        ("What's the limit on my debit card?", "What's the limit on my credit card?"),
        ("Is there a bus from the airport?", "Is there a bus to the airport?"),
        ("Can I exchange euros for dollars?", "Can I exchange dollars for euros?"),
        ("Is there a table for 2 adults and 3 kids?", "Is there a table for 3 adults and 2 kids?"),
        ("Should I eat before the treatment?", "Should I have the treatment before I eat?"),
        ("Do you have soup without nuts?", "Don't you have soup with nuts?"),
        ("Can I use my wife's pass?", "Can my wife use my pass?"),
        ("Can a friend collect my parcel?", "Can I collect a friend's parcel?"),
        ("Can I call the doctor?", "Will the doctor call me?"),
        ("Can the flight be cancelled?", "Has the flight been cancelled?"),
        ("Can I reserve the table?", "Is the table reserved?"),
        ("When can I collect my parcel?", "When will my parcel be collected?"),
        ("When can I get an appointment?", "When is my appointment?"),
        ("Where can I order?", "Where is my order?"),
        ("Are you open on Sundays?", "Are you open this Sunday?"),
        ("Is there a monthly fee?", "Is there a fee this month?"),
        ("Do I have to pay the final month?", "Do I have to pay last month?"),
        ("Is there a bus timetable?", "Is the bus on time?"),
        ("Is there parking nearby?", "Is there a park nearby?"),
        ("Is the beach closed?", "Are you close to the beach?"),
        ("Where can I pay for my car?", "Where can I charge my car?"),
        ("Can I return a ticket?", "Can I get a return ticket?"),
        ("Can I order by phone?", "Can I order a phone?"),
        ("Is there a ski shop?", "Can I store my skis?"),
        ("Do you offer installation?", "Do you offer instalments?"),
        ("Do I need to be present?", "Do I need a present?"),
        ("Are the tables free of charge?", "Are there any free tables?"),
        ("Are the rooms free of charge?", "Are there any rooms free?"),
        ("Can I have fries instead of salad?", "Can I have salad instead of fries?"),
        ("Do you charge for a park tour?", "Do you charge for parking?"),
        ("When do you close?", "When are you closed?"),
        ("Do I have to pay for delivery?", "Do I have to pay on delivery?"),
        ("Can I pay monthly?", "Is there a monthly fee?"),
        ("Can I complain to the driver?", "Can I complain about the driver?"),
        ("Can I have the car for a week?", "Can I have the car in a week?"),
        ("After what time can I check in?", "Before what time can I check in?"),
        ("Do I need an account?", "Do I need an accountant?"),
        ("Can I call you?", "Can you please call me?"),
        ("Do I have to return the package?", "Do I have to return the packaging?"),
        ("How many devices can share one plan?", "How many plans can share one device?"),
        ("Are my devices visible to guests?", "Are guests visible to my devices?"),
        ("Can I see the devices of guests?", "Can guests see my devices?"),
        ("Can my dog visit the vet?", "Can the vet visit my dog?"),
        ("When does the restaurant open?", "When does the gym open?"),
        ("When does the restaurant open?", "When do you open?"),
    ],
)
def test_small_words_that_change_the_question_count(one: str, other: str) -> None:
    for asked, known in ((one, other), (other, one)):
        only = Faq([FaqEntry(questions=[known], answer="No.")], embed=all_alike)
        assert found(only, asked, is_first=True) is None
        assert found(only, known, is_first=True) == "No."


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Do you have Wi-Fi?", "Is there wifi?"),
        ("What is your e-mail address?", "What's your email address?"),
        ("When is check-in?", "When is checkin?"),
        ("Do you close at 8 p.m.?", "Do you close at 8 o'clock in the evening?"),
        ("What happens if no one is home?", "What happens if nobody's home?"),
    ],
)
def test_spelling_does_not_count(one: str, other: str) -> None:
    assert found(Faq([FaqEntry(questions=[one], answer="Yes.")]), other) == "Yes."


def phrases(file: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def whole_faqs(named: dict[str, Any]) -> dict[str, list[str]]:
    """By FAQ, the names of its entries; one that names no FAQ is alone."""
    faqs = dict[str, list[str]]()
    for name, each in named.items():
        faqs.setdefault(each.get("faq", name), []).append(name)
    return faqs


def of_phrases_py() -> dict[str, Any]:
    asked = {
        name: {"questions": questions, "paraphrases": [], "others": [], "faq": "all"}
        for name, questions in ENTRIES.items()
    }
    for question, name in PARAPHRASES:
        asked[name]["paraphrases"].append(question)
    return asked


@pytest.mark.parametrize(
    ("file", "found_share"),
    [
        ("phrases.py", 0.4),
        ("business_phrases.toml", 0.15),
        ("phone_phrases.toml", 0.1),
        ("free_phrases.toml", 0.0),
        ("hard_phrases.toml", 0.25),
    ],
)
def test_paraphrases_are_found_and_other_questions_are_not(file: str, found_share: float) -> None:
    """With embeddings that see no difference."""
    named = of_phrases_py() if file == "phrases.py" else phrases(file)
    others, paraphrases = list[bool](), list[bool]()
    for names in whole_faqs(named).values():
        entries = [FaqEntry(questions=named[name]["questions"], answer=name) for name in names]
        whole = Faq(entries, embed=all_alike)
        for name in names:
            others += [found(whole, other) == name for other in named[name]["others"]]
            answers = [found(whole, phrase) for phrase in named[name]["paraphrases"]]
            assert set(answers) <= {None, name}
            paraphrases += [answer == name for answer in answers]
    print(
        f"\n{file}: of {len(others)} other questions {sum(others)} are answered, "
        f"of {len(paraphrases)} paraphrases {sum(paraphrases)} are found"
    )
    assert not any(others)
    assert sum(paraphrases) >= found_share * len(paraphrases)


def test_entries_that_cannot_be_told_apart_are_left_to_the_model() -> None:
    entries = {"Yes.": "Can I volunteer?", "On Mondays.": "May I volunteer?"}
    club = Faq([FaqEntry(questions=[asked], answer=says) for says, asked in entries.items()])
    assert found(club, "Could I volunteer?") is None
    today = [
        FaqEntry(questions=["When do you open?"], answer=says) for says in ("At ten.", "Noon.")
    ]
    assert found(Faq(today), "When are you opening?") == "At ten."


@pytest.mark.parametrize(
    "file", [path.name for path in Path(__file__).parent.glob("*_phrases.toml")]
)
def test_each_curated_question_of_the_phrases_finds_itself(file: str) -> None:
    named = phrases(file)
    for names in whole_faqs(named).values():
        entries = [FaqEntry(questions=named[name]["questions"], answer=name) for name in names]
        whole = Faq(entries)
        for name in names:
            assert {found(whole, question) for question in named[name]["questions"]} == {name}


ODD = ["", "?", "...", "No", "No?", "no.", "the of a", "12", "1.5", "15", "€", "Où êtes-vous ?"]


@given(
    st.lists(
        st.one_of(
            st.sampled_from([*ODD, "你们几点开门？", "It", "How much is it?", "Where? " * 60]),
            st.text(),
        ),
        min_size=1,
        unique=True,
    ),
    st.booleans(),
)
@settings(deadline=None)
def test_any_curated_question_finds_itself(questions: list[str], with_embed: bool) -> None:
    """Also one that does not stand alone, has no words, or is long."""
    entries = [FaqEntry(questions=[each], answer=repr(each)) for each in questions]
    faq = Faq(entries, embed=all_alike if with_embed else None)
    for each in questions:
        assert found(faq, each, 1.0) == repr(each)


def test_curated_question_finds_itself_in_other_spelling() -> None:
    asked = ["How much is it?", "Can I volunteer?", "Do you have volunteers?"]
    faq = Faq([FaqEntry(questions=[each], answer=each) for each in asked])
    assert [found(faq, each.lower().replace("?", "")) for each in asked] == asked
    assert found(faq, "How much was it?") is None


def test_nearly_all_pairs_written_against_the_words_are_told_apart() -> None:
    """By testers who had read the words."""
    text = Path(__file__).with_name("hard_pairs.txt").read_text(encoding="utf-8")
    answered = 0
    pairs = [line.split(" | ") for line in text.splitlines()]
    for known, asked in pairs:
        answered += found(Faq([FaqEntry(questions=[known], answer="Yes.")]), asked) is not None
    print(f"\nhard_pairs.txt: of {len(pairs)} other questions {answered} are answered")
    assert answered <= 0.03 * len(pairs)


def test_long_text_is_no_question() -> None:
    assert found(faq(), "When do you open?" + " how much" * 20_000) is None


async def test_embeddings_decide_above_the_threshold() -> None:
    near = {"When do you open?": [1.0, 0.0], "When are you opening?": [0.95, 0.3122]}

    async def embed(texts: Sequence[str]) -> list[list[float]]:
        return [near.get(text, [0.0, 1.0]) for text in texts]

    entries = [FaqEntry(questions=["When do you open?"], answer="At noon.")]
    faq = Faq(entries, embed=embed)
    match = await faq.match("When are you opening?", 0.94, TODAY)
    assert match is not None
    assert match.similarity == pytest.approx(0.95, abs=1e-3)
    assert await faq.match("When are you opening?", 0.96, TODAY) is None
    with pytest.raises(ConfigurationError, match="embed must return a vector for each text"):
        await Faq(entries, embed=lambda texts: [[1.0]] * 3).match("When do you open up?", 0, TODAY)


async def test_function_that_embeds_runs_in_a_thread() -> None:
    threads: list[int] = []

    def embed(texts: Sequence[str]) -> list[list[float]]:
        threads.append(threading.get_ident())
        return all_alike(texts)

    assert await faq(embed=embed).match("When are you opening?", 0.9, TODAY) is not None
    assert len(threads) == 2
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("text", "alone"),
    [
        ("When do you open?", True),
        ("Is there parking?", True),
        ("Is it possible to pay by card?", True),
        ("How much does it cost to park?", True),
        ("Hello, how much is that?", False),
        ("And on Sunday?", False),
        ("What does it cost?", False),
        ("Do you have another one?", False),
        ("What about dogs?", False),
    ],
)
def test_questions_that_refer_to_something_do_not_stand_alone(text: str, alone: bool) -> None:
    assert Vocabulary().stands_alone(text) is alone


def test_file_is_read_and_expired_entries_are_silent(tmp_path: Path) -> None:
    path = tmp_path / "faq.toml"
    path.write_text(
        """
        synonyms = [["terrace", "garden"]]
        [[entries]]
        questions = ["Is the terrace open?"]
        answer = "It is."
        valid_until = 2026-11-25
        """
    )
    faq = Faq(path)
    assert found(faq, "Is the garden open?") == "It is."
    assert asyncio.run(faq.match("Is the garden open?", 0.9, datetime.date(2026, 11, 26))) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"has no \[\[entries\]\]"),
        ("[[entries]]\nanswer = 'x'", r"entries|0.questions: Field required"),
        ("[[entries]]\nquestions = []\nanswer = 'x'", "questions: List should have at least 1"),
        ("[[entry]]\nanswer = 'x'", r"has 'entry': it takes \[\[entries\]\] and synonyms"),
        ("[[", "cannot be read"),
    ],
)
def test_wrong_file_names_the_field(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "faq.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        Faq(path)


@pytest.mark.parametrize(("threshold", "answer"), [(0.9, "At noon."), (None, None), (0.96, None)])
async def test_threshold_decides_how_alike_embeddings_must_be(
    threshold: float | None, answer: str | None
) -> None:
    def embed(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0] if text == "When do you open?" else [0.91, 0.4146] for text in texts]

    entries = [FaqEntry(questions=["When do you open?"], answer="At noon.")]
    faq = FaqAnswers(entries, threshold=threshold, embed=embed)
    asked = Question.of(LLMContext([{"role": "user", "content": "When are you opening?"}]), [])
    assert await faq.find(asked) == answer
