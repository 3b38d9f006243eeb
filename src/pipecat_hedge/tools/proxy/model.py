"""A model of the proxy: its upstreams, its policy, and what is learned about them."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from loguru import logger

from pipecat_hedge.policy import HedgePolicy, OnlyOnFailure
from pipecat_hedge.providers import Terms
from pipecat_hedge.race import ProviderState, TaskScope, Tier, TurnReport
from pipecat_hedge.service import (
    EventHub,
    Member,
    ProviderRace,
    ProviderStats,
    TurnMembers,
    TurnSpec,
    breaker_report,
    states_of,
    write_logs,
)
from pipecat_hedge.tools.proxy.proxied_turn import (
    WHOLE_ANSWER_SECS,
    WORK_SECS,
    ProxiedTurn,
    estimate_tokens,
)
from pipecat_hedge.tools.proxy.request import ProxiedRequest
from pipecat_hedge.tools.proxy.response import Response
from pipecat_hedge.tools.proxy.settings import ModelSettings
from pipecat_hedge.tools.proxy.upstream import UpstreamError, connect
from pipecat_hedge.tools.proxy.wires import WIRES


class ProxiedModel:
    """Races the requests for one model.

    Attributes:
        name: The name that clients ask for.
        settings: Its settings.
        wire: The API that its clients speak.
        upstreams: Its providers.
        policy: How requests are raced.
        stats: What is learned of all upstreams of the process.
        events: Publishes its reports.
    """

    def __init__(
        self,
        name: str,
        settings: ModelSettings,
        stats: ProviderStats,
        turn_log: Path | None,
        drained_log: Path | None,
    ):
        """Connect the upstreams; call it on the loop."""
        self.name, self.settings, self.stats = name, settings, stats
        self.wire = WIRES[settings.wire]
        self.policy: HedgePolicy = settings.policy
        self.events = EventHub(stats.events)
        write_logs(self.events, self.policy, turn_log, drained_log)
        self.upstreams = tuple(connect(each, self.wire) for each in settings.upstreams)
        self.providers = self.upstreams
        self.is_running = True
        self._members = [Member(each, (each,)) for each in self.upstreams]
        self._drains = TaskScope()
        self._turns = 0
        self._has_warned: set[str] = set()

    async def race(
        self, request: ProxiedRequest, response: Response, tier: Tier, *, may_hedge: bool
    ) -> TurnReport:
        """Race a request, write the response, and learn from it.

        Args:
            request: The request.
            response: The response to write.
            tier: The client's tier.
            may_hedge: Whether the client has any hedges left.
        """
        is_answer = request.path.partition("?")[0] == self.wire.path
        self._turns += is_answer
        stats, policy = self.stats, self.policy
        if not (may_hedge and is_answer):
            policy = dataclasses.replace(policy, rule=OnlyOnFailure())
        is_one_text = request.is_stream and not request.has_choices
        continues = self.settings.continues and is_one_text and len(self._members) > 1
        spec = TurnSpec(
            "primary",
            policy.commits_on("first_token"),
            estimate_tokens(request),
            has_tools=request.has_tools,
            measures="first_token" if request.is_stream else "whole_answer",
            is_learned=is_answer,  # how long it takes to count tokens says nothing of answers
            rescues=continues,
            stall_secs=None if request.is_stream else WHOLE_ANSWER_SECS,
            rejection_secs=0.0 if request.is_stream else WORK_SECS,
        )
        terms = Terms(tier, object(), has_first_token=request.is_stream)
        turn = ProxiedTurn(
            self._turns,
            request,
            self.wire,
            ProviderRace(stats, policy, spec, TurnMembers(self._members), terms),
            response,
            upstreams=len(self._members),
            drained=self.events.publish,
        )
        try:
            await turn.run(self._drains)
            await turn.wait_for_observed()
        finally:
            self._learn(turn)
            report = turn.report()
            if is_answer:
                self.events.publish(report)
            logger.debug(f"{self.name}: turn {report.turn}: {report.outcome}")
            turn.close()
            if stats.is_due:
                await asyncio.to_thread(stats.save)
        return report

    def provider_states(self) -> tuple[ProviderState, ...]:
        """The state of every upstream."""
        now = asyncio.get_running_loop().time()
        return states_of(self._members, self.stats, Terms(), now)

    async def reach(self) -> None:
        """Open a connection to every upstream."""
        for upstream in self.upstreams:
            try:
                await upstream.reach()
            except Exception as error:
                problem = f"{upstream.name} is not reached yet"
                level = "DEBUG" if problem in self._has_warned else "WARNING"
                self._has_warned.add(problem)
                logger.log(level, f"{self.name}: {problem}: {error}")

    async def close(self) -> None:
        """Close all connections."""
        self.is_running = False
        await self._drains.close()
        for upstream in self.upstreams:
            await upstream.close()

    def _learn(self, turn: ProxiedTurn) -> None:
        for name, error in turn.errors:
            logger.debug(f"{self.name}: {name}: {error.category}: {error.message}")
            cause = error.exception
            problem = "rejects its key: check key_env"
            if isinstance(cause, UpstreamError) and 300 <= cause.status_code < 400:
                problem = "redirects to another address, which is not followed: check base_url"
            elif isinstance(cause, UpstreamError) and cause.status_code == 404:
                problem = "does not know the address or the model: check base_url and model"
            elif error.category != "authentication":
                continue
            if name not in self._has_warned:
                self._has_warned.add(name)
                logger.warning(f"{self.name}: {name} {problem}")
        for change in map(breaker_report, self.stats.take_changes()):
            level = "WARNING" if change.after == "open" else "INFO"
            logger.log(level, f"{change.provider} is {change.after}: {change.reason}")
            self.events.publish(change)
