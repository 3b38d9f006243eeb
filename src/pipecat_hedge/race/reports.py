"""Reports of turns, attempts, providers and breakers: frozen values, passed to event handlers."""

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

BreakerState: TypeAlias = Literal["closed", "open", "half_open"]


Tier: TypeAlias = Literal["premium", "standard", "economy"]
"""The priority of a session. Of two requests of one class, the better tier's goes first."""

TIERS: tuple[Tier, ...] = get_args(Tier)
"""The tiers, the best first."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A server's load at one moment.

    Parameters:
        is_up: Whether it responded and reports itself healthy.
        running: Requests that it works on, including those that this process has sent since.
        waiting: Requests in its queue.
        kv_cache_usage: The share of its KV cache in use, from 0 to 1; None if it is not reported.
        prefix_hit_share: The share of prompt tokens, since the previous reading, that were in its
            prefix cache, from 0 to 1; None if there were none or it is not reported.
        detail: What is wrong, if it is not up.
    """

    is_up: bool
    running: int = 0
    waiting: int = 0
    kv_cache_usage: float | None = None
    prefix_hit_share: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class StageReport:
    """How an attempt's time to first token divides, as reported by its HTTP client.

    A value is None if it is unknown: the service's client cannot be traced, or the stage was not
    reached. Times of stages count from when the request was sent (``AttemptReport.sent_secs``).

    Parameters:
        new_connection: Whether a connection was opened for it, instead of reusing an open one.
        tcp_secs: The duration of the DNS lookup and TCP connect; None for a reused connection, as
            for the next one.
        tls_secs: The duration of the TLS handshake.
        written_secs: Until the whole request was written.
        headers_secs: Until the response's headers came.
        first_byte_secs: Until the first byte of the response's body.
        first_token_secs: Until the first piece of any kind, including roles and reasoning.
    """

    new_connection: bool | None = None
    tcp_secs: float | None = None
    tls_secs: float | None = None
    written_secs: float | None = None
    headers_secs: float | None = None
    first_byte_secs: float | None = None
    first_token_secs: float | None = None


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """One request to one provider.

    Parameters:
        provider: The provider's name.
        model: The model's name at the provider; None if the service has none.
        launched_secs: When it was launched, from the turn's start.
        launch_reason: ``primary``, ``hedge``, ``failure``, ``silence`` or ``stall``.
        ttft_secs: From its launch to its first usable token; None if none came. For an attempt
            that was cancelled before, the true value exceeds ``ended_secs - launched_secs``.
        ended_secs: When its request ended, from the turn's start.
        outcome: ``won``, ``superseded``, ``failed`` or ``interrupted``.
        error_category: Why it failed: a value of Pipecat's ``ErrorCategory``, or ``empty``,
            ``stalled``, ``timeout``, ``deadline``, ``incomplete_call``, or ``shed`` if there was no
            room for it and no request was sent.
        input_tokens: Tokens of the prompt, including cached ones, as reported or estimated.
        output_tokens: Tokens that the provider produced for it.
        tokens_estimated: Whether a token count is an estimate, because the request was closed
            before the provider sent its final count.
        usd: Its cost in US dollars, if the provider's price is known.
        ttfs_secs: From its launch to its first speakable sentence; None if none came.
        launch_detail: The policy's reason for launching it, if the policy was consulted.
        sent_secs: When its request was sent, from the turn's start. Later than ``launched_secs`` if
            it waited for room. None if it was never sent: there was no room, or it was cancelled
            before its connection was open (if its client can be traced).
        stages: How its time divides; None if nothing is known.
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
    """How the silence was filled while the caller waited.

    Parameters:
        cause: Why the answer was late: ``slow``, ``tool`` or ``failing``.
        spoken_secs: When a filler was spoken, from the start of the wait (of the LLM turn, or of
            the tool run); None if none was.
        reason: Why a filler was spoken or not.
        was_cut: Whether it was withdrawn before it was audible, because the answer came.
    """

    cause: FillerCause
    spoken_secs: float | None
    reason: str
    was_cut: bool = False


@dataclass(frozen=True, slots=True)
class TranscriptReport:
    """One utterance of the caller and its transcripts.

    Parameters:
        recogniser: The speech-to-text service.
        transcript_secs: From the end of speech to the last transcript, in seconds, when the turn
            ended or the caller spoke on; None if none had come.
        finals: How many transcripts came since the VAD had noticed the end of speech.
        announced_secs: The wait that was announced to the turn strategies, in seconds from the end
            of speech; None if it was Pipecat's constant.
        is_rescued: Whether another recogniser was asked for it, which is billed as well.
        dropped: How many late transcripts of the first recogniser were dropped meanwhile.
        was_replaced: Whether the first recogniser was stuck, and replaced by a fresh one.
    """

    recogniser: str
    transcript_secs: float | None
    finals: int
    announced_secs: float | None
    is_rescued: bool = False
    dropped: int = 0
    was_replaced: bool = False


@dataclass(frozen=True, slots=True)
class SpeechReport:
    """What was spoken of one answer, or of a line of the bot's own.

    Parameters:
        voice: The voice that spoke its last sentence; None if nothing was spoken.
        sentences: Its sentences.
        rescued: Those that another voice than the one asked first has spoken, or ended.
        left_out: Those that no voice has spoken to their end. What of them was not played is not in
            the conversation either.
        first_sound_secs: From the first sentence's text to its first sound, in seconds; None if
            nothing was spoken.
        silent_secs: The silence heard between its sentences, in seconds.
        characters: What was to be spoken.
        extra_characters: What other voices were asked for as well, which is billed, too.
        was_interrupted: Whether the caller interrupted it.
        turn: The turn whose answer it was, as ``TurnReport.turn``; None for a line of the bot's
            own, and without a ``HedgedLLMService`` upstream.
    """

    voice: str | None
    sentences: int
    rescued: int
    left_out: int
    first_sound_secs: float | None
    silent_secs: float
    characters: int
    extra_characters: int
    was_interrupted: bool = False
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class TurnReport:
    """One LLM turn, from the context frame to the end of the answer.

    All times are in seconds on one monotonic clock, from the context frame.

    Parameters:
        turn: The turn's number within this service, from 1.
        winner: The provider whose answer was released, the last one after a continuation; or None.
        outcome: ``answered``, ``answered_with_tools``, ``interrupted``, ``failed``, or
            ``withdrawn`` if the turn was speculative and the caller spoke on.
        ttft_secs: To the first usable token of the released answer; None if none was released.
        ttfs_secs: To the first speakable sentence of the released answer; None if there was none.
        duration_secs: To the end of the answer.
        attempts: Every attempt of the turn, in the order of launch.
        commit_on: What an attempt needed to win: ``first_sentence`` or ``first_token``. Set by the
            policy or, with ``auto``, by the text-to-speech downstream.
        commit_reason: Why the winner won: ``first_sentence``, ``first_token``, ``tool_call``,
            ``whole_answer`` if it ended without a whole sentence, or ``silence`` if it ended
            without text; None without a winner.
        prompt_tokens: An estimate of the prompt's size, which selects the latency statistics.
        hedge_reason: The policy's last reason for or against another attempt; None if it was not
            consulted.
        routing_reason: Why the order was not the given one: the policy's ``route``, or what put
            the first provider back (it turned slow or silent, rejected a request, sent
            ``Retry-After``, its breaker is open, its server is down or has a queue); None
            otherwise.
        route_score: What the policy's ``route`` depended on, such as the turn's complexity from 0
            to 1; None without one.
        prior_weight: The share of the first provider's latency estimate that comes from the
            published prior: 1 for the first turn, nearly 0 after some hundred; None under policies
            that do not learn.
        filler: How the silence was filled, and why; None if fillers are not used. No other field
            counts a filler.
        committed_secs: To the first winner's commit, when its answer begins to be released; None
            without a winner.
        confirmed_secs: To the end of the caller's turn, if the race began before it, on an eager
            end of turn; None otherwise. The caller waits from then on.
        degraded_reason: With ``admission="shed"``, why no request was sent, so that the caller got
            the policy's ``fallback_text`` at once: every breaker is open, or no provider had room.
            Also which providers failed and why, if the caller heard a part of an answer
            and then the ``fallback_text``; ``ttft_secs`` is then that part's.
        tier: The session's tier: ``premium``, ``standard`` or ``economy``.
        transcripts: The caller's utterances since the turn before, if a ``TranscriptTiming`` or a
            ``HedgedSTTService`` is upstream.
        speech: What was spoken since the report before, with a ``HedgedTTSService`` downstream: in
            most cases the answer before this one. ``SpeechReport.turn`` says whose it was.
        known_answer: The source of an answer without a provider, such as ``exact`` or ``faq``; None
            if a provider was asked.
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
    route_score: float | None = None
    prior_weight: float | None = None
    filler: FillerReport | None = None
    transcripts: tuple[TranscriptReport, ...] = ()
    speech: tuple[SpeechReport, ...] = ()
    committed_secs: float | None = None
    confirmed_secs: float | None = None
    degraded_reason: str | None = None
    tier: Tier = "standard"
    known_answer: str | None = None


