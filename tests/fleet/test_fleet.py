"""What processes conclude from each other's breakers, and the documents that carry it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.fleet.document import VERSION, Document, UnknownVersion
from pipecat_hedge.providers.fleet_advice import NOTHING, Finding, advise

DOWN = Finding("down", 40.0, "5 failures in a row")
WELL = Finding("well")


def fleet(*providers: list[Finding]) -> dict[str, dict[str, Finding]]:
    """One process for each list of findings, of providers a, b and so on."""
    return {
        f"process {number}": dict(zip("abc", findings, strict=False))
        for number, findings in enumerate(providers)
    }


@pytest.mark.parametrize(
    ("own", "others", "opens"),
    [
        pytest.param(WELL, [[DOWN, WELL]], False, id="one process"),
        pytest.param(WELL, [[DOWN, WELL]] * 2, True, id="two of three"),
        pytest.param(WELL, [[DOWN, WELL]] * 2 + [[WELL]] * 2, False, id="two of five"),
        pytest.param(
            None, [[DOWN, WELL]] * 2 + [[NOTHING, WELL]] * 5, True, id="only users have a vote"
        ),
        pytest.param(WELL, [[DOWN, DOWN]] * 3, False, id="processes that find all down"),
        pytest.param(
            WELL, [[DOWN, WELL]] * 2 + [[DOWN, DOWN]] * 5, True, id="which have no vote either"
        ),
    ],
)
def test_two_processes_and_half_of_the_users_open_a_breaker(
    own: Finding | None, others: list[list[Finding]], opens: bool
) -> None:
    advice = advise({} if own is None else {"a": own}, {}, fleet(*others))
    assert (advice["a"].open_secs is not None) is opens


def test_breaker_opens_for_the_median_time_with_the_reason() -> None:
    others = [[Finding("down", secs, "no answer"), WELL] for secs in (10.0, 30.0, 60.0)]
    advice = advise({"a": WELL}, {}, fleet(*others))["a"]
    assert advice.open_secs == 30.0
    assert advice.reason == "the fleet: 3 of 4 processes have found so: no answer"


def test_new_answer_of_a_known_process_is_a_reason_to_try() -> None:
    before, now = fleet([DOWN, WELL]), fleet([Finding("well", closings=1), WELL])
    tries = [advise({"a": DOWN}, earlier, now)["a"].try_it for earlier in (before, now, {})]
    assert tries == [True, False, False]


documents = st.builds(
    Document,
    st.dictionaries(
        st.text(max_size=20),
        st.builds(
            Finding,
            found=st.sampled_from(["well", "down", "unsure"]),
            open_secs=st.floats(0, 100),
            reason=st.text(max_size=40),
            closings=st.integers(0, 1000),
        ),
        max_size=5,
    ),
    st.dictionaries(st.floats(0, 1), st.floats(-100, 100), max_size=3),
)


@given(documents, st.integers(0, 10_000), st.characters())
def test_damaged_document_is_read_or_refused(document: Document, at: int, character: str) -> None:
    text = document.text()
    assert Document.of(text) == document
    at %= len(text)
    try:
        read = Document.of(text[:at] + character + text[at + 1 :])
    except ValueError:
        return
    assert all(isinstance(each, Finding) for each in read.providers.values())


def altered(balances: Any = None, loads: Any = None, **changes: Any) -> str:
    document = json.loads(Document({"a": DOWN}).text())
    document["providers"]["a"] |= changes
    document["balances"], document["loads"] = balances or {}, loads or {}
    return json.dumps(document)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        f'{{"version": {VERSION}, "providers": [], "balances": {{}}, "loads": {{}}}}',
        "[" * 100_000,
        *(
            altered(**changes)
            for changes in (
                {"found": "dead"},
                {"open_secs": -1},
                {"open_secs": float("inf")},
                {"closings": -1},
                {"balances": {"0.1": float("nan")}},
                {"balances": {"0.1": 1e9}},
                {"loads": {"gpu": [1, -2, 0.5]}},
                {"loads": {"gpu": [1, 2, 1e9]}},
            )
        ),
    ],
)
def test_invalid_document_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no document"):
        Document.of(text)


def test_other_version_is_recognised() -> None:
    for other in (VERSION - 1, VERSION + 1):
        with pytest.raises(UnknownVersion, match=f"version {other}"):
            Document.of(f'{{"version": {other}, "anything": []}}')


def test_breaker_stays_open_for_an_hour_at_most() -> None:
    assert Document.of(altered(open_secs=1e9)).providers["a"].open_secs == 3600
