"""What is known of the bots that are looked at, one or several: their answers made one. Pure.

Law: what is added up was counted apart. Turns, requests, budgets and promises add up; what each
process has learned of a provider's latency does not, and the worst of it is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pipecat_hedge.race.errors import HedgeError
from pipecat_hedge.telemetry.live import LIVE_VERSION
from pipecat_hedge.telemetry.slo_tracker import SloStatus, WindowCount
from pipecat_hedge.tools.top.feed_shape import odd_at

__all__ = ["Bot", "Fleet", "NotAFeed"]

KEPT_TURNS = 500
_WORSE = {"closed": 0, "half_open": 1, "open": 2}


class NotAFeed(HedgeError):
    """What answered is no bot of this package, or one of another version."""


@dataclass(slots=True)
class Bot:
    """One bot.

    Parameters:
        url: Where it is asked.
        label: What its turns are called by: 1 for the first one.
        answer: Its latest answer, or None if it has not answered yet.
        away_since: Since when it does not answer; None while it does.
        why: Why it does not.
        turns: Its turns by session and number, the latest last.
        after: What it is asked for next.
        whole_since: Since when none of its turns is missing; None if none was ever missed.
    """

    url: str
    label: int
    answer: dict[str, Any] | None = None
    away_since: float | None = None
    why: str = ""
    turns: dict[tuple[int, int], dict[str, Any]] = field(
        default_factory=dict[tuple[int, int], dict[str, Any]]
    )
    after: int = 0
    whole_since: float | None = None

    def answered(self, answer: Any) -> list[dict[str, Any]]:
        """Take an answer.

        Args:
            answer: What it said, read as JSON.

        Returns:
            The turns that are new or have changed.

        Raises:
            NotAFeed: If it is none that is understood.
        """
        if not isinstance(answer, dict) or "process" not in answer or "turns" not in answer:
            raise NotAFeed("what answers there is no feed of turns: see docs/slo.md")
        if answer.get("version") != LIVE_VERSION:
            raise NotAFeed(
                f"it speaks version {answer.get('version')}, this is {LIVE_VERSION}: "
                "use the same release"
            )
        if (odd := odd_at(answer)) is not None:
            raise NotAFeed(f"its {odd} is not as in a feed of turns: see docs/slo.md")
        answer = _printable(answer)
        is_another = self.answer is not None and self.answer["process"] != answer["process"]
        if is_another:
            self.turns.clear()  # it has been started anew, and counts from 1 again
            self.whole_since = None
        latest = max((turn["at"] for turn in self.turns.values()), default=None)
        if (since := answer.get("turns_since")) is not None and (latest is None or since > latest):
            self.whole_since = since  # some came and went between two questions
        self.answer, self.away_since, self.why = answer, None, ""
        self.after = 0 if is_another and self.after else answer["next"]
        for turn in answer["turns"]:
            key = (turn["session"], turn["turn"])
            self.turns.pop(key, None)
            self.turns[key] = turn
        while len(self.turns) > KEPT_TURNS:
            gone = self.turns.pop(next(iter(self.turns)))["at"]
            self.whole_since = gone if self.whole_since is None else max(self.whole_since, gone)
        return answer["turns"]

    def is_away(self, why: str, now: float) -> bool:
        """Take note that it does not answer.

        Args:
            why: Why, for a person to read.
            now: The time.

        Returns:
            Whether that is news.
        """
        is_news = self.away_since is None or why != self.why
        if self.away_since is None:
            self.away_since = now
        self.why = why
        self.after = 0  # it may be another process when it is back
        return is_news


class Fleet:
    """The bots together."""

    def __init__(self, urls: Sequence[str]):
        """Begin with no answer from anybody.

        Args:
            urls: Where they are asked.
        """
        self.bots = [Bot(url, number) for number, url in enumerate(urls, 1)]

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The latest answers of those that are there."""
        return [b.answer for b in self.bots if b.answer is not None and b.away_since is None]

    @property
    def sessions(self) -> int:
        """Calls that are being held."""
        return sum(answer["sessions"] for answer in self.answers)

    def turns(self) -> list[tuple[Bot, dict[str, Any]]]:
        """The turns of all, the latest first."""
        found = [(bot, turn) for bot in self.bots for turn in bot.turns.values()]
        return sorted(found, key=lambda each: each[1]["at"], reverse=True)

    def knows_all_since(self, at: float) -> bool:
        """Whether ``turns`` holds all that there were from a moment on.

        Args:
            at: The moment, in seconds since the epoch.
        """
        return all(bot.whole_since is None or bot.whole_since < at for bot in self.bots)

    def providers(self) -> list[dict[str, Any]]:
        """What is known of each provider and model: counts added up, of states the worst."""
        found: dict[tuple[str, str | None], dict[str, Any]] = {}
        for answer in self.answers:
            for state in answer["providers"]:
                key = (state["provider"], state["model"])
                known = found.get(key)
                found[key] = state if known is None else _together(known, state)
        return list(found.values())

    def budgets(self) -> list[dict[str, Any]]:
        """The budgets, those alike added up."""
        found: dict[float, dict[str, Any]] = {}
        for answer in self.answers:
            for budget in answer["budgets"]:
                known = found.get(budget["budget"])
                more = ("balance", "most_credit")
                found[budget["budget"]] = (
                    budget
                    if known is None
                    else {**budget, **{name: known[name] + budget[name] for name in more}}
                )
        return list(found.values())

    def promises(self) -> list[SloStatus]:
        """The promises, those alike counted together."""
        found: dict[tuple[Any, ...], SloStatus] = {}
        for answer in self.answers:
            for told in answer["slos"]:
                windows = tuple(WindowCount(**window) for window in told["windows"])
                status = SloStatus(**{**told, "windows": windows})
                key = (status.tier, status.objective, status.within_secs, status.share)
                if (known := found.get(key)) is not None:
                    pairs = zip(known.windows, windows, strict=True)
                    summed = tuple(mine.plus(theirs) for mine, theirs in pairs)
                    status = SloStatus(*key, summed)
                found[key] = status
        return list(found.values())


def _printable(told: Any) -> Any:
    """What was told without what a terminal would take for an order to it."""
    if isinstance(told, str):
        return "".join(char if char.isprintable() else "?" for char in told)
    if isinstance(told, list):
        return [_printable(each) for each in told]
    if isinstance(told, dict):
        return {_printable(key): _printable(value) for key, value in told.items()}
    return told


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    summed = ("requests", "won", "superseded", "failed", "interrupted", "in_flight", "limit")
    worst = ("p50_secs", "p95_secs", "retry_after_secs", "is_excluded")
    breaker = max(one, other, key=lambda state: _WORSE[state["breaker"]])
    return {
        **one,
        **{name: one[name] + other[name] for name in summed},
        **{name: max(one[name], other[name]) for name in worst},
        "breaker": breaker["breaker"],
        "breaker_reason": breaker["breaker_reason"],
    }
