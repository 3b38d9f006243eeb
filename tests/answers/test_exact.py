"""Answers that processes share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipecat_hedge import ExactAnswers
from pipecat_hedge.testing import Say
from tests.service.builders import racing, said, scripted
from tests.support.line import Line
from tests.support.redis_server import RedisServer, needs_redis


async def requests(tenant: str, **options: Any) -> int:
    """How many requests a session sends for a turn that all sessions have."""
    answers = ExactAnswers(ttl_secs=60, tenant=tenant, **options)
    async with Line(racing(scripted(Say("Hello, caller.")), answers=[answers])) as line:
        await line.ask(context=said())
        report = await line.report()
    await answers.close()
    assert line.text == "Hello, caller."
    return len(report.attempts)


async def test_file_outlives_the_process_and_keeps_tenants_apart(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    asked = [await requests(tenant, path=path) for tenant in ("acme", "acme", "other", "")]
    assert asked == [1, 0, 1, 1]


@pytest.mark.live
@needs_redis
async def test_redis_is_shared_and_not_needed() -> None:
    with RedisServer() as server:
        asked = [await requests(tenant, redis_url=server.url) for tenant in ("a", "a", "b")]
        assert asked == [1, 0, 1]
        server.kill()
        assert await requests("a", redis_url=server.url) == 1
