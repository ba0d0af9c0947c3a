"""The spans that a test's tracer provider has exported."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """The spans that were exported."""

    def __init__(self, provider: TracerProvider, exporter: InMemorySpanExporter) -> None:
        self.provider = provider
        self.exporter = exporter

    def list(self, name: str | None = None) -> list[ReadableSpan]:
        """Those with this name, in the order of their ends."""
        return [span for span in self.exporter.get_finished_spans() if name in (None, span.name)]

    def get(self, name: str) -> ReadableSpan:
        """The only one with this name."""
        [span] = self.list(name)
        return span

    def get_attributes(self, name: str) -> dict[str, Any]:
        """The attributes of the last one with this name."""
        return dict(self.list(name)[-1].attributes or {})

    def get_parent_name(self, span: ReadableSpan) -> str | None:
        """The name of the span above this one, if it is there."""
        names = {one.context.span_id: one.name for one in self.list() if one.context is not None}
        return None if span.parent is None else names.get(span.parent.span_id)
