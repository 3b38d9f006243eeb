"""The drills as values."""

from __future__ import annotations

import pytest

from pipecat_hedge.tools.bench.drill.plans import DRILLS, PROVIDERS, Kill, SetConditions, Start
from pipecat_hedge.tools.bench.drill.providers import places_needed
from pipecat_hedge.tools.bench.drill.variants import VARIANTS
from pipecat_hedge.tools.simulator.behaviour import parse_model
from pipecat_hedge.tools.simulator.conditions import read_conditions


@pytest.mark.parametrize("name", DRILLS)
def test_a_drill_makes_sense(name: str):
    """What happens, happens while it is measured, to providers that there are, in a known way."""
    drill = DRILLS[name]
    assert drill.name == name
    times = [at for at, _ in drill.acts]
    assert times == sorted(times)
    assert set(drill.broken) <= set(drill.profiles) == set(PROVIDERS)
    for variant in drill.variants:
        secs = drill.secs(variant)
        assert all(0 < at < secs for at in times)
        assert (drill.event_secs is None) == (not times)
        if drill.event_secs is not None:
            assert drill.event_secs == times[0]
        if drill.return_secs is not None:
            assert drill.return_secs == times[-1]
    for model in drill.profiles.values():
        parse_model(model)
    for _, act in drill.acts:
        if isinstance(act, SetConditions):
            read_conditions(act.conditions)
        if isinstance(act, Kill | Start | SetConditions):
            assert set(act.providers) <= set(PROVIDERS)


@pytest.mark.parametrize("name", ["down", "hang", "return"])
def test_who_is_hung_up_on_is_waited_for(name: str):
    """A turn that waits in vain for 30 s, from just before the return, is counted as lost."""
    drill = DRILLS[name]
    assert drill.return_secs is not None
    assert drill.plain_secs >= drill.return_secs + 30
    assert drill.lasts_secs >= drill.return_secs + 90 + 10  # the stretch that shows a recovery


def test_another_pace():
    """All times are multiplied."""
    drill = DRILLS["down"].paced(0.1)
    assert [at for at, _ in drill.acts] == pytest.approx([1.5, 5.5])
    assert (drill.event_secs, drill.return_secs) == pytest.approx((1.5, 5.5))
    assert (drill.secs(VARIANTS["hedged"]), drill.secs(VARIANTS["bare"])) == (16, 10)
    assert DRILLS["calm"].paced(0.5).event_secs is None


def test_places_that_are_needed():
    """By Little's law: as many as turns a second times the seconds of an answer."""
    # 50 ms to the first of five tokens, 100 tokens a second: 0.09 s of each 1 s
    assert places_needed("fixed", sessions=100, think_secs=0.91) == pytest.approx(9)
    # 0.85 s of each 1 s
    assert places_needed("fixed?tps=5", sessions=100, think_secs=0.15) == pytest.approx(85)
