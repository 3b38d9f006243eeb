"""The second recogniser: one that streams, and one that fails."""

from __future__ import annotations

import pytest

from pipecat_hedge import ProviderStats
from tests.support.call import Event
from tests.support.hearing import HearingRescue, HearingSTT, Talk, speech, words

pytestmark = pytest.mark.virtual_time


def utterances(count: int, size: int = 5, then_secs: float = 6.0) -> list[Event]:
    parts = [speech(range(size * n, size * n + size), then_secs=then_secs) for n in range(count)]
    return [event for part in parts for event in part]


@pytest.mark.parametrize("marks", [True, False])
async def test_recogniser_that_streams_rescues(marks: bool) -> None:
    """Its transcripts of an utterance are one, whether it marks the last one or needs silence."""
    rescue = HearingSTT(finals=4, marks=marks)
    talk = Talk(lambda _: HearingSTT(says=0), rescue)
    said = await talk.hold(*utterances(6, size=10))
    assert rescue.heard == said
    assert [turn.split() for turn in talk.contexts] == [
        words(range(10 * n, 10 * n + 10)) for n in range(6)
    ]
    assert max(talk.waits) < 4.0


async def test_rescue_that_is_down_delays_nothing() -> None:
    """What the first one says late is waited for as without a rescue."""
    talk = Talk(lambda _: HearingSTT(late_secs=2.0), HearingRescue(fails=1000))
    said = await talk.hold(*utterances(10))
    assert said == words(range(50))
    assert talk.waits == pytest.approx([2.2] * 10, abs=0.01)
    assert talk.rescue.heard


async def test_rescue_that_fails_is_asked_again_when_it_may_have_recovered() -> None:
    """Its breaker opens after five failures, and closes after two answers."""
    rescue, stats = HearingRescue(fails=5), ProviderStats()
    talk = Talk(lambda _: HearingSTT(says=0), rescue, stats=stats)
    said = await talk.hold(*utterances(24, then_secs=8.5))
    missed = 24 - len(said) // 5
    print(f"{len(rescue.heard)} asked, {missed} not said")
    assert 5 + 60 * 0.8 / 10 - 1 <= missed <= 5 + 60 / 10 + 1
    assert len(rescue.heard) == 24 - (missed - 5)
    assert said == words(range(5 * missed, 120))
