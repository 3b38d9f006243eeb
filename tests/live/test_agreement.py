"""Metrics, turn log, report and the simulator's ledger agree over 500 turns with faults.

Two wire formats, with providers that reject, hang, break off and err, and interruptions. What a
provider counts itself (requests, tokens and how each ended) must equal what the service counted.
Latencies are such that no request is withdrawn while it is being written, when it may or may not
arrive: each session's first provider answers within a third of a second, or never. (Requests that
are withdrawn earlier are in ``test_stages.py``.)
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from prometheus_client import CollectorRegistry

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.policy import Slo
from pipecat_hedge.race import TIERS
from pipecat_hedge.service import ProviderStats
from pipecat_hedge.telemetry import PrometheusRecorder
from pipecat_hedge.tools.analysis import Report, read_logs, report_of
from pipecat_hedge.tools.bench import TimedPipeline
from pipecat_hedge.tools.simulator import LedgerEntry, Simulator
from tests.support.simulated import close, simulated

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

SESSIONS, TURNS = 10, 50
HEDGE_SECS, DEADLINE_SECS = 1.5, 4.0
FAULTS = ("529", "hang", "cut", "error_in_band", "503")
INTERRUPTED_EVERY = 20
ANSWER = "answer=Certainly.%20The%20table%20is%20yours.,tps=100"
SLO = Slo(voice_to_voice_secs=None)
Record = dict[str, Any]
Counts = dict[tuple[str, ...], float]


class Call:
    """A session: two providers, one per wire format, and a caller who interrupts now and then."""

    def __init__(self, number: int, sim: Simulator, log: Path, stats: ProviderStats):
        fault, other_fault = FAULTS[number % len(FAULTS)], "529,rate=0.1"
        if number == 0:  # both reject permanently: the turn fails
            fault, other_fault = "400", "400,rate=0.5"
        self.is_patient = number >= SESSIONS // 2  # the answer is slow enough to be interrupted
        self.first = f"fixed@ttft={0.03 * (number + 1):g},fault={fault},rate=0.08,{ANSWER}"
        second = f"fixed@ttft=0.05,fault={other_fault},{ANSWER}"
        self.sim = sim
        self.members = [simulated("openai", sim, self.first), simulated("anthropic", sim, second)]
        policy = HedgePolicy.after(
            HEDGE_SECS, deadline_secs=DEADLINE_SECS, fallback_text="I am sorry."
        )
        self.line = TimedPipeline(
            HedgedLLMService(
                [
                    Provider("first", self.members[0], usd_per_mtok=(2, 8)),
                    Provider("second", self.members[1], usd_per_mtok=(1, 5)),
                ],
                policy=policy,
                stats=stats,
                turn_log=log,
                tier=TIERS[number % 3],
                slo=SLO,
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
        """The caller interrupts once the answer has begun, long before it can be complete."""
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
            # The second provider may be asked in the moment of the interruption: the two sides may
            # then see different ends.
            await turn
            return
        await self.line.interrupt()
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)


async def test_hundreds_of_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, registry, stats = tmp_path / "turns.jsonl", CollectorRegistry(), ProviderStats()
    recorder = PrometheusRecorder(stats=stats, registry=registry)
    logger.disable("pipecat")
    try:
        async with Simulator() as sim:
            calls = [Call(number, sim, log, stats) for number in range(SESSIONS)]
            await asyncio.gather(*(call.run() for call in calls))
            await sim.wait_idle()
            ledger, metrics = sim.ledger.requests, Metrics(registry)
    finally:
        logger.enable("pipecat")
        recorder.close()
    turns = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(turns) == SESSIONS * TURNS
    agrees_with_log(metrics, turns)
    agrees_with_ledger(turns, ledger, {call.first for call in calls})
    agrees_with_report(metrics, report_of(read_logs([log]), slo=SLO, replay=False))
    outcomes = Counter(turn["outcome"] for turn in turns)
    faults = Counter(entry.fault for entry in ledger if entry.fault)
    assert min(outcomes["answered"], outcomes["interrupted"], outcomes["failed"]) > 0
    assert set(faults) == {*FAULTS, "400"}
    with capsys.disabled():
        print(f"\n{len(ledger)} requests, turns {dict(outcomes)}, faults {dict(faults)}")


class Metrics:
    """The samples of a registry."""

    def __init__(self, registry: CollectorRegistry):
        self._samples = [sample for family in registry.collect() for sample in family.samples]

    def by(self, name: str, *labels: str) -> Counts:
        """A metric's sums by some of its labels, where they are not 0."""
        sums: Counts = {}
        for sample in self._samples:
            if sample.name == f"pipecat_hedge_{name}" and sample.value:
                key = tuple(sample.labels[label] for label in labels)
                sums[key] = sums.get(key, 0.0) + sample.value
        return sums


