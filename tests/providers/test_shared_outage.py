"""Separating failures of our own network from a provider's."""

from __future__ import annotations

import pytest

from pipecat_hedge.providers.shared_outage import WITHIN_SECS, SharedOutage

A_AND_B = [(at, host) for second in range(30) for at, host in ((second, "a"), (second + 0.5, "b"))]


@pytest.mark.parametrize(
    ("failures", "charged"),
    [
        pytest.param([(0.0, "a"), (1.0, "a")], [0.0, 1.0], id="one host"),
        pytest.param([(0.0, "a"), (1.9, "b")], [], id="two hosts"),
        pytest.param([(0.0, "a"), (2.1, "b")], [0.0, 2.1], id="further apart"),
        pytest.param(A_AND_B, [], id="a lasting outage"),
        pytest.param(
            [(0.0, "b"), *((float(second), "a") for second in range(10))],
            [float(second) for second in range(3, 10)],
            id="one host still down after an outage",
        ),
    ],
)
def test_failures_at_several_hosts_charge_no_provider(
    failures: list[tuple[float, str]], charged: list[float]
) -> None:
    outage, classified = SharedOutage[str](), list[tuple[float, str, bool]]()
    for at, host in failures:
        classified += outage.take_classified(at)
        outage.add(f"{host}:443", at, host)
        assert all(failed_at <= at - WITHIN_SECS for failed_at, *_ in classified)
    classified += outage.take_classified(99.0)
    assert [at for at, _, is_shared in classified if not is_shared] == charged
