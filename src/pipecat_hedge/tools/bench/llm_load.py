"""How a server answers, by load and prefix: time to first token, and for each further one.

Timed is what a client sees over the wire. Beside it stand the server's own histograms of the same
requests, read before and after: where the two differ, the difference is the network, the server's
front end, or this process.

Every request has a prompt and an answer of fixed length. Cold, no two prompts begin alike; warm,
all begin with the same long system prompt and differ in their last words, as the turns of a bot do.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import aiohttp
from openai import APIStatusError, AsyncOpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam
from prometheus_client.parser import text_string_to_metric_families

from pipecat_hedge.policy.percentiles import percentile
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.race.task_scope import TaskScope
from pipecat_hedge.vllm.server import read_counts

__all__ = ["LEVELS", "Load", "check_server", "measure"]

Prefix: TypeAlias = Literal["cold", "warm"]
LEVELS = (1, 2, 4, 8, 16, 32, 64)
TTFT = "vllm:time_to_first_token_seconds"
PER_TOKEN = "vllm:request_time_per_output_token_seconds"
QUEUED = "vllm:request_queue_time_seconds"
_WORDS = (
    "soup bread table window garden kitchen river morning evening lemon pepper market "
    "order serve invite follow listen remember slow warm quiet early late seven nine "
    "twelve"
)


@dataclass(frozen=True, slots=True)
class Histogram:
    """A Prometheus histogram, summed over its labels.

    Parameters:
        buckets: ``(upper bound, count of what was at most that)``, by bound; the last is infinite.
        sum: The sum of all values.
    """

    buckets: tuple[tuple[float, float], ...]
    sum: float

    @property
    def count(self) -> float:
        """How many values there were."""
        return self.buckets[-1][1] if self.buckets else 0.0

    @property
    def mean(self) -> float | None:
        """The mean of all values; None if there is none."""
        return self.sum / self.count if self.count else None

    def __sub__(self, before: Histogram) -> Histogram:
        """What came since an earlier reading of the same histogram."""
        earlier = dict(before.buckets)
        buckets = tuple((le, count - earlier.get(le, 0.0)) for le, count in self.buckets)
        return Histogram(buckets, self.sum - before.sum)

    def quantile(self, q: float) -> float | None:
        """The value that a share ``q`` stays within, on a straight line inside its bucket.

        As Prometheus' ``histogram_quantile`` does. None if there is nothing; the largest finite
        bound where the value lies beyond it.
        """
        if not self.count:
            return None
        rank, low, below = q * self.count, 0.0, 0.0
        for le, count in self.buckets:
            if count >= rank:
                if le == float("inf"):
                    return low
                return low + (le - low) * ((rank - below) / (count - below) if count > below else 1)
            low, below = le, count
        return low


def read_histogram(text: str, name: str) -> Histogram:
    """Read one histogram.

    Args:
        text: A server's metrics, in Prometheus' text format.
        name: The histogram's name; one that is missing is empty.
    """
    buckets: dict[float, float] = {}
    total = 0.0
    for family in text_string_to_metric_families(text):
        if family.name != name:
            continue
        for sample in family.samples:
            if sample.name == f"{name}_bucket":
                le = float(sample.labels["le"])
                buckets[le] = buckets.get(le, 0.0) + sample.value
            elif sample.name == f"{name}_sum":
                total += sample.value
    return Histogram(tuple(sorted(buckets.items())), total)


@dataclass(frozen=True, slots=True)
class Load:
    """One level of load with one kind of prefix. Times are in seconds.

    Parameters:
        concurrency: Requests at once.
        prefix: ``cold`` or ``warm``.
        requests: How many were answered.
        failed: How many were not, or not to their end.
        ttft_p50: To the first token, as the client saw it: the median; so on for the others.
        per_token_p50: What each further token of an answer took, on average over the answer: with
            speculative decoding several come at once.
        gap_p95: Between two pieces of an answer, as the client got them.
        tokens_per_sec: Tokens of answers, over all requests.
        hit_share: The share of the prompts' tokens that the server found in its prefix cache.
        server_ttft_p50: The same by the server's own histograms; None where it has none.
        server_queued_mean: How long a request waited in the server's queue, on average (its
            histogram begins at 0.3 s, so that quantiles would say little).
        failures: Why requests have failed, the commonest first.
    """

    concurrency: int
    prefix: Prefix
    requests: int
    failed: int
    ttft_p50: float | None
    ttft_p95: float | None
    ttft_max: float | None
    per_token_p50: float | None
    per_token_p95: float | None
    gap_p95: float | None
    tokens_per_sec: float
    hit_share: float | None
    server_ttft_p50: float | None
    server_ttft_p95: float | None
    server_per_token_p50: float | None
    server_per_token_p95: float | None
    server_queued_mean: float | None
    failures: tuple[str, ...] = ()


@dataclass(slots=True)
class _Seen:
    ttft: list[float] = field(default_factory=list[float])
    per_token: list[float] = field(default_factory=list[float])
    gaps: list[float] = field(default_factory=list[float])
    tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True)
class _Metrics:
    ttft: Histogram
    per_token: Histogram
    queued: Histogram
    prefix_queries: float
    prefix_hits: float


class _Prompts:
    """Prompts of about so many tokens."""

    def __init__(self, words: int, seed: int):
        self._rng = random.Random(seed)
        self._words = words
        self._shared = self._text(words)

    def messages(self, prefix: Prefix) -> list[ChatCompletionMessageParam]:
        system = self._shared if prefix == "warm" else self._text(self._words)
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": self._text(8)},
        ]

    def _text(self, words: int) -> str:
        return _text(words, self._rng)


def _text(words: int, rng: random.Random) -> str:
    known = _WORDS.split()
    return " ".join(rng.choice(known) for _ in range(words))


async def measure(
    base_url: str,
    *,
    levels: Sequence[int] = LEVELS,
    requests: int = 0,
    prompt_tokens: int = 2000,
    answer_tokens: int = 64,
    model: str | None = None,
    api_key: str | None = None,
    seed: int = 1,
    took: Callable[[], None] = lambda: None,
) -> list[Load]:
    """Measure a server at each level of load, with both kinds of prefix.

    Args:
        base_url: Where its OpenAI-compatible API is.
        levels: Requests at once.
        requests: How many at each level; 0 for four times the level, at least 16.
        prompt_tokens: The size of a prompt, about.
        answer_tokens: The size of an answer.
        model: What to ask for; None for the first that is served.
        api_key: The server's key.
        seed: Of the prompts' words.
        took: Told of every request that has ended.

    Raises:
        ConfigurationError: If the server cannot be asked, or refuses the first request.
    """
    client = AsyncOpenAI(base_url=base_url, api_key=api_key or "EMPTY", max_retries=0)
    try:
        model = await check_server(client, model)
        words = await _words_for(client, model, prompt_tokens)
    except ConfigurationError:
        await client.close()
        raise
    prompts = _Prompts(words, seed)
    loads: list[Load] = []
    try:
        for prefix in ("cold", "warm"):
            if prefix == "warm":
                await _ask(client, model, prompts.messages("warm"), 1, _Seen())
            for level in levels:
                count = requests or max(16, 4 * level)
                loads.append(
                    await _load(
                        client, base_url, model, prompts, prefix, level, count, answer_tokens, took
                    )
                )
    finally:
        await client.close()
    return loads


async def check_server(client: AsyncOpenAI, model: str | None) -> str:
    """Ask a server for one token, so that what cannot work is told before anything is measured.

    Args:
        client: Asks it.
        model: What to ask for; None for the first that is served.

    Returns:
        What to ask for.

    Raises:
        ConfigurationError: If it cannot be asked; the message says what to do.
    """
    try:
        model = model or (await client.models.list()).data[0].id
        await client.chat.completions.create(
            model=model, max_tokens=1, messages=[{"role": "user", "content": "Hello"}]
        )
    except APIStatusError as error:
        remedy = "correct --model or --api-key, or the address"
        raise ConfigurationError(f"{client.base_url}: {_told(error)} {remedy}") from error
    except (OpenAIError, IndexError) as error:
        remedy = "start the server, or correct the address (as http://localhost:8000/v1)"
        raise ConfigurationError(f"{client.base_url}: {_told(error)}: {remedy}") from error
    return model


async def _words_for(client: AsyncOpenAI, model: str, tokens: int) -> int:
    """How many words make about so many tokens, by the server's own count."""
    sizes: list[int] = []
    for words in (50, 250):
        text = _text(words, random.Random(words))
        answer = await client.chat.completions.create(
            model=model, max_tokens=1, messages=[{"role": "user", "content": text}]
        )
        sizes.append(answer.usage.prompt_tokens if answer.usage else words)
    per_word = max((sizes[1] - sizes[0]) / 200, 0.1)
    return max(round((tokens - sizes[0] + 50 * per_word) / per_word), 1)


