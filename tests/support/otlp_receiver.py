"""A collector of traces on loopback, as far as OTLP over HTTP goes: it takes what it is sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OTLPReceiver:
    """What has been sent, as protobuf says it.

    Attributes:
        port: Where it listens.
        requests: The path and the content type of each request.
        spans: The spans, in the order in which they came.
        raw: Everything that was sent, for looking for what must not be in it.
    """

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[tuple[str, str | None]] = []
        self.spans: list[Span] = []
        self.raw = b""

    def take(self, handler: BaseHTTPRequestHandler) -> None:
        """Take one request."""
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if handler.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.requests.append((handler.path, handler.headers["Content-Type"]))
        self.raw += body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        answer = ExportTraceServiceResponse().SerializeToString()
        handler.send_response(200)
        handler.send_header("Content-Type", "application/x-protobuf")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def named(self, *names: str) -> list[Span]:
        """The spans of these names, in the order of their beginning."""
        found = [span for span in self.spans if span.name in names]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


def said(attributes: Any) -> dict[str, Any]:
    """What attributes say, as Python's values."""
    told: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in told}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


@contextmanager
def otlp_receiver() -> Iterator[OTLPReceiver]:
    """Run one, in a thread of its own, as exporters run in theirs."""
    receiver = OTLPReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            receiver.take(self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
