"""Rules that hold in every test: no task outlives it, and no packet leaves this machine."""

from __future__ import annotations

import asyncio
import gc
import inspect
import ipaddress
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import certifi
import pytest
from hypothesis import HealthCheck, settings

from pipecat_hedge.providers.loop_lag import LoopWatch
from pipecat_hedge.service import provider_stats
from pipecat_hedge.testing import AutojumpLoop
from tests.support.logged import logged

# The gate gives everybody the same examples; `make explore` looks for new ones.
# Hypothesis's limits of speed would judge the machine: its first text takes a second.
settings.register_profile(
    "gate", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", max_examples=2000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))


MOST_TIMES = 1.5
"""How many times its timeout a test on virtual time lasts at most."""
AGAIN_SECS = 10.0
"""Between two alarms of a test that has timed out and goes on."""
_TIMEOUT = pytest.StashKey[Any]()


class BoundedLoop(AutojumpLoop):
    """Ends a test that has timed out and whose tasks go on, in virtual time without end."""

    def __init__(self, most_secs: float) -> None:
        self._until, self._most_secs = time.monotonic() + most_secs, most_secs
        super().__init__()

    def time(self) -> float:
        if time.monotonic() > self._until:
            raise TimeoutError(f"the test's tasks have not ended after {self._most_secs:g} s")
        return super().time()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Tests marked ``virtual_time`` run on a loop that skips idle time."""
    if item.get_closest_marker("virtual_time"):
        timeout_secs = float(config.getoption("timeout") or config.getini("timeout"))
        return {"virtual": partial(BoundedLoop, MOST_TIMES * timeout_secs)}
    return {"real": asyncio.SelectorEventLoop}


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Iterator[None]:
    """The alarm of a timeout comes again: one in a task's step ends only that task."""
    result = yield
    item.stash[_TIMEOUT] = settings
    left_secs, _ = signal.getitimer(signal.ITIMER_REAL)
    if left_secs:
        signal.setitimer(signal.ITIMER_REAL, left_secs, AGAIN_SECS)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> Iterator[None]:
    """The teardown of a failed test has a timeout, too: pytest-timeout stops it, for pdb.

    Pipecat's worker survives one cancellation, and waits for its pipeline.
    """
    result = yield
    if isinstance(node, pytest.Item) and _TIMEOUT in node.stash:
        node.config.hook.pytest_timeout_set_timer(item=node, settings=node.stash[_TIMEOUT])
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where nothing may be skipped, a skipped test is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("REFUSE_SKIPS") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True)
def _no_leaked_tasks(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(getattr(request.node, "function", None)):
        request.getfixturevalue("_leak_check")


@pytest.fixture
def uncollected() -> Iterator[None]:
    """A collection of all that is imported takes 0.2 s, and is a wait between two tokens."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(name="logged")
def _logged() -> Iterator[list[str]]:
    """What the package logs from INFO on, each with its level."""
    with logged("INFO") as lines:
        yield lines


@pytest.fixture
async def sim() -> AsyncIterator[Any]:
    """A running simulator."""
    from pipecat_hedge.tools.simulator import Simulator  # the fast tests do without it

    async with Simulator(seed=1) as simulator:
        yield simulator


@pytest.fixture
async def _leak_check() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(3):  # tasks that are done but for their callbacks
        await asyncio.sleep(0)
    leaked = asyncio.all_tasks() - before - {asyncio.current_task()}
    assert not leaked, f"tasks outlived the test: {sorted(t.get_name() for t in leaked)}"


@pytest.fixture(autouse=True, scope="session")
def _small_trust_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Reading every authority takes each HTTP client 20 ms, and no test speaks TLS."""
    end = "-----END CERTIFICATE-----\n"
    path = tmp_path_factory.mktemp("trust") / "one.pem"
    path.write_text(certifi.contents().partition(end)[0] + end)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", str(path))
        yield


@pytest.fixture(autouse=True)
def _nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test begins with what a fresh install knows, and leaves no file behind."""
    monkeypatch.setenv("PIPECAT_HEDGE_STATS", "off")
    monkeypatch.delenv("REDIS_URL", raising=False)
    monkeypatch.setattr(provider_stats, "_shared", None)


@pytest.fixture(autouse=True)
def _keeps_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests share a machine: a hedge that is shed because another test is busy proves nothing."""

    async def unwatched(self: LoopWatch) -> None:
        pass

    monkeypatch.setattr(LoopWatch, "run_if_real", unwatched)


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, sendto = socket.socket.connect, socket.socket.sendto

    def checked_connect(self: socket.socket, address: Any) -> None:
        _check_loopback(address)
        return connect(self, address)

    def checked_sendto(self: socket.socket, *args: Any) -> int:
        _check_loopback(args[-1])
        return sendto(self, *args)

    monkeypatch.setattr(socket.socket, "connect", checked_connect)
    monkeypatch.setattr(socket.socket, "sendto", checked_sendto)


def _check_loopback(address: Any) -> None:
    if not isinstance(address, tuple) or address[0] in ("localhost", ""):
        return
    if not ipaddress.ip_address(address[0].split("%")[0]).is_loopback:
        raise RuntimeError(f"a test tried to reach {address}; only loopback is allowed")
