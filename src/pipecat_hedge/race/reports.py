"""What a turn looked like once it was over: frozen values, handed to hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from pipecat_hedge.race.events import (
    AttemptOutcome,
    CommitOn,
    FillerCause,
    LaunchReason,
    TurnOutcome,
)

__all__ = [
    "TIERS",
    "AttemptReport",
    "BreakerReport",
    "DrainedAnswer",
    "ProviderState",
    "ServerLoad",
    "StageReport",
    "Tier",
    "TurnReport",
]

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


Tier: TypeAlias = Literal["premium", "standard", "economy"]
"""Whose request it is: of two of one class, the better tier's comes first."""

TIERS: tuple[Tier, ...] = get_args(Tier)
"""The tiers in their order."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One look at a server.

    Parameters:
        is_up: Whether it answered, and calls itself healthy.
        running: Requests being worked on, those included that this process has sent since the look.
        waiting: Requests in its queue.
        kv_cache_usage: The share of its memory for prompts that is in use, from 0 to 1; None if it
            does not say.
        prefix_hit_share: The share of the prompts' tokens, since the look before, that were still
            in its prefix cache, from 0 to 1; None if there were none, or it does not say.
        detail: What is wrong, where it is not up.
    """

    is_up: bool
    running: int = 0
    waiting: int = 0
    kv_cache_usage: float | None = None
    prefix_hit_share: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StageReport:
    """Where an attempt's first second went, as far as its HTTP client and its server tell.

    None is not known: the service does not let its client be listened to, or the stage never came.
    Moments are seconds from when the request was sent (``AttemptReport.sent_secs``).

    Parameters:
        new_connection: Whether a connection was opened for it, instead of using one that was open.
        dns_secs: How long it took to find the server's address; None where one was open, as for
            the two that follow.
        tcp_secs: How long to connect to it; with ``dns_secs`` where that is not told apart.
        tls_secs: How long to agree on keys.
        written_secs: Until the whole request had been written.
        headers_secs: Until the response's headers had come.
        first_byte_secs: Until the first byte of its body.
        first_token_secs: Until the first piece of any kind, roles and reasoning included.
        server_secs: How long the server says that it worked on it until then.
        server_source: The name of the header that says so.
    """

    new_connection: bool | None = None
    dns_secs: float | None = None
    tcp_secs: float | None = None
    tls_secs: float | None = None
    written_secs: float | None = None
    headers_secs: float | None = None
    first_byte_secs: float | None = None
    first_token_secs: float | None = None
    server_secs: float | None = None
    server_source: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One request to one provider.

    Parameters:
        provider: The provider's name.
        model: The model that was asked, as the provider names it; None if the service has none.
        launched_secs: When it was launched, from the turn's start.
        launch_reason: ``primary``, ``hedge``, ``failure`` or ``stall``.
        ttft_secs: From its launch to its first usable token; None if none came. For an attempt
            that was cancelled first, the true figure is longer than ``ended_secs - launched_secs``.
        ended_secs: When its request was done with, from the turn's start.
        outcome: ``won``, ``superseded``, ``failed`` or ``interrupted``.
        error_category: Why it failed: a value of Pipecat's ``ErrorCategory``, or ``empty``,
            ``stalled``, ``timeout``, ``deadline``, ``incomplete_call``, or ``shed`` where there was
            no room for it and no request was made.
        input_tokens: Tokens of the prompt, cached ones included, if the provider said or an
            estimate was made.
        output_tokens: Tokens that the provider produced for it.
        tokens_estimated: Whether a token count is an estimate, because the provider sent no final
            count before the request was closed.
        usd: What it cost, if the provider's price is known.
        ttfs_secs: From its launch to its first speakable sentence; None if none came.
        launch_detail: What the policy said for launching it, if it was asked.
        sent_secs: When its request was sent, from the turn's start: later than ``launched_secs``
            where it had to wait until there was room; None if it never was, be it for want of room
            or because it was withdrawn before its connection was open, where its client tells.
        stages: Where its time went; None where nothing is known of that.
    """

    provider: str
    model: str | None
    launched_secs: float
    launch_reason: LaunchReason
    ttft_secs: float | None
    ended_secs: float
    outcome: AttemptOutcome
    error_category: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    tokens_estimated: bool = False
    usd: float | None = None
    ttfs_secs: float | None = None
    launch_detail: str | None = None
    sent_secs: float | None = None
    stages: StageReport | None = None


@dataclass(frozen=True, slots=True)
class FillerReport:
    """What was done about the silence while the caller waited.

    Parameters:
        cause: Why the answer was late: ``slow``, ``tool`` or ``failing``.
        spoken_secs: When a filler was spoken, from the beginning of the wait: of the LLM's turn, or
            of the tools' run; None if none was.
        reason: Why, or why not.
        was_cut: Whether it was withdrawn before it sounded, because the answer came.
    """

    cause: FillerCause
    spoken_secs: float | None
    reason: str
    was_cut: bool = False


@dataclass(frozen=True, slots=True)
class TurnReport:
    """One LLM turn: from the context frame to the end of the answer.

    All times are seconds on one monotonic clock, counted from the context frame.

    Parameters:
        turn: The turn's number within this service, from 1.
        winner: The provider whose answer was released, the last one if it was rescued; or None.
        outcome: ``answered``, ``answered_with_tools``, ``interrupted`` or ``failed``.
        ttft_secs: To the first usable token of the released answer; None if none was released.
        ttfs_secs: To the first speakable sentence of the released answer; None if there was none.
        duration_secs: To the end of the answer.
        attempts: Every request of the turn, in the order of launch.
        commit_on: What an attempt had to have to win: ``first_sentence`` or ``first_token``, as the
            policy says or, with ``auto``, as suits the text-to-speech downstream.
        commit_reason: What made the winner win: ``first_sentence``, ``first_token``, ``tool_call``,
            ``whole_answer`` for one that ended without a whole sentence, or ``silence`` for one
            that ended without a word; None without a winner.
        prompt_tokens: An estimate of the prompt's size, by which latencies are learned.
        hedge_reason: What the policy said last about a further attempt: why it was launched, or why
            not; None if it was not asked.
        routing_reason: Why another provider was to be asked before the first, where that one had
            turned slow; None otherwise.
        prior_weight: How much of what the policy took to be known of the first provider's latency
            was only assumed, from the published figures of its kind: 1 for the first turn ever,
            nearly 0 after some hundred; None under policies that use nothing learned.
        filler: What was done about the silence, and why; None where fillers are not used. It says
            nothing of the answer: no other field counts a filler.
        committed_secs: To the first winner's commit, from which on its answer is released; None
            without a winner.
        queued_secs: How long the first request waited until there was room for it; part of every
            other time here.
        degraded_reason: Why nobody was asked, where that is so, so that the caller got the policy's
            ``fallback_text`` at once, with ``admission="shed"``: every breaker is open, or no
            provider had room in time.
            Also who failed and why, where the caller heard a part of an answer and then the
            ``fallback_text``; ``ttft_secs`` is that part's.
        tier: Whose turn it was: ``premium``, ``standard`` or ``economy``.
    """

    turn: int
    winner: str | None
    outcome: TurnOutcome
    ttft_secs: float | None
    ttfs_secs: float | None
    duration_secs: float
    attempts: tuple[AttemptReport, ...]
    commit_on: CommitOn = "first_token"
    commit_reason: str | None = None
    prompt_tokens: int | None = None
    hedge_reason: str | None = None
    routing_reason: str | None = None
    prior_weight: float | None = None
    filler: FillerReport | None = None
    committed_secs: float | None = None
    queued_secs: float = 0.0
    degraded_reason: str | None = None
    tier: Tier = "standard"


@dataclass(frozen=True, slots=True)
class BreakerReport:
    """A change of a provider's circuit breaker.

    Parameters:
        provider: The provider's name.
        model: The model that is asked; None if the service has none.
        before: ``closed``, ``open`` or ``half_open``, until now.
        after: The same, from now on.
        reason: Why, for a person to read.
    """

    provider: str
    model: str | None
    before: BreakerState
    after: BreakerState
    reason: str


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider as a service sees it now.

    Parameters:
        provider: The provider's name.
        model: The model that is asked; None if the service has none.
        p50_secs: The time to first token that half of its answers are expected to stay within.
        p95_secs: The same of 19 answers in 20.
        prior_weight: How much of these two is only assumed, from the published figures of its kind:
            1 for a provider that was never asked, nearly 0 after some hundred answers.
        is_excluded: Whether it is not asked: it has rejected a request for good, or Pipecat calls
            its service unusable. New settings bring it back.
        retry_after_secs: For how long it is still left alone, as it asked with ``Retry-After``;
            0 if it may be asked.
        server: How busy its server is, as that says itself; None where it does not say.
        breaker: ``closed``; ``open`` while it is asked last because it keeps failing; ``half_open``
            when one request at a time tests it.
        breaker_reason: Why it is not closed; empty if it is.
        in_flight: Requests to it from this process now.
        limit: The most of them with which it is sent hedges and, with ``admission="shed"``,
            callers' requests; as has been found out so far.
    """

    provider: str
    model: str | None
    p50_secs: float
    p95_secs: float
    prior_weight: float
    is_excluded: bool
    retry_after_secs: float
    server: ServerLoad | None = None
    breaker: BreakerState = "closed"
    breaker_reason: str = ""
    in_flight: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class DrainedAnswer:
    """What a loser would have said, where losers are let run on (``losers="drain"``).

    Parameters:
        turn: The turn's number.
        provider: The provider's name.
        model: The model that was asked; None if the service has none.
        text: Its answer's text.
        complete: Whether it came to its end; if not, the next turn or an interruption ended it.
        ttft_secs: From its launch to its first token; None if none came.
        duration_secs: From its launch to its end.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        tokens_estimated: Whether a token count is an estimate.
    """

    turn: int
    provider: str
    model: str | None
    text: str
    complete: bool
    ttft_secs: float | None
    duration_secs: float
    input_tokens: int
    output_tokens: int
    tokens_estimated: bool
