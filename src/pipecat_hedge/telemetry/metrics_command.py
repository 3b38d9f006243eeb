"""``pipecat-hedge metrics``: Prometheus metrics of bots that do not serve them themselves.

Of turn logs, which are read on whenever somebody asks: every turn since their beginning counts, so
that a restart of this command looks like no reset of a counter. Or of processes that write to one
folder (``PROMETHEUS_MULTIPROC_DIR``), with their gauges.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from pipecat_hedge.limits.priority import TIERS
from pipecat_hedge.policy.slo_outcome import Slo
from pipecat_hedge.race.errors import ConfigurationError
from pipecat_hedge.service.provider_stats import ProviderStats
from pipecat_hedge.telemetry.exposition import (
    expose,
    multiprocess_dir,
    of_all_processes,
    start_http_server,
)
from pipecat_hedge.telemetry.prometheus import PrometheusRecorder
from pipecat_hedge.tools.analysis.turn_log import TurnLog

PORT = 9464
"""What OpenTelemetry's exporters for Prometheus listen on."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments.

    Args:
        parser: The command's parser.
    """
    parser.add_argument("logs", nargs="*", help="turn logs (HedgedLLMService(turn_log=...))")
    parser.add_argument(
        "--processes", metavar="DIR", help="instead: the PROMETHEUS_MULTIPROC_DIR of running bots"
    )
    parser.add_argument("--host", default="127.0.0.1", help="default 127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"default {PORT}; 0 picks a free one"
    )
    parser.add_argument("--once", action="store_true", help="print the metrics and end")
    promised = Slo()
    for name, secs in (("ttft", promised.ttft_secs), ("ttfs", promised.ttfs_secs)):
        parser.add_argument(
            f"--slo-{name}", type=float, default=secs, metavar="SECS", help=f"default {secs:g}"
        )
    parser.add_argument(
        "--slo-share", type=float, default=promised.share, help=f"default {promised.share:g}"
    )


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM, or print once.

    Args:
        args: The command line.

    Returns:
        The exit status: 0, or 2 if there is nothing to tell of or the address cannot be had.
    """
    try:
        registry = _registry(args)
        if args.once:
            sys.stdout.write(expose("", registry)[0].decode())
            return 0
        server, thread = start_http_server(args.port, addr=args.host, registry=registry)
    except (ConfigurationError, OSError) as error:
        print(f"pipecat-hedge metrics: {error}", file=sys.stderr)
        return 2
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    print(f"pipecat-hedge metrics: http://{args.host}:{server.server_port}/metrics", flush=True)
    stop.wait()
    server.shutdown()
    thread.join()
    server.server_close()
    return 0


def _registry(args: argparse.Namespace) -> CollectorRegistry:
    if bool(args.logs) == (args.processes is not None):
        raise ConfigurationError(
            "name the turn logs to read, or --processes DIR (see pipecat-hedge metrics --help)"
        )
    if args.processes is not None:
        registry = CollectorRegistry()
        registry.register(_Processes(Path(args.processes)))
        return registry
    if multiprocess_dir() is not None:
        raise ConfigurationError(
            "PROMETHEUS_MULTIPROC_DIR is set, and turn logs' metrics would be added there: unset it"
        )
    for log in args.logs:
        if not Path(log).is_file():
            raise ConfigurationError(f"there is no file {log}")
    slo = Slo(args.slo_ttft, args.slo_ttfs, None, args.slo_share)
    return of_logs(args.logs, slo)


def of_logs(paths: Sequence[str | Path], slo: Slo) -> CollectorRegistry:
    """Metrics of turn logs, read to their end now, and on whenever they are collected.

    So the first scrape need not wait until years of turns have been read, for which Prometheus has
    no patience.

    Args:
        paths: The logs.
        slo: What callers of every tier are promised.
    """
    registry = CollectorRegistry()
    registry.register(_Logs([TurnLog(path) for path in paths], slo))
    return registry


class _Processes(Collector):
    def __init__(self, folder: Path):
        self._folder = folder
        of_all_processes(folder)  # whether it is there

    def collect(self) -> Iterable[Metric]:
        return of_all_processes(self._folder).collect()


class _Logs(Collector):
    def __init__(self, logs: Sequence[TurnLog], slo: Slo):
        self._logs = logs
        self._lock = threading.Lock()
        self._counted = CollectorRegistry()
        self._recorder = PrometheusRecorder(
            stats=ProviderStats(), registry=self._counted, slos=dict.fromkeys(TIERS, slo)
        )
        self._read_on()

    def collect(self) -> Iterable[Metric]:
        skipped = CounterMetricFamily(
            "pipecat_hedge_log_lines_skipped", "Lines of the turn logs that are no turns."
        )
        with self._lock:
            self._read_on()
            skipped.add_metric([], sum(log.skipped for log in self._logs))
        told = [m for m in self._counted.collect() if m.type != "gauge" or "slo" in m.name]
        return [*told, skipped]

    def _read_on(self) -> None:
        for log in self._logs:
            for report in log.new_turns():
                self._recorder.record(report)
