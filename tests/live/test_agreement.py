"""Metrics, turn log, report and the simulator's ledger tell the same of 1,000 turns with faults.

Over two wire formats, with providers that refuse, hang, break off and err, and interruptions.
What a provider counts itself, requests, tokens and how each ended, is held against what the service
has counted: exactly. Latencies are made so that no request is withdrawn while it is being written,
which may have come or not: each session's first provider answers within a third of a second, or
never. (Those that were withdrawn before are in ``test_stages.py``.)
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.policy import Slo
from pipecat_hedge.race import SHED, TIERS
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.telemetry.prometheus import BUCKETS
from pipecat_hedge.tools.analysis import Report, read_logs, report_of
from pipecat_hedge.tools.bench import TimedPipeline, percentile
from pipecat_hedge.tools.simulator import LedgerEntry, Simulator
from tests.support.simulated import close, simulated

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SESSIONS, TURNS = 10, 100
HEDGE_SECS, DEADLINE_SECS = 1.5, 4.0
FAULTS = ("529", "hang", "cut", "error_in_band", "503")
INTERRUPTED_EVERY = 20
ANSWER = "answer=Certainly.%20The%20table%20is%20yours.,tps=100"
FALLBACK = "I am sorry."
PROMISED = Slo(voice_to_voice_secs=None)
WAITED_IN_VAIN = ("deadline", "stalled", "timeout")
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Call:
    """A session: two providers, one on each wire, and a caller who interrupts now and then."""

    def __init__(self, number: int, sim: Simulator, log: Path, stats: ProviderStats):
        fault, other_fault = FAULTS[number % len(FAULTS)], "529,rate=0.1"
        if number == 0:  # what both refuse for good fails the turn
            fault, other_fault = "400", "400,rate=0.5"
        self.is_patient = number >= SESSIONS // 2  # the answer takes so long that it can be cut off
        self.first = f"fixed@ttft={0.03 * (number + 1):g},fault={fault},rate=0.08,{ANSWER}"
        self.second = f"fixed@ttft=0.05,fault={other_fault},{ANSWER}"
        self.sim = sim
        self.members = [
            simulated("openai", sim, self.first),
            simulated("anthropic", sim, self.second),
        ]
        self.line = TimedPipeline(
            HedgedLLMService(
                [
                    Provider("first", self.members[0], usd_per_mtok=(2, 8)),
                    Provider("second", self.members[1], usd_per_mtok=(1, 5)),
                ],
                policy=HedgePolicy.after(
                    HEDGE_SECS, deadline_secs=DEADLINE_SECS, fallback_text=FALLBACK
                ),
                stats=stats,
                turn_log=log,
                tier=TIERS[number % 3],
                slo=PROMISED,
                warm=False,
            )
        )

    async def run(self) -> None:
        await self.line.start()
        try:
            for turn in range(TURNS):
                if turn % INTERRUPTED_EVERY == 0 and self.is_patient:
                    await self.interrupted_turn()
                else:
                    assert (await self.line.turn(give_up_secs=30)).is_over
        finally:
            await self.line.stop()
            await close(*self.members)

    async def interrupted_turn(self) -> None:
        """The caller speaks when the answer is on its way, long before it can be over."""
        before = max((entry.id for entry in self.sim.ledger.requests), default=0)
        turn = asyncio.create_task(self.line.turn(give_up_secs=30))

        def begun() -> list[LedgerEntry]:
            return [
                entry
                for entry in self.sim.ledger.requests
                if entry.id > before
                and entry.model == self.first
                and (entry.headers_secs is not None or entry.outcome != "open")
            ]

        await self.sim.ledger.wait_until(lambda _: bool(begun()), 30)
        if begun()[0].outcome != "open" or begun()[0].fault:
            # Another has been asked already, or may be in the moment of the interruption: then its
            # end is one thing to whoever answers, and another to the caller who no longer listens.
            await turn
            return
        await self.line.interrupt()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def test_a_thousand_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Requests, tokens and outcomes exactly; percentiles within a bucket's width."""
    log, registry, stats = tmp_path / "turns.jsonl", CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(stats=stats, registry=registry)
    logger.disable("pipecat")
    try:
        async with Simulator() as sim:
            calls = [Call(number, sim, log, stats) for number in range(SESSIONS)]
            await asyncio.gather(*(call.run() for call in calls))
            await sim.wait_idle()
            ledger, told = sim.ledger.requests, series(registry)
    finally:
        logger.enable("pipecat")
        recorder.close()
    turns = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(turns) == SESSIONS * TURNS
    agrees_with_log(told, turns)
    agrees_with_ledger(turns, ledger, {call.first for call in calls})
    for name in ("ttft", "ttfs"):
        percentiles_agree(told, name, [t[f"{name}_secs"] for t in turns])
    report = report_of(read_logs([log]), slo=Slo(voice_to_voice_secs=None), replay=False)
    agrees_with_report(told, turns, report)
    outcomes = Counter(turn["outcome"] for turn in turns)
    faults = Counter(entry.fault for entry in ledger if entry.fault)
    assert min(outcomes["answered"], outcomes["interrupted"], outcomes["failed"]) > 0
    assert set(faults) == {*FAULTS, "400"}
    with capsys.disabled():
        print(f"\n{len(ledger)} requests, turns {dict(outcomes)}, faults {dict(faults)}")