async def _load(
    client: AsyncOpenAI,
    base_url: str,
    model: str,
    prompts: _Prompts,
    prefix: Prefix,
    level: int,
    count: int,
    answer_tokens: int,
    took: Callable[[], None],
) -> Load:
    seen = _Seen()
    waiting = [prompts.messages(prefix) for _ in range(count)]

    async def work() -> None:
        while waiting:
            await _ask(client, model, waiting.pop(), answer_tokens, seen)
            took()

    before = await _read_metrics(base_url)
    began = time.perf_counter()
    async with TaskScope() as scope:
        tasks = [scope.start(work(), name=f"load {n}") for n in range(level)]
        await asyncio.gather(*tasks)
    lasted = time.perf_counter() - began
    after = await _read_metrics(base_url)
    both = None if before is None or after is None else (before, after)
    return _sum_up(level, prefix, seen, lasted, both)


async def _ask(
    client: AsyncOpenAI,
    model: str,
    messages: list[ChatCompletionMessageParam],
    answer_tokens: int,
    seen: _Seen,
) -> None:
    body: dict[str, Any] = {"min_tokens": answer_tokens, "ignore_eos": True}
    began = last = time.perf_counter()
    first: float | None = None
    gaps: list[float] = []
    tokens = 0
    try:
        stream = await client.chat.completions.create(
            model=model,
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            max_tokens=answer_tokens,
            extra_body=body,
        )
        async for chunk in stream:
            if chunk.usage:
                tokens = chunk.usage.completion_tokens
            if not chunk.choices or not _has_token(chunk.choices[0].delta):
                continue
            now = time.perf_counter()
            if first is None:
                first = now
            else:
                gaps.append(now - last)
            last = now
    except (OpenAIError, OSError) as error:
        seen.failures[_told(error)] += 1
        return
    if first is None:
        seen.failures["an answer without any text"] += 1
        return
    seen.ttft.append(first - began)
    seen.gaps += gaps
    seen.tokens += tokens
    if tokens > 1:
        seen.per_token.append((last - first) / (tokens - 1))


