"""What processes tell each other of their providers, and make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.policies.fleet import (
    NOTHING,
    Finding,
    UnknownVersion,
    advise,
    read_findings,
    write,
)
from pipecat_hedge.queue_test import TestCounts

DOWN = Finding("down", 40.0, "5 failures in a row")
WELL = Finding("well")


def fleet(*providers: list[Finding]) -> dict[str, dict[str, Finding]]:
    """One process for each list of findings, of providers a, b and so on."""
    return {
        f"process {number}": dict(zip("abc", findings, strict=False))
        for number, findings in enumerate(providers)
    }


def is_opened(own: Finding | None, *others: list[Finding]) -> bool:
    told = advise({} if own is None else {"a": own}, {}, fleet(*others))
    return told["a"].open_secs is not None


def test_one_process_does_not_stop_the_others() -> None:
    """Its own network may be broken."""
    assert not is_opened(WELL, [DOWN, WELL])
    assert not is_opened(None, [DOWN, WELL])


def test_two_processes_that_are_half_of_those_that_ask_are_believed() -> None:
    """Two of three and of four, not of five; who asks somebody else has no say."""
    assert is_opened(WELL, [DOWN, WELL], [DOWN, WELL])
    assert is_opened(WELL, [DOWN, WELL], [DOWN, WELL], [WELL])
    assert not is_opened(WELL, [DOWN, WELL], [DOWN, WELL], [WELL], [WELL])
    assert is_opened(None, [DOWN, WELL], [DOWN, WELL], *[[NOTHING, WELL]] * 5)


def test_who_finds_everybody_down_is_not_believed() -> None:
    """Neither as one that has it open, nor as one that asks."""
    assert not is_opened(WELL, [DOWN, DOWN], [DOWN, DOWN], [DOWN, DOWN])
    assert not is_opened(WELL, [DOWN], [DOWN])
    assert is_opened(WELL, [DOWN, WELL], [DOWN, WELL], *[[DOWN, DOWN]] * 5)


def test_what_is_opened_stays_so_for_as_long_as_the_others_have_it() -> None:
    """The median, with their reason."""
    others = [[Finding("down", secs, "no answer"), WELL] for secs in (10.0, 30.0, 60.0)]
    advice = advise({"a": WELL}, {}, fleet(*others))["a"]
    assert advice.open_secs == 30.0
    assert advice.reason == "the fleet: 3 of 4 processes have found so: no answer"


def test_an_answer_anywhere_is_a_reason_to_try() -> None:
    """Of a process that is known from before; what it did earlier is old news."""
    closed = Finding("well", closings=1)
    before, now = fleet([DOWN, WELL]), fleet([closed, WELL])
    assert advise({"a": DOWN}, before, now)["a"].try_it
    assert not advise({"a": DOWN}, now, now)["a"].try_it
    assert not advise({"a": DOWN}, {}, now)["a"].try_it


def test_a_refusal_anywhere_is_load() -> None:
    """Once, when it is news; also the first one of a process that had told nothing."""
    cut = Finding("well", cuts=1)
    before, now = {"process 0": {"b": WELL}}, fleet([cut, WELL])
    assert advise({}, before, now)["a"].is_busy
    assert not advise({}, now, now)["a"].is_busy
    assert not advise({}, {}, now)["a"].is_busy


def test_a_limit_begins_at_the_median_of_those_that_have_moved() -> None:
    """The broken ones' included, a limit is not hearsay."""
    limits = [Finding("well", limit=limit) for limit in (4, 9, 30)]
    assert advise({}, {}, fleet(*[[each] for each in limits], [WELL]))["a"].limit == 9
    assert advise({}, {}, fleet([WELL]))["a"].limit is None


def test_what_others_counted_in_tests_is_added_up_once() -> None:
    """Of those that were known before; what they had counted by then is old."""
    old, new = TestCounts(1, 2, 3, 4, 5.0), TestCounts(2, 4, 6, 5, 4.5)
    before = fleet([Finding("well", tested=old)], [WELL])
    now = fleet([Finding("well", tested=new)], [Finding("well", tested=old)], [DOWN])
    now["process 9"] = {"a": Finding("well", tested=new)}
    advice = advise({}, before, now)["a"]
    assert advice.others == 4
    assert advice.tested == TestCounts(2, 4, 6, 5, 4.5)


def test_of_who_was_not_heard_for_long_only_an_answer_is_news() -> None:
    """A cut and a test of minutes ago are not; and each is asked for itself."""
    counts = TestCounts(1, 2, 3, 4, 5.0)
    before = fleet([WELL], [WELL])
    now = fleet(*[[Finding("well", closings=1, cuts=1, tested=counts)]] * 2)
    both = advise({}, before, now, unheard=set(now))["a"]
    assert (both.try_it, both.is_busy, both.tested) == (True, False, TestCounts())
    one = advise({}, before, now, unheard={"process 0"})["a"]
    assert (one.try_it, one.is_busy, one.tested) == (True, True, counts)
    assert (both.others, one.others) == (2, 2)


findings = st.dictionaries(
    st.text(max_size=20),
    st.builds(
        Finding,
        found=st.sampled_from(["well", "down", "unsure"]),
        open_secs=st.floats(0, 100).map(lambda secs: round(secs, 3)),
        reason=st.text(max_size=40),
        closings=st.integers(0, 1000),
        limit=st.none() | st.integers(1, 1000),
        cuts=st.integers(0, 1000),
        tested=st.builds(
            TestCounts,
            *[st.integers(0, 1000)] * 4,
            st.floats(-100, 100).map(lambda lateness: round(lateness, 3)),
        ),
    ),
    max_size=5,
)


@given(findings)
def test_a_document_is_read_as_it_was_written(told: dict[str, Finding]) -> None:
    """Whatever the providers are called."""
    assert read_findings(write(told)) == told


@given(findings, st.integers(0, 10_000), st.characters())
def test_a_damaged_document_is_refused_or_read(
    told: dict[str, Finding], at: int, character: str
) -> None:
    """Nothing else is ever raised."""
    text = write(told)
    at %= len(text)
    try:
        read = read_findings(text[:at] + character + text[at + 1 :])
    except ValueError:
        return
    assert all(isinstance(each, Finding) for each in read.values())


def altered(**changes: Any) -> str:
    document = json.loads(write({"a": DOWN}))
    document["providers"]["a"] |= changes
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"version": 2}',
        '{"version": 2, "providers": []}',
        "[" * 100_000,
        altered(found="dead"),
        altered(open_secs=-1),
        altered(open_secs="long"),
        altered(open_secs=float("inf")),
        altered(closings=-1),
        altered(closings=True),
        altered(cuts=1.5),
        altered(tested=None),
        altered(tested=[0, 0, 0, 0.0]),
        altered(tested=[0, -1, 0, 0, 0.0]),
        altered(tested=[0, 0, 0, 0, float("nan")]),
        altered(tested=[0, 0, 0, 0, "late"]),
        altered(limit=0),
        altered(limit="many"),
    ],
)
def test_what_is_no_document_is_refused(text: str) -> None:
    """With an error that the shell expects."""
    with pytest.raises(ValueError, match="no document"):
        read_findings(text)


def test_another_version_is_told_from_a_damaged_one() -> None:
    """So that a person hears of a fleet of two releases; nobody is left alone for ever."""
    with pytest.raises(UnknownVersion, match="version 3"):
        read_findings('{"version": 3, "anything": []}')
    assert read_findings(altered(open_secs=1e9))["a"].open_secs == 3600
