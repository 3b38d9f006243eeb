"""The order in which a turn considers its providers: the user's route, then their regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from loguru import logger
from pipecat.processors.aggregators.llm_context import LLMContext

from pipecat_hedge.policy.turn_route import RouteChoice, RoutedTurn, TurnRoute, chosen
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service.member import Member
from pipecat_hedge.service.planned_turn import GIVEN_ORDER
from pipecat_hedge.service.service_adapter import ServiceAdapter


class TurnOrder:
    """The order of one session's providers."""

    def __init__(
        self,
        members: Sequence[Member[ServiceAdapter]],
        regions: Mapping[str, str | None],
        route: TurnRoute | None,
    ):
        """Start a session.

        Args:
            members: The providers in the given order.
            regions: By provider, where it is served; None is unknown.
            route: The user's route, or None.
        """
        self._members = members
        self._names = [member.name for member in members]
        self._regions = regions
        self._has_regions = any(regions.values())
        self._route = route
        self._routed_to: dict[str, None] = {}

    def route(self, context: LLMContext) -> RouteChoice:
        """Return the user's choice for a turn; a route that fails changes nothing."""
        if self._route is None:
            return GIVEN_ORDER
        turn = RoutedTurn(
            context.messages, self._names, bool(context.tools), tuple(self._routed_to)
        )
        try:
            choice = chosen(self._route, turn)
        except Exception as error:
            what = str(error) if isinstance(error, ConfigurationError) else type(error).__name__
            logger.warning(f"the policy's route failed, so the given order counts: {what}")
            return GIVEN_ORDER
        if choice.first:
            self._routed_to[choice.first[0]] = None
        return choice

    def of(self, first: Sequence[str] = ()) -> Sequence[Member[ServiceAdapter]]:
        """Return the providers in a turn's order.

        Args:
            first: The names of those that the user's route puts first.
        """
        if not first and not self._has_regions:
            return self._members
        members = sorted(self._members, key=lambda member: _rank(member.name, first))
        if not self._has_regions:
            return members
        home = self._regions[members[0].name]
        routed, others = members[: max(len(first), 1)], members[max(len(first), 1) :]
        return [*routed, *sorted(others, key=lambda e: self._regions[e.name] == home)]


def _rank(name: str, first: Sequence[str]) -> int:
    return first.index(name) if name in first else len(first)