def sent_attempts(turns: Sequence[Record]) -> list[Record]:
    return [a for t in turns for a in t["attempts"] if a["sent_secs"] is not None]


def agrees_with_log(metrics: Metrics, turns: Sequence[Record]) -> None:
    """Every counter is a count of the log's lines; the histograms hold the log's latencies."""
    attempts = [a for t in turns for a in t["attempts"]]
    sent = sent_attempts(turns)
    for name, records, labels in (
        ("turns_total", turns, ("outcome", "tier")),
        ("attempts_total", attempts, ("provider", "launch_reason", "outcome")),
        ("requests_total", sent, ("provider",)),
    ):
        expected = Counter(tuple(record[label] for label in labels) for record in records)
        assert metrics.by(name, *labels) == expected
    assert metrics.by("attempt_failures_total", "provider", "category") == Counter(
        (a["provider"], a["error_category"]) for a in attempts if a["error_category"]
    )
    degraded = sum(t["degraded_reason"] is not None for t in turns)
    assert metrics.by("turns_total", "degraded").get(("true",), 0) == degraded
    tokens = Counter[tuple[str, ...]]()
    for attempt in sent:
        for direction in ("input", "output"):
            estimated = str(attempt["tokens_estimated"]).lower()
            tokens[direction, estimated] += attempt[f"{direction}_tokens"]
    assert metrics.by("tokens_total", "direction", "estimated") == +tokens
    assert metrics.by("cost_usd_total")[()] == pytest.approx(sum(a["usd"] for a in sent))
    for name, records in (("turn_ttft", turns), ("turn_ttfs", turns), ("attempt_ttft", attempts)):
        field = f"{name.partition('_')[2]}_secs"
        known = [record[field] for record in records if record[field] is not None]
        assert metrics.by(f"{name}_seconds_count")[()] == len(known)
        assert metrics.by(f"{name}_seconds_sum")[()] == pytest.approx(sum(known))


def agrees_with_ledger(
    turns: Sequence[Record], ledger: Sequence[LedgerEntry], firsts: set[str]
) -> None:
    """Each request arrived once, with the reported end and as many tokens."""
    theirs, ours = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for entry in ledger:
        theirs["first" if entry.model in firsts else "second", entry.outcome] += 1
    ends = {"won": "completed", "superseded": "aborted", "interrupted": "aborted"}
    sent, withdrawn = sent_attempts(turns), Counter[str]()
    for attempt in sent:
        # On a busy machine answers are late, which looks like a queue: a request may be shed after
        # it was sent.
        if attempt["error_category"] in ("deadline", "stalled", "timeout"):
            withdrawn[attempt["provider"]] += 1
        else:
            ours[attempt["provider"], ends.get(attempt["outcome"], "failed")] += 1
    for provider, count in withdrawn.items():
        # A request that is withdrawn while its rejection is on the way has failed at its provider.
        rejected = theirs[provider, "failed"] - ours[provider, "failed"]
        assert 0 <= rejected <= count
        ours[provider, "failed"] += rejected
        ours[provider, "aborted"] += count - rejected
    assert +ours == theirs, [a for a in sent if a["outcome"] == "failed"]
    completed = [entry for entry in ledger if entry.outcome == "completed"]
    counted = [a for a in sent if not a["tokens_estimated"]]
    assert len(counted) == len(completed)
    assert sum(a["output_tokens"] for a in counted) == sum(e.tokens_sent for e in completed)
    assert sum(a["input_tokens"] for a in counted) == sum(e.prompt_tokens for e in completed)


def agrees_with_report(metrics: Metrics, report: Report) -> None:
    """Requests, outcomes, tokens, dollars and SLOs, exactly."""
    requests = {(p.provider,): p.requests for p in report.providers}
    assert metrics.by("requests_total", "provider") == requests
    outcomes = {(name,): number for name, number in report.outcomes.items()}
    assert metrics.by("turns_total", "outcome") == outcomes
    total_usd = sum(provider.usd or 0.0 for provider in report.providers)
    assert metrics.by("cost_usd_total")[()] == pytest.approx(total_usd)
    assert metrics.by("hedges_total", "result").get(("won",), 0) == report.hedging.won
    for name, counted in (
        ("slo_turns_total", lambda p: p.turns),
        ("slo_missed_total", lambda p: p.turns - p.met),
    ):
        expected = {(p.tier, p.objective): counted(p) for p in report.objectives if counted(p)}
        assert metrics.by(name, "tier", "objective") == expected
