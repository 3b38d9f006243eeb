"""Providers' texts and log contents stay private."""

from __future__ import annotations

import os
import stat
import traceback
from pathlib import Path

import pytest
from loguru import logger

from pipecat_hedge import AllProvidersFailed
from pipecat_hedge.providers import FileStore
from pipecat_hedge.race import DrainedAnswer
from pipecat_hedge.service.events import EventHub
from pipecat_hedge.service.line_log import LineLog
from pipecat_hedge.testing import Error
from tests.service.builders import Raising, asked, racing, said, scripted

SECRET = "sk-live-1234 and what the caller said"


@pytest.mark.virtual_time
async def test_provider_text_is_logged_at_debug_only() -> None:
    lines: list[str] = []
    form = "{level}|{name}|{message}"
    sink = logger.add(lambda line: lines.append(str(line)), format=form, diagnose=True)
    line = await asked(racing(scripted(Error(SECRET)), scripted(Error(SECRET))))
    [frame] = line.errors
    failure = frame.exception
    assert isinstance(failure, AllProvidersFailed)
    causes = [(name, error.category) for name, error in failure.causes]
    assert causes == [("a", "server"), ("b", "server")]
    shown = [str(failure), repr(failure), repr(vars(failure)), frame.error, repr(frame)]
    assert SECRET not in "".join([*shown, *traceback.format_exception(failure)])
    try:
        raise failure
    except AllProvidersFailed:
        logger.exception("it failed")
    logger.remove(sink)
    secret = [text for each in lines for text in each.splitlines() if SECRET in text]
    assert secret, "what the provider said cannot be found out"
    assert all(text.startswith("DEBUG|pipecat_hedge") for text in secret if "pipecat_hedge" in text)


def test_text_of_a_subscribers_error_is_logged_at_debug_only(logged: list[str]) -> None:
    def fail(answer: DrainedAnswer) -> None:
        raise ValueError(answer.text)

    hub = EventHub()
    hub.subscribe(DrainedAnswer, fail)
    hub.publish(DrainedAnswer(1, "a", None, SECRET, True, 0.5, 1.0, 9, 9, False))
    assert "a subscriber failed" in logged[0]
    assert logged[0].endswith(": ValueError")
    assert SECRET not in "".join(logged)


async def test_inference_text_is_logged_at_debug_only() -> None:
    with pytest.raises(AllProvidersFailed) as caught:
        await racing(Raising(ValueError(SECRET))).run_inference(said())
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr(vars(caught.value))


def test_logs_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        log = tmp_path / "turns.jsonl"
        LineLog("turn_log", log).append("{}")
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        log.chmod(0o644)
        LineLog("turn_log", log).append("{}")
        assert stat.S_IMODE(log.stat().st_mode) == 0o644
        FileStore(tmp_path / "stats.json").save("{}")
        assert stat.S_IMODE((tmp_path / "stats.json").stat().st_mode) == 0o600
    finally:
        os.umask(before)
