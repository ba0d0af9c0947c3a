"""The metrics of this process.

They are plain numbers, which cost a step about a microsecond. The Prometheus page (``prometheus``) and OpenTelemetry
(``otel_metrics``) read them, and a supervisor adds up those of its processes (``process_totals``). Labels are names
that code declares: workflows, queues, models. No metric has more than ``MAX_SERIES`` combinations of them; the rest are
counted under ``other``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any

MAX_SERIES = 1000
SECONDS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

Labels = tuple[str, ...]


class Metric(ABC):
    """A named number, or one for each combination of labels."""

    kind = ""

    def __init__(self, name: str, summary: str, labels: Labels = (), unit: str = "") -> None:
        self.name = name
        """As in ``holdfast.steps``."""
        self.summary = summary
        self.labels = labels
        self.unit = unit

    @abstractmethod
    def dump(self) -> list[Any]:
        """The values of now, as JSON."""

    @abstractmethod
    def add_dump(self, dump: list[Any]) -> None:
        """Add the values of the same metric of another process."""


class Counter(Metric):
    """A sum that only rises."""

    kind = "counter"

    def __init__(self, name: str, summary: str, labels: Labels = (), unit: str = "") -> None:
        super().__init__(name, summary, labels, unit)
        self.values: dict[Labels, float] = {}

    def add(self, labels: Labels = (), amount: float = 1) -> None:
        """Add to the sum of these labels."""
        values = self.values
        if labels not in values and len(values) >= MAX_SERIES:
            labels = ("other",) * len(labels)
        values[labels] = values.get(labels, 0) + amount

    def dump(self) -> list[Any]:
        """The values of now, as JSON."""
        return list(self.values.items())

    def add_dump(self, dump: list[Any]) -> None:
        """Add the values of another process."""
        for labels, value in dump:
            self.add(tuple(labels), value)


class Distribution:
    """The observed values of one combination of labels."""

    __slots__ = ("counts", "total")

    def __init__(self, bucket_count: int) -> None:
        self.counts = [0] * bucket_count
        self.total = 0.0


class Histogram(Metric):
    """How values are distributed."""

    kind = "histogram"

    def __init__(
        self,
        name: str,
        summary: str,
        labels: Labels = (),
        unit: str = "s",
        bounds: Sequence[float] = SECONDS,
        *,
        is_frequent: bool = False,
    ) -> None:
        super().__init__(name, summary, labels, unit)
        self.is_frequent = is_frequent
        """A value is observed for each step: for OpenTelemetry, only their sum is counted."""
        self.bounds = bounds
        """The upper bounds of the buckets; one more is unbounded."""
        self.values: dict[Labels, Distribution] = {}
        self.forward: Callable[[float, Labels], None] | None = None
        """Gets each value, too."""

    def read_totals(self) -> dict[Labels, float]:
        """The sums of the values."""
        return {labels: found.total for labels, found in list(self.values.items())}

    def _get_distribution(self, labels: Labels) -> Distribution:
        found = self.values.get(labels)
        if found is None:
            if len(self.values) >= MAX_SERIES:
                labels = ("other",) * len(labels)
            found = self.values.setdefault(labels, Distribution(len(self.bounds) + 1))
        return found

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Count a value."""
        found = self._get_distribution(labels)
        found.counts[bisect_left(self.bounds, value)] += 1
        found.total += value
        if self.forward is not None:
            self.forward(value, labels)

    def dump(self) -> list[Any]:
        """The values of now, as JSON."""
        return [(labels, found.counts, found.total) for labels, found in list(self.values.items())]

    def add_dump(self, dump: list[Any]) -> None:
        """Add the values of another process."""
        for labels, counts, total in dump:
            found = self._get_distribution(tuple(labels))
            found.counts = [one + other for one, other in zip(found.counts, counts, strict=True)]
            found.total += total


class Gauge(Metric):
    """A number that is read on demand."""

    kind = "gauge"

    def __init__(self, name: str, summary: str, labels: Labels = (), unit: str = "") -> None:
        super().__init__(name, summary, labels, unit)
        self.sources: list[Callable[[], Iterable[tuple[Labels, float]]]] = []
        """What to ask; values with the same labels are added."""

    def read(self) -> dict[Labels, float]:
        """The values of now."""
        values: dict[Labels, float] = {}
        for source in list(self.sources):
            for labels, value in source():
                values[labels] = values.get(labels, 0) + value
        return values

    def dump(self) -> list[Any]:
        """The values of now, as JSON."""
        return list(self.read().items())

    def add_dump(self, dump: list[Any]) -> None:
        """Add the values of another process."""
        self.sources.append(lambda: [(tuple(labels), value) for labels, value in dump])


class Metrics:
    """All metrics of a process."""

    def __init__(self) -> None:
        workflow = ("workflow",)
        self.runs_started = Counter("holdfast.runs.started", "Runs whose execution began here.", workflow)
        self.runs_ended = Counter("holdfast.runs.ended", "Runs that ended here, by state.", ("workflow", "state"))
        self.held_runs = Gauge("holdfast.runs.held", "Runs in the memory of this process.")
        self.queue_wait = Histogram("holdfast.queue.wait", "How long runs waited for a worker.", ("queue",))
        self.claim_duration = Histogram("holdfast.claim.duration", "How long claims of due runs took.")
        self.takeovers = Counter("holdfast.takeovers", "Runs of dead workers that this one continued.", workflow)
        self.replays = Counter("holdfast.replays", "Runs that came back into memory.", workflow)
        self.replayed_records = Counter("holdfast.replayed.records", "Recorded outcomes that were replayed.", workflow)
        self.steps = Counter("holdfast.steps", "Recorded steps, by outcome.", ("workflow", "outcome"))
        self.step_duration = Histogram(
            "holdfast.step.duration", "How long attempts with an outcome took.", workflow, is_frequent=True
        )
        self.step_retries = Counter("holdfast.step.retries", "Attempts that are followed by another.", workflow)
        self.commit_duration = Histogram("holdfast.commit.duration", "How long commits took.")
        self.commit_operations = Histogram(
            "holdfast.commit.operations", "Operations in a commit.", unit="", bounds=SIZES
        )
        self.missed_renewals = Counter("holdfast.lease.missed_renewals", "Renewals of the worker's lease that failed.")
        model = ("model",)
        self.model_calls = Counter("holdfast.model.calls", "Calls of models.", model)
        self.model_tokens = Counter("holdfast.model.tokens", "Tokens of model calls.", ("model", "direction"))
        self.model_cost = Counter("holdfast.model.cost", "Cost of model calls in dollars.", model, unit="usd")
        self.deliveries = Counter("holdfast.deliveries", "Deliveries to addresses, by outcome.", ("outcome",))
        self.webhooks = Counter("holdfast.webhooks", "Requests to webhooks, by outcome.", ("outcome",))

    def list_metrics(self) -> list[Metric]:
        """All of them."""
        return list(vars(self).values())


METRICS = Metrics()
