"""``pipecat-hedge stats export``, and processes that begin with what it has written."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pipecat_hedge import ProviderStats
from pipecat_hedge.cli import main
from pipecat_hedge.fleet import RedisStore
from pipecat_hedge.providers import Backend, FileStore
from pipecat_hedge.providers.stats_store import Snapshot
from pipecat_hedge.race import ConfigurationError
from pipecat_hedge.service import default_store
from tests.support.learned import prior_weight
from tests.support.redis_server import RedisServer, needs_redis

CLAUDE = Backend("claude", "claude-haiku-4-5")


def learned(stats: ProviderStats, secs: float = 2.0, times: int = 400) -> ProviderStats:
    for number in range(times):
        stats.record_wait(CLAUDE, secs * (0.9 + 0.01 * (number % 21)), 100)
    return stats


def median(stats: ProviderStats) -> float:
    return stats.estimates([CLAUDE], 100, by_sentence=False)["claude"].first_token.quantile(0.5)


@pytest.fixture
def site() -> Iterator[tuple[str, dict[str, bytes | None]]]:
    """A server of files, by path; None is a server that hangs."""
    files: dict[str, bytes | None] = {}
    ends = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = files.get(self.path.partition("?")[0], b"")
            if body is None:
                ends.wait(20)
                return
            self.send_response(200 if body else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", files
    ends.set()
    server.shutdown()
    thread.join()
    server.server_close()


@needs_redis
@pytest.mark.parametrize("kind", ["file", "redis"])
def test_export_and_a_process_elsewhere_that_begins_with_it(
    kind: str,
    tmp_path: Path,
    site: tuple[str, dict[str, bytes | None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, files = site
    with RedisServer() as server:
        source = server.url if kind == "redis" else str(tmp_path / "stats.json")
        store = RedisStore(source) if kind == "redis" else FileStore(source)
        stats = learned(ProviderStats(store))
        if stats.fleet is not None:
            asyncio.run(_added(stats))
        stats.save()
        out = tmp_path / "snapshot.json"
        assert main(["stats", "export", "--from", source, "--out", str(out / "none")]) == 2
        assert main(["stats", "export", "--from", source, "--out", str(out)]) == 0
    files["/snapshot.json"] = out.read_bytes()
    monkeypatch.setenv("PIPECAT_HEDGE_STATS", f"{url}/snapshot.json?signature=secret")
    fresh = ProviderStats(default_store())
    median(fresh)  # the first turn has begun when it comes
    for _ in range(500):
        if prior_weight(fresh, CLAUDE, 100) < 0.1:
            break
        threading.Event().wait(0.01)
    assert median(fresh) == pytest.approx(2.0, rel=0.1)
    learned(fresh, secs=0.5, times=3000)
    assert median(fresh) == pytest.approx(0.5, rel=0.1), "its own observations count for more"


async def _added(stats: ProviderStats) -> None:
    assert stats.fleet is not None
    assert await stats.fleet.sync(reads=False)
    await stats.fleet.flush()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "cannot read statistics at {}: HTTPError"),
        (b"{", "statistics at {} are corrupt: they are not used"),
        (b'{"version": 99}', "statistics at {} are of version 99, which"),
    ],
)
def test_snapshot_that_cannot_be_used_is_one_warning(
    body: bytes, why: str, site: tuple[str, dict[str, bytes | None]], logged: list[str]
) -> None:
    url, files = site
    files["/x"] = body
    ProviderStats(Snapshot(f"{url}/x?signature=secret"))
    for _ in range(500):
        if logged:
            break
        threading.Event().wait(0.01)
    assert why.format(f"{url}/x") in logged[0]
    assert "secret" not in str(logged)


def test_no_turn_waits_for_a_snapshot(site: tuple[str, dict[str, bytes | None]]) -> None:
    url, files = site
    files["/x"] = None
    stats = ProviderStats(Snapshot(f"{url}/x"))
    assert prior_weight(stats, CLAUDE) == 1.0
    stats.save()


@pytest.mark.parametrize("url", ["http://example.com/x", "http://user:secret@10.0.0.1/x"])
def test_snapshot_over_a_plain_connection_is_invalid(url: str) -> None:
    with pytest.raises(ConfigurationError, match="must begin with https://") as invalid:
        Snapshot(url)
    assert "secret" not in str(invalid.value)


def test_nothing_to_export_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", "export", "--from", str(tmp_path / "none.json")]) == 2
    assert "there is nothing at" in capsys.readouterr().err
    assert main(["stats", "export", "--from", "ftp://user:secret@host"]) == 2
    assert "secret" not in capsys.readouterr().err


def test_export_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "stats.json"
    learned(ProviderStats(FileStore(file))).save()
    capsys.readouterr()
    assert main(["stats", "export", "--from", str(file)]) == 0
    assert set(json.loads(capsys.readouterr().out)["providers"]) == {CLAUDE.key}
