"""The metrics of a supervisor: those of its processes, added up.

A process sends all of its metrics when the supervisor asks, which is when its page is read. What a process has counted
since then is lost when it is killed. What it had counted before stays in the sums, so that no counter ever falls.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.telemetry.metrics import Gauge, Metric, Metrics

Dump = dict[str, list[Any]]


def dump_metrics(metrics: Metrics) -> bytes:
    """What a process sends to its supervisor."""
    return json.dumps({metric.name: metric.dump() for metric in metrics.list_metrics()}).encode()


class ProcessTotals:
    """The sums of the metrics of processes.

    Args:
        ask: asks all living processes. Returns the answer of each, by a number that no other process has had; ``None``:
            it does not answer.
    """

    def __init__(self, ask: Callable[[], Mapping[int, bytes | None]]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._dumps: dict[int, Dump] = {}
        """The last one of each living process."""
        self._ended = Metrics()
        """What processes have counted that have ended."""

    def list_metrics(self) -> list[Metric]:
        """The sums of now."""
        with self._lock:
            answers = self._ask()
            for number in self._dumps.keys() - answers.keys():
                _add(self._ended, self._dumps.pop(number), has_gauges=False)
            self._dumps |= {number: json.loads(answer) for number, answer in answers.items() if answer is not None}
            totals = Metrics()
            _add(totals, {metric.name: metric.dump() for metric in self._ended.list_metrics()})
            for dump in self._dumps.values():
                _add(totals, dump)
        return totals.list_metrics()


def _add(metrics: Metrics, dump: Dump, *, has_gauges: bool = True) -> None:
    for metric in metrics.list_metrics():
        if has_gauges or not isinstance(metric, Gauge):
            metric.add_dump(dump[metric.name])
