"""What a provider charges for tokens, as its requests in a log tell. Pure.

A budget counts a hedge for what it costs: one to a provider that is twice as dear is sent half as
often. A log tells tokens and dollars of requests and not the prices that a ``Provider`` was given,
so those are the least squares of the dollars over the tokens: exact where prompts differ in size,
and where all are alike some prices that come to the same dollars.
"""

from __future__ import annotations

import numpy as np

__all__ = ["Charges"]


class Charges:
    """The sums of one provider's requests."""

    def __init__(self) -> None:
        self._input2 = self._both = self._output2 = 0.0
        self._input_usd = self._output_usd = 0.0

    def add(self, input_tokens: float, output_tokens: float, usd: float) -> None:
        """Take a request.

        Args:
            input_tokens: The size of its prompt.
            output_tokens: The size of its answer.
            usd: What it cost, in US dollars.
        """
        self._input2 += input_tokens * input_tokens
        self._both += input_tokens * output_tokens
        self._output2 += output_tokens * output_tokens
        self._input_usd += input_tokens * usd
        self._output_usd += output_tokens * usd

    def usd_per_mtok(self) -> tuple[float, float]:
        """US dollars per million ``(input, output)`` tokens."""
        squares = np.array([[self._input2, self._both], [self._both, self._output2]])
        products = np.array([self._input_usd, self._output_usd])
        prices = np.linalg.lstsq(squares, products, rcond=1e-12)[0] * 1e6
        return max(float(prices[0]), 0.0), max(float(prices[1]), 0.0)