def agrees_with_log(told: Series, turns: Sequence[dict[str, Any]]) -> None:
    """Every counter is a count of the log's lines."""
    assert by(told, "turns_total", "outcome", "tier") == Counter(
        (t["outcome"], t["tier"]) for t in turns
    )
    degraded = sum(t["degraded_reason"] is not None for t in turns)
    assert by(told, "turns_total", "degraded").get(("true",), 0) == degraded
    attempts = [a for t in turns for a in t["attempts"]]
    assert by(told, "attempts_total", "provider", "launch_reason", "outcome") == Counter(
        (a["provider"], a["launch_reason"], a["outcome"]) for a in attempts
    )
    sent = [a for a in attempts if a["sent_secs"] is not None]
    assert by(told, "requests_total", "provider") == Counter((a["provider"],) for a in sent)
    assert by(told, "attempt_failures_total", "provider", "category") == Counter(
        (a["provider"], a["error_category"]) for a in attempts if a["error_category"]
    )
    for direction in ("input", "output"):
        tokens: Counter[tuple[str, ...]] = Counter()
        for attempt in sent:
            estimated = str(attempt["tokens_estimated"]).lower()
            tokens[direction, estimated] += attempt[f"{direction}_tokens"]
        counted = by(told, "tokens_total", "direction", "estimated")
        assert {k: v for k, v in counted.items() if k[0] == direction} == +tokens
    spent = sum(a["usd"] for a in sent)
    assert sum(by(told, "cost_usd_total").values()) == pytest.approx(spent)
    counted = by(told, "attempt_ttft_seconds_count", "provider")
    assert counted == Counter((a["provider"],) for a in attempts if a["ttft_secs"] is not None)


def agrees_with_ledger(
    turns: Sequence[dict[str, Any]], ledger: Sequence[LedgerEntry], firsts: set[str]
) -> None:
    """Each request came once, had the end that was told of it, and as many tokens."""
    theirs, ours = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for entry in ledger:
        theirs["first" if entry.model in firsts else "second", entry.outcome] += 1
    ends = {"won": "completed", "superseded": "aborted", "interrupted": "aborted"}
    sent = [a for t in turns for a in t["attempts"] if a["sent_secs"] is not None]
    withdrawn = Counter[str]()
    for attempt in sent:
        # Where a busy machine makes answers late, a request may be called back from the queue that
        # seems to be there: it is shed after it was sent.
        if attempt["error_category"] in (*WAITED_IN_VAIN, SHED):
            withdrawn[attempt["provider"]] += 1
        else:
            ours[attempt["provider"], ends.get(attempt["outcome"], "failed")] += 1
    for provider, count in withdrawn.items():
        # One that is withdrawn while its refusal is on the way has failed, to whoever refused it.
        refused = theirs[provider, "failed"] - ours[provider, "failed"]
        assert 0 <= refused <= count
        ours[provider, "failed"] += refused
        ours[provider, "aborted"] += count - refused
    assert +ours == theirs, [a for a in sent if a["outcome"] == "failed"]
    completed = [entry for entry in ledger if entry.outcome == "completed"]
    counted = [a for a in sent if not a["tokens_estimated"]]
    assert len(counted) == len(completed)
    assert sum(a["output_tokens"] for a in counted) == sum(e.tokens_sent for e in completed)
    assert sum(a["input_tokens"] for a in counted) == sum(e.prompt_tokens for e in completed)


