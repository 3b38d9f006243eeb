"""What processes tell each other of their providers, and make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.fleet.merge import VERSION, UnknownVersion, advise, read_findings, write
from pipecat_hedge.limits.fleet_advice import NOTHING, Finding

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


findings = st.dictionaries(
    st.text(max_size=20),
    st.builds(
        Finding,
        found=st.sampled_from(["well", "down", "unsure"]),
        open_secs=st.floats(0, 100).map(lambda secs: round(secs, 3)),
        reason=st.text(max_size=40),
        closings=st.integers(0, 1000),
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
        '{"version": 3}',
        '{"version": 3, "providers": []}',
        "[" * 100_000,
        altered(found="dead"),
        altered(open_secs=-1),
        altered(open_secs="long"),
        altered(open_secs=float("inf")),
        altered(closings=-1),
        altered(closings=True),
        altered(closings=1.5),
    ],
)
def test_what_is_no_document_is_refused(text: str) -> None:
    """With an error that the shell expects."""
    with pytest.raises(ValueError, match="no document"):
        read_findings(text)


def test_another_version_is_told_from_a_damaged_one() -> None:
    """So that a person hears of a fleet of two releases; no provider is left alone for ever."""
    for other in (VERSION - 1, VERSION + 1):
        with pytest.raises(UnknownVersion, match=f"version {other}"):
            read_findings(f'{{"version": {other}, "anything": []}}')
    assert read_findings(altered(open_secs=1e9))["a"].open_secs == 3600
