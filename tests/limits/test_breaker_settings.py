"""A user sets when a provider's circuit breaker opens."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pipecat_hedge import HedgedLLMService, HedgePolicy, Provider
from pipecat_hedge.limits import AdmissionController, CircuitBreakerSettings
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.testing import Error, Say, ScriptedLLMService
from tests.support.line import Line


@pytest.mark.virtual_time
async def test_a_provider_has_a_breaker_of_its_own() -> None:
    breaker = CircuitBreakerSettings(failures=2, recovery_secs=5, max_recovery_secs=5)
    llm = HedgedLLMService(
        [
            Provider("strict", ScriptedLLMService([Error()], model="m"), breaker=breaker),
            Provider("usual", ScriptedLLMService([Error()], model="m")),
            Provider("fine", ScriptedLLMService([Say("Yes.")], model="m")),
        ],
        policy=HedgePolicy.fallback(3),
    )
    async with Line(llm) as line:
        for _ in range(2):
            await line.ask()
        states = llm.provider_states()
    assert [state.breaker for state in states] == ["open", "closed", "closed"]
    assert states[0].breaker_reason.startswith("2 failures in a row: open for ")


def test_settings_hold_for_breakers_that_exist_and_for_new_models() -> None:
    health = AdmissionController()
    with health.lock:
        entry = health.entry("a | old")
    settings = CircuitBreakerSettings(failures=1)
    health.configure_breaker("a", settings)
    with health.lock:
        assert entry.breaker.settings is settings
        assert health.entry("a | new").breaker.settings is settings
        assert health.entry("b | old").breaker.settings == CircuitBreakerSettings()


def test_other_values_are_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"write CircuitBreakerSettings\(failures=3\)"):
        Provider("a", ScriptedLLMService([Say("Yes.")]), breaker=3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"failures": 0}, "failures must be a whole number from 1"),
        ({"window_secs": math.inf}, "window_secs must be a positive number, got inf"),
        ({"recovery_secs": True}, "recovery_secs must be a positive number, got True"),
        ({"max_recovery_secs": "66"}, "max_recovery_secs must be a positive number"),
        ({"failed_share": 50}, "failed_share must be at most 1, got 50: 0.5 is half"),
        ({"recovery_secs": 120}, "raise max_recovery_secs, too"),
    ],
)
def test_invalid_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        CircuitBreakerSettings(**values)