def agrees_with_report(told: Series, turns: Sequence[dict[str, Any]], report: Report) -> None:
    """Requests, tokens, dollars, outcomes and promises, exactly."""
    assert by(told, "requests_total", "provider") == {
        (p.provider,): p.requests for p in report.providers
    }
    attempts = Counter[tuple[str, ...]]()
    failures = Counter[tuple[str, ...]]()
    for provider in report.providers:
        for outcome, number in provider.outcomes.items():
            attempts[provider.provider, outcome] += number
        for category, number in provider.failures.items():
            failures[provider.provider, category] += number
    sent = [a for t in turns for a in t["attempts"] if a["sent_secs"] is not None]
    assert attempts == Counter((a["provider"], a["outcome"]) for a in sent)
    assert failures == Counter(
        (a["provider"], a["error_category"]) for a in sent if a["outcome"] == "failed"
    )
    outcomes = by(told, "turns_total", "outcome")
    assert outcomes == {(name,): number for name, number in report.outcomes.items()}
    assert by(told, "turns_total", "degraded").get(("true",), 0) == report.degraded
    assert by(told, "tokens_total", "direction") == {
        ("input",): sum(a["input_tokens"] or 0 for a in sent),
        ("output",): sum(a["output_tokens"] or 0 for a in sent),
    }
    total_usd = sum(p.usd or 0.0 for p in report.providers)
    assert sum(by(told, "cost_usd_total").values()) == pytest.approx(total_usd)
    hedges = by(told, "hedges_total", "result")
    assert sum(hedges.values()) == report.hedging.hedges + unsent(turns, "hedge")
    assert hedges.get(("won",), 0) == report.hedging.won
    for name, counted in (
        ("slo_turns_total", lambda p: p.turns),
        ("slo_missed_total", lambda p: p.turns - p.met),
    ):
        mine = {(p.tier, p.objective): counted(p) for p in report.objectives if counted(p)}
        assert by(told, name, "tier", "objective") == mine
    counts = {name: by(told, f"turn_{name}_seconds_count")[()] for name in ("ttft", "ttfs")}
    assert counts == {"ttft": report.all_turns.ttft.count, "ttfs": report.ttfs.count}


def unsent(turns: Sequence[dict[str, Any]], reason: str) -> int:
    """Attempts for this reason of which no request was made."""
    return sum(
        a["launch_reason"] == reason and a["sent_secs"] is None
        for t in turns
        for a in t["attempts"]
    )


def percentiles_agree(told: Series, name: str, secs: Sequence[float | None]) -> None:
    """The log's percentile is in the bucket in which the histogram has it."""
    known = [each for each in secs if each is not None]
    buckets = by(told, f"turn_{name}_seconds_bucket", "le")
    upto = {float(le): count for (le,), count in buckets.items()}
    for share in (0.5, 0.95, 0.99):
        exact = percentile(known, share)
        assert exact is not None
        rank = math.ceil(share * len(known))
        for low, high in itertools.pairwise((0.0, *BUCKETS, math.inf)):
            if upto.get(high, 0) >= rank:
                assert low < exact <= high
                break
        else:
            pytest.fail(f"{name} has no bucket with p{100 * share:g}: {upto}")


def series(registry: CollectorRegistry) -> Series:
    """Everything that is served, as a Prometheus reads it."""
    return {
        (s.name.removeprefix("pipecat_hedge_"), tuple(sorted(s.labels.items()))): s.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for s in family.samples
        if not s.name.endswith("_created")
    }


def by(told: Series, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """A metric's sums by some of its labels, where they are not 0."""
    sums: dict[tuple[str, ...], float] = {}
    for (each, pairs), value in told.items():
        if each == name and value:
            key = tuple(dict(pairs)[label] for label in labels)
            sums[key] = sums.get(key, 0.0) + value
    return sums
