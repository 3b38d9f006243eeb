"""How long somebody is waited for: what can be such a time, and what cannot. Pure."""

from __future__ import annotations

from pipecat_hedge.race.errors import ConfigurationError

__all__ = ["check_wait", "check_waits"]


def check_waits(greeting_secs: object, timeout_secs: object) -> None:
    """Refuse waits of a call that cannot be.

    Args:
        greeting_secs: How long the bot is waited for to speak first.
        timeout_secs: A bot that is silent for so long does not answer.

    Raises:
        ConfigurationError: If one is no such time; the message names it.
    """
    check_wait("timeout_secs", timeout_secs)
    if _number("greeting_secs", greeting_secs) < 0:
        raise ConfigurationError(
            f"greeting_secs must not be negative, got {greeting_secs}: 0 does not wait"
        )


def check_wait(name: str, secs: object) -> None:
    """Refuse a wait that cannot be, or that would be over at once.

    Args:
        name: What it is called.
        secs: How long.

    Raises:
        ConfigurationError: If it is no such time; the message names it.
    """
    if not _number(name, secs) > 0:
        raise ConfigurationError(f"{name} must be positive, got {secs}")


def _number(name: str, secs: object) -> float:
    if isinstance(secs, bool) or not isinstance(secs, (int, float)) or secs != secs:
        raise ConfigurationError(
            f"{name} must be a number of seconds, got {secs!r}: write {name}=5, say"
        )
    return secs
