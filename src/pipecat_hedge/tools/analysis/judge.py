"""Asks a model whether two answers say the same, through Pipecat's classifiers."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pipecat.classifiers.base_classifier import BaseClassifier, ClassifierError, YesNoQuestion
from pipecat.classifiers.llm.classifier import LLMClassifier
from pipecat.services.openai.llm import OpenAILLMService

from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.tools.analysis.agreement import Said
from pipecat_hedge.tools.analysis.pairs import Pair, wilson

AT_ONCE = 8
QUESTION = YesNoQuestion(
    instructions="Do both answers of a voice agent tell the caller the same?",
    yes="The facts, numbers, dates, actions and offers are the same, whatever the wording.",
    no="A caller who got the other answer would believe, expect or do something else.",
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a model says of a sample of two providers' answers.

    Parameters:
        names: The providers.
        asked: How many pairs were judged.
        agreement: The share of them that say the same.
        low: The lower bound of its 95 % interval.
        high: The upper bound.
        missed: The pairs that differ although every check passed.
        failed: The number of pairs for which the model gave no judgement.
        why: Why it gave none of the first of them; None if there is none.
    """

    names: tuple[str, str]
    asked: int
    agreement: float
    low: float
    high: float
    missed: tuple[Pair, ...]
    failed: int
    why: str | None


def judge_model(model: str, base_url: str | None) -> BaseClassifier:
    """Return a judge: a model behind an OpenAI-compatible API.

    Args:
        model: The model.
        base_url: The API; None is OpenAI's, with the key of ``OPENAI_API_KEY``.

    Raises:
        ConfigurationError: If OpenAI's key is not set.
    """
    key = os.environ.get("OPENAI_API_KEY")
    if key is None and base_url is None:
        raise ConfigurationError(
            "--judge needs OPENAI_API_KEY, or --judge-url with the address of another API"
        )
    settings = OpenAILLMService.Settings(model=model)
    return LLMClassifier(
        llm=OpenAILLMService(api_key=key or "none", base_url=base_url, settings=settings)
    )


async def judge(
    pairs: Iterable[Pair], classifier: BaseClassifier, most: int, seed: int = 1
) -> list[Judgement]:
    """Judge a sample of the pairs of each two providers, the lowest agreement first.

    Args:
        pairs: The answers side by side.
        classifier: The judge.
        most: The most pairs to judge of two providers.
        seed: The same seed takes the same sample.
    """
    groups: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair.names].append(pair)
    at_once = asyncio.Semaphore(AT_ONCE)

    async def is_same(pair: Pair) -> bool | ClassifierError:
        state = {"asked": pair.question, "answers": [_whole(said) for said in pair.answers]}
        async with at_once:
            try:
                return (await classifier.yes_no(state, {"same": QUESTION}))["same"].is_yes
            except ClassifierError as error:
                return error

    found: list[Judgement] = []
    for names, group in groups.items():
        sample = random.Random(seed).sample(group, min(most, len(group)))
        verdicts = await asyncio.gather(*map(is_same, sample))
        judged = [
            (pair, verdict)
            for pair, verdict in zip(sample, verdicts, strict=True)
            if isinstance(verdict, bool)
        ]
        errors = [str(verdict) for verdict in verdicts if not isinstance(verdict, bool)]
        same, count = sum(verdict for _, verdict in judged), len(judged)
        low, high = wilson(same, count) if count else (0.0, 1.0)
        missed = tuple(p for p, verdict in judged if not verdict and not p.differs_by)
        share = same / count if count else 0.0
        why = errors[0] if errors else None
        found.append(Judgement(names, count, share, low, high, missed, len(errors), why))
    return sorted(found, key=lambda each: each.agreement)


def _whole(said: Said) -> str:
    return said.text if said.tool_calls == "[]" else f"{said.text} {said.tool_calls}"
