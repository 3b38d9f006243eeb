"""Answers without a provider: the same turn again, and curated questions."""

from pipecat_hedge.answers.exact import ExactAnswers
from pipecat_hedge.answers.faq import FaqEntry
from pipecat_hedge.answers.faq_answers import FaqAnswers
from pipecat_hedge.answers.store import AnswerStore, open_store

__all__ = ["AnswerStore", "ExactAnswers", "FaqAnswers", "FaqEntry", "open_store"]