def _told(error: Exception) -> str:
    """What went wrong with a request, in one line."""
    if isinstance(error, APIStatusError):
        body = error.body if isinstance(error.body, dict) else {}
        return f"HTTP {error.status_code}: {body.get('message', error.message)}"[:200]
    return str(error.__cause__ or error)[:200] or type(error).__name__


def _has_token(delta: Any) -> bool:
    return bool(delta.content or getattr(delta, "reasoning", None))


async def _read_metrics(base_url: str) -> _Metrics | None:
    url = base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    try:
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            text = await answer.text()
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None
    counts = read_counts(text)
    if counts is None:
        return None
    return _Metrics(
        read_histogram(text, TTFT),
        read_histogram(text, PER_TOKEN),
        read_histogram(text, QUEUED),
        counts.prefix_queries,
        counts.prefix_hits,
    )


def _sum_up(
    level: int,
    prefix: Prefix,
    seen: _Seen,
    lasted: float,
    metrics: tuple[_Metrics, _Metrics] | None,
) -> Load:
    server: dict[str, float | None] = dict.fromkeys(
        (
            "server_ttft_p50",
            "server_ttft_p95",
            "server_per_token_p50",
            "server_per_token_p95",
            "server_queued_mean",
            "hit_share",
        )
    )
    if metrics is not None:
        before, after = metrics
        ttft, per_token = after.ttft - before.ttft, after.per_token - before.per_token
        asked = after.prefix_queries - before.prefix_queries
        server |= {
            "server_ttft_p50": ttft.quantile(0.5),
            "server_ttft_p95": ttft.quantile(0.95),
            "server_per_token_p50": per_token.quantile(0.5),
            "server_per_token_p95": per_token.quantile(0.95),
            "server_queued_mean": (after.queued - before.queued).mean,
            "hit_share": (after.prefix_hits - before.prefix_hits) / asked if asked else None,
        }
    return Load(
        concurrency=level,
        prefix=prefix,
        requests=len(seen.ttft),
        failed=seen.failures.total(),
        ttft_p50=percentile(seen.ttft, 0.5),
        ttft_p95=percentile(seen.ttft, 0.95),
        ttft_max=max(seen.ttft, default=None),
        per_token_p50=percentile(seen.per_token, 0.5),
        per_token_p95=percentile(seen.per_token, 0.95),
        gap_p95=percentile(seen.gaps, 0.95),
        tokens_per_sec=seen.tokens / lasted,
        failures=tuple(f"{n} x {why}" for why, n in seen.failures.most_common()),
        **server,
    )
