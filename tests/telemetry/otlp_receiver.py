"""A receiver of OTLP over HTTP, as a collector has one: it decodes what real exporters send."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """What has arrived."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.metrics: dict[str, Any] = {}
        self.lock = threading.Lock()

    def list_spans(self, name: str | None = None) -> list[Any]:
        """The spans with this name."""
        with self.lock:
            return [span for span in self.spans if name in (None, span.name)]

    def add(self, path: str, body: bytes) -> None:
        """Decode a request."""
        with self.lock:
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
                    self.services.add(attributes["service.name"])
                    for scope in resource.scope_spans:
                        self.spans += scope.spans
            elif path == "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for scope in resource.scope_metrics:
                        self.metrics |= {metric.name: metric for metric in scope.metrics}


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens in the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.add(self.path, gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server.server_port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield receiver
    server.shutdown()
    server.server_close()


def get_attributes(span: Any) -> dict[str, Any]:
    """A span's attributes."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
