"""Offers the metrics to the program's OpenTelemetry meter provider. Imported only if the program has configured one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter_provider
from opentelemetry.sdk.metrics import MeterProvider

from holdfast.installation import __version__
from holdfast.telemetry.metrics import Counter, Gauge, Histogram, Labels, Metrics

_offered: set[int] = set()
"""The providers that have them."""


def offer_metrics(metrics: Metrics) -> bool:
    """Let the program's meter provider read the metrics. Returns false if it has none."""
    provider = get_meter_provider()
    if not isinstance(provider, MeterProvider):
        return False
    if id(provider) not in _offered:
        _offered.add(id(provider))
        meter = provider.get_meter("holdfast", __version__)
        for metric in metrics.list_metrics():
            match metric:
                case Counter():
                    read = _make_callback(metric.labels, lambda counter=metric: dict(counter.values))
                    meter.create_observable_counter(metric.name, [read], metric.unit, metric.summary)
                case Gauge():
                    read = _make_callback(metric.labels, metric.read)
                    meter.create_observable_gauge(metric.name, [read], metric.unit, metric.summary)
                case Histogram(is_frequent=True):  # to record a value takes OpenTelemetry 6 µs
                    read = _make_callback(metric.labels, metric.read_totals)
                    meter.create_observable_counter(f"{metric.name}.total", [read], metric.unit, metric.summary)
                case Histogram():
                    _forward(metric, meter)
                case _:
                    pass
    return True


def _make_callback(
    names: Labels, read: Callable[[], dict[Labels, float]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(zip(names, labels, strict=True))) for labels, value in read().items()]

    return observe


def _forward(metric: Histogram, meter: Meter) -> None:
    histogram: Any = meter.create_histogram(
        metric.name, metric.unit, metric.summary, explicit_bucket_boundaries_advisory=list(metric.bounds)
    )
    attributes: dict[Labels, dict[str, str]] = {}

    def forward(value: float, labels: Labels) -> None:
        found = attributes.get(labels)
        if found is None:
            found = attributes[labels] = dict(zip(metric.labels, labels, strict=True))
        histogram.record(value, found)

    metric.forward = forward
