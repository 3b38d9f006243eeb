"""How often documents are there before a recorded caller's turn has ended."""

from __future__ import annotations

import pytest

from tests.retrieval.test_processor import Library, call
from tests.support.recorded_calls import RecordedCall, events, recorded_calls


@pytest.fixture
def recorded() -> list[RecordedCall]:
    return recorded_calls()


@pytest.mark.virtual_time
@pytest.mark.parametrize(("final_secs", "ready"), [(0.25, 0.0), (0.5, 0.6), (1.0, 0.7)])
async def test_documents_are_there_when_the_turn_ends(
    recorded: list[RecordedCall], final_secs: float, ready: float
) -> None:
    """A retrieval takes 0.3 s, as over a network."""
    reports = [
        (await call(Library(0.3), *events(said, activity, final_secs), 2.0))[1][-1]
        for said, activity in recorded
    ]
    found = [report for report in reports if report.documents]
    share = sum(report.was_ready for report in reports) / len(reports)
    saved = sum(report.saved_secs for report in found) / len(reports)
    print(
        f"\nfinal transcript after {final_secs:.2f} s: documents for {len(found)} of "
        f"{len(reports)} turns, ready before in {share:.0%}, {saved:.2f} s saved; "
        f"{sum(report.retrievals for report in reports) / len(reports):.1f} retrievals each"
    )
    assert share >= ready
    assert saved >= 0.1
