"""A user sets when a provider's circuit breaker opens."""

from __future__ import annotations

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
