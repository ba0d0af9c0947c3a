"""Configures OpenTelemetry for the commands ``worker`` and ``serve``, from its own environment variables.

A library leaves that to the program, and so do these commands if the user's module has done it, or if they run under
``opentelemetry-instrument``.
"""

from __future__ import annotations

import os

from holdfast.errors import UsageError

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_SIGNALS = ("TRACES", "METRICS")


def configure_from_environment(service: str) -> None:
    """Export spans and metrics over OTLP, if variables such as ``OTEL_EXPORTER_OTLP_ENDPOINT`` say where to."""
    wanted = [signal for signal in _SIGNALS if _is_wanted(signal)]
    if not wanted:
        return
    try:
        from opentelemetry import metrics, trace
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{_ENDPOINT} is set, but {error.name} is not installed: pip install 'holdfast-agents[otel]'"
        ) from None
    resource = Resource.create({} if "OTEL_SERVICE_NAME" in os.environ else {SERVICE_NAME: service})
    if "TRACES" in wanted and not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
    if "METRICS" in wanted and not isinstance(metrics.get_meter_provider(), MeterProvider):
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        metrics.set_meter_provider(MeterProvider([reader], resource=resource))


def _is_wanted(signal: str) -> bool:
    exporter = os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp")
    has_endpoint = bool(os.environ.get(_ENDPOINT) or os.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return has_endpoint and exporter == "otlp" and not is_disabled
