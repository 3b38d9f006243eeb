"""The page's figures of the providers: counted in this call, and known of them now."""

import dataclasses

from examples.voice_bot.provider_log import ProviderLog

from pipecat_hedge import AttemptReport, TurnReport
from pipecat_hedge.race import AttemptOutcome, ProviderState, ServerLoad

A = ProviderState("a", "m", 0.5, 1.5, 1.0, is_last=False, retry_after_secs=0.0, limit=100)
B = dataclasses.replace(A, provider="b")


def a_race(turn: int, *ended: tuple[str, AttemptOutcome, str | None]) -> TurnReport:
    attempts = tuple(
        AttemptReport(provider, "m", 0.0, "primary", None, 0.5, outcome, error)
        for provider, outcome, error in ended
    )
    return TurnReport(
        turn, None, "answered", None, None, 1.0, attempts, routing_reason=f"why {turn}"
    )


def test_requests_are_counted_by_how_they_ended() -> None:
    """With the last error, and the last race's first provider."""
    log = ProviderLog()
    log.count(a_race(1, ("a", "superseded", None), ("b", "won", None)))
    log.count(a_race(2, ("b", "failed", "server"), ("a", "failed", "stalled"), ("a", "won", None)))
    log.count(a_race(3, ("b", "interrupted", None)))
    message = log.message([A, B])
    a, b = message["providers"]
    counts = ("requests", "won", "superseded", "failed", "interrupted")
    assert [a[name] for name in counts] == [3, 1, 1, 1, 0]
    assert [b[name] for name in counts] == [3, 1, 0, 1, 1]
    assert (a["last_error"], b["last_error"]) == ("stalled", "server")
    assert (a["was_first"], b["was_first"]) == (False, True)
    assert message["routing_reason"] == "why 3"


def test_a_call_begins_with_what_is_known() -> None:
    """No request was sent; the rest is as the service reports."""
    out = dataclasses.replace(B, is_last=True, retry_after_secs=3.0, prior_weight=0.2)
    a, b = ProviderLog().message([A, out])["providers"]
    assert (a["requests"], a["last_error"], a["was_first"]) == (0, None, False)
    assert (a["p50_secs"], a["p95_secs"], a["prior_weight"]) == (0.5, 1.5, 1.0)
    assert (b["is_last"], b["retry_after_secs"], b["prior_weight"]) == (True, 3.0, 0.2)


def test_it_tells_how_busy_a_server_is() -> None:
    """Where the server says so; nothing where it does not."""
    load = ServerLoad(True, running=3, waiting=2)
    told = ProviderLog().message([A, dataclasses.replace(B, server=load)])["providers"]
    assert told[0]["server"] is None
    assert (told[1]["server"]["running"], told[1]["server"]["waiting"]) == (3, 2)
