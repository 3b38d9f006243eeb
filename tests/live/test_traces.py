"""The race in Pipecat's own traces."""

from __future__ import annotations

import pytest
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)

from pipecat_hedge.tools.simulator import Simulator
from tests.service.builders import racing
from tests.support.line import Line
from tests.support.recorded_spans import (
    id_of,
    parent_of,
    recorded_spans,
    said,
    secs_into,
)
from tests.support.simulated import close, simulated

pytestmark = pytest.mark.live

SLOW = "fixed@ttft=2"
QUICK = "fixed@ttft=0.05,answer=Good%20day."


async def call(sim: Simulator) -> None:
    """One turn of a call, with Pipecat's tracing."""
    members = simulated("openai", sim, SLOW), simulated("anthropic", sim, QUICK)
    async with Line(racing(*members), tracing=True) as line:
        await line.send(UserStartedSpeakingFrame(), UserStoppedSpeakingFrame())
        await line.ask("My name is Quimby.")
        await line.report()
        await line.send(BotStartedSpeakingFrame(), BotStoppedSpeakingFrame())
    await close(*members)


async def test_requests_of_pipecat_are_below_their_attempts_side_by_side(
    sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spans end when their requests did, although the outcome is known only later."""
    with recorded_spans(monkeypatch) as spans:
        await call(sim)
    requests = {parent_of(span): span for span in spans.named("llm")}
    found = spans.of_providers(*(span.name for span in spans.all() if span.name[:5] == "chat "))
    (turn,), (race,) = spans.named("turn"), spans.named("race")
    assert parent_of(race) == id_of(turn)
    assert {parent_of(span) for span in found.values()} == {id_of(race)}
    assert said(race)["gen_ai.conversation.id"] == said(turn)["conversation.id"]
    assert said(race)["hedge.winner"] == "b"
    (commit,) = race.events
    assert (commit.name, said(commit)["hedge.provider"]) == ("hedge.commit", "b")
    assert secs_into(race, commit) == pytest.approx(said(race)["hedge.ttft_secs"], abs=0.05)
    assert requests.keys() == {id_of(span) for span in found.values()}
    assert all("Quimby" in span.to_json() for span in requests.values())  # as Pipecat makes them
    for span in (race, *found.values()):
        assert "Quimby" not in span.to_json()
        assert "Good day" not in span.to_json()

    won, lost = said(found["b"]), said(found["a"])
    by_pipecat = said(requests[id_of(found["b"])])
    assert by_pipecat["gen_ai.provider.name"] == "anthropic"
    assert by_pipecat["gen_ai.usage.output_tokens"] == won["hedge.output_tokens"] > 0
    assert (lost["hedge.launch_reason"], lost["hedge.outcome"]) == ("primary", "superseded")
    assert (won["hedge.launch_reason"], won["hedge.outcome"]) == ("hedge", "won")
    assert won["hedge.ttft_secs"] > 0.04
    assert won["hedge.stage.headers_secs"] < won["gen_ai.response.time_to_first_chunk"]
    assert "hedge.stage.new_connection" in won
    assert lost["hedge.tokens_estimated"]
    assert lost["hedge.input_tokens"] > 0
    assert "hedge.ttft_secs" not in lost
    for span in found.values():
        assert (race.start_time or 0) <= (span.start_time or 0)
        assert (span.start_time or 0) < (span.end_time or 0) < (race.end_time or 0)