@dataclass(frozen=True, slots=True)
class BreakerReport:
    """A state change of a provider's circuit breaker.

    Parameters:
        provider: The provider's name.
        model: The model's name; None if the service has none.
        before: The previous state: ``closed``, ``open`` or ``half_open``.
        after: The new state.
        reason: Why, in words.
    """

    provider: str
    model: str | None
    before: BreakerState
    after: BreakerState
    reason: str


@dataclass(frozen=True, slots=True)
class ProviderState:
    """A provider's current state in a service.

    Parameters:
        provider: The provider's name.
        model: The model's name; None if the service has none.
        p50_secs: The estimated median of its time to first token.
        p95_secs: The estimated 95th percentile.
        prior_weight: The share of these estimates that comes from the published prior: 1 for a
            provider without requests, nearly 0 after some hundred answers.
        is_last: Whether it comes last in the next turn: it has rejected a request, or Pipecat
            reports its service as unusable. It is level again once it has answered.
        retry_after_secs: The time left of its ``Retry-After``; 0 if requests may be sent.
        server: Its server's load; None if the server does not report it.
        breaker: ``closed``; ``open`` while it comes last because it fails; ``half_open`` while it
            gets one recovery request at a time.
        breaker_reason: Why it is not closed; empty if it is.
        in_flight: This process's requests in flight to it.
        limit: The current concurrency limit. It bounds hedges and, with ``admission="shed"``,
            callers' requests.
    """

    provider: str
    model: str | None
    p50_secs: float
    p95_secs: float
    prior_weight: float
    is_last: bool
    retry_after_secs: float
    server: ServerLoad | None = None
    breaker: BreakerState = "closed"
    breaker_reason: str = ""
    in_flight: int = 0
    limit: int = 0


@dataclass(frozen=True, slots=True)
class DrainedAnswer:
    """The answer of a loser that was allowed to finish (``losers="drain"``).

    Parameters:
        turn: The turn's number.
        provider: The provider's name.
        model: The model's name; None if the service has none.
        text: Its answer's text.
        complete: Whether it finished; if not, the next turn or an interruption ended it.
        ttft_secs: From its launch to its first usable token; None if none came.
        duration_secs: From its launch to its end.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer.
        tokens_estimated: Whether a token count is an estimate.
        tool_calls: The tools that it called, as JSON: a list of ``[name, arguments]``.
        winner: The provider whose answer was released; None if none was.
        said: What was released.
        said_tool_calls: The tools that the released answer called.
        question: The caller's last words.
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
    tool_calls: str = "[]"
    winner: str | None = None
    said: str = ""
    said_tool_calls: str = "[]"
    question: str = ""
