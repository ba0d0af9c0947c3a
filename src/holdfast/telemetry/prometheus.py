"""The metrics as a page for Prometheus, in its text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.telemetry.metrics import Counter, Gauge, Histogram, Labels, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNITS = {"s": "_seconds", "usd": "_usd", "": ""}
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def render_metrics(metrics: Iterable[Metric]) -> str:
    """The page."""
    return "".join(f"{line}\n" for metric in metrics for line in _render(metric))


def _render(metric: Metric) -> Iterator[str]:
    name = metric.name.replace(".", "_") + _UNITS[metric.unit]
    if isinstance(metric, Counter):
        name += "_total"
    yield f"# HELP {name} {metric.summary}"
    yield f"# TYPE {name} {metric.kind}"
    if isinstance(metric, Histogram):
        for labels, found in list(metric.values.items()):
            count = 0
            for bound, size in zip((*metric.bounds, "+Inf"), found.counts, strict=True):
                count += size
                yield f"{name}_bucket{_format_labels((*metric.labels, 'le'), (*labels, str(bound)))} {count}"
            yield f"{name}_sum{_format_labels(metric.labels, labels)} {found.total}"
            yield f"{name}_count{_format_labels(metric.labels, labels)} {count}"
    elif isinstance(metric, Counter | Gauge):
        values = metric.values if isinstance(metric, Counter) else metric.read()
        for labels, value in list(values.items()):
            yield f"{name}{_format_labels(metric.labels, labels)} {value}"


def _format_labels(names: Labels, values: Labels) -> str:
    pairs = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""
