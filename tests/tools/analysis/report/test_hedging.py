"""What hedging did and cost: the log's own numbers, exactly."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pipecat_hedge.race.reports import AttemptReport
from pipecat_hedge.tools.analysis.report.hedging import bill_of, hedging_of
from pipecat_hedge.tools.analysis.report.providers import provider_figures
from pipecat_hedge.tools.analysis.report.turns import LoggedTurn
from tests.tools.analysis.report.made_up import attempt, hedged, turn

OUTCOMES = ("won", "superseded", "failed", "interrupted")
REASONS = ("hedge", "failure", "stall")
NUMBERS = st.none() | st.integers(0, 5000)


@st.composite
def attempts(draw: st.DrawFn) -> AttemptReport:
    outcome = draw(st.sampled_from(OUTCOMES))
    return attempt(
        draw(st.sampled_from(["one", "two"])),
        draw(st.none() | st.floats(0.1, 5)),
        ended=draw(st.floats(0, 9)),
        reason=draw(st.sampled_from(REASONS)),
        outcome=outcome,
        error_category="server" if outcome == "failed" else None,
        input_tokens=draw(NUMBERS),
        output_tokens=draw(NUMBERS),
        usd=draw(st.none() | st.floats(0, 1)),
        sent_secs=draw(st.sampled_from([None, 0.0])),
    )


@st.composite
def logs(draw: st.DrawFn) -> list[LoggedTurn]:
    made = draw(st.lists(st.lists(attempts(), min_size=1, max_size=4), min_size=1, max_size=8))
    return [turn(*each, ttft=draw(st.none() | st.floats(0, 5))) for each in made]


@given(logs())
def test_totals_are_those_of_the_log(turns: list[LoggedTurn]) -> None:
    """Requests, tokens, dollars and outcomes, however they are divided."""
    sent = [a for t in turns for a in t.report.attempts if a.sent_secs is not None]
    bill, providers = bill_of(turns), provider_figures(turns)
    parts = (bill.answers, bill.lost, bill.failed, bill.interrupted)
    assert bill.total.requests == len(sent) == sum(part.requests for part in parts)
    assert bill.total.requests == sum(p.requests for p in providers) == hedging_of(turns).requests
    for field in ("input_tokens", "output_tokens", "usd"):
        known = [v for a in sent if (v := getattr(a, field)) is not None]
        total = getattr(bill.total, field)
        assert total == (sum(known) if known else None)
    for outcome, part in zip(OUTCOMES, parts, strict=True):
        assert part.requests == sum(a.outcome == outcome for a in sent)
        assert part.requests == sum(p.outcomes.get(outcome, 0) for p in providers)
    assert bill.is_least == any(a.usd is None for a in sent)
    made = sum(len(t.report.attempts) for t in turns)
    assert sum(p.not_sent for p in providers) == made - len(sent)
    for p in providers:
        mine = [a for a in sent if a.provider == p.provider]
        assert p.answered.count == sum(a.ttft_secs is not None for a in mine)
        assert sum(p.by_reason.values()) == p.requests


def test_hedges_that_won_are_counted() -> None:
    """And what was sent to make up for a failure is none."""
    failed = attempt(ttft=None, ended=0.1, outcome="failed", error_category="server")
    turns = [
        hedged(1.0),
        hedged(1.2),
        turn(failed, attempt("two", 0.3, launched=0.1, reason="failure"), ttft=0.4),
        turn(),
    ]
    hedging = hedging_of(turns)
    assert (hedging.turns, hedging.hedged_turns, hedging.hedges, hedging.won) == (4, 2, 2, 2)
    assert (hedging.rescues, hedging.rescued) == (1, 1)
    assert hedging.extra_requests == 0.75
    assert (hedging.lost.requests, hedging.lost.usd) == (2, 0.002)


def test_a_price_that_is_not_known_is_no_nought() -> None:
    """Nor is the sum of some prices the sum of all."""
    bill = bill_of([turn()])
    assert (bill.total.usd, bill.usd_per_success, bill.is_least) == (None, None, True)
    bill = bill_of([turn(), turn(attempt(usd=0.5))])
    assert (bill.usd_per_success, bill.is_least) == (0.25, True)
    bill = bill_of([turn(attempt(usd=0.5)), turn(attempt(usd=0.1), degraded_reason="half")])
    assert (bill.successful_turns, bill.usd_per_success) == (1, 0.6)
