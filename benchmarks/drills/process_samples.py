"""Memory, file descriptors, threads, and CPU time of processes over time."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import psutil

MB = 1_000_000


class ProcessSample(NamedTuple):
    """A process at one moment."""

    at: float
    rss_mb: float
    fd_count: int
    thread_count: int
    cpu_s: float


def read_sample(pid: int) -> ProcessSample | None:
    """The process now; ``None`` if it has died."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            cpu = process.cpu_times()
            return ProcessSample(
                time.time(),
                process.memory_info().rss / MB,
                process.num_fds(),
                process.num_threads(),
                cpu.user + cpu.system,
            )
    except psutil.Error:
        return None


class ProcessSampler:
    """Samples processes in a thread, for as long as the context lasts."""

    def __init__(self, list_pids: Callable[[], Sequence[int]], interval_s: float) -> None:
        self.samples: dict[int, list[ProcessSample]] = {}
        self._list_pids = list_pids
        self._interval_s = interval_s
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="samples")

    def __enter__(self) -> ProcessSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def get_peak_mb(self) -> float:
        """The largest memory of any process."""
        return max(sample.rss_mb for samples in self.samples.values() for sample in samples)

    def _run(self) -> None:
        while True:
            for pid in self._list_pids():
                sample = read_sample(pid)
                if sample is not None:
                    self.samples.setdefault(pid, []).append(sample)
            if self._has_ended.wait(self._interval_s):
                return


class Growth(NamedTuple):
    """Medians of the second and of the last quarter of the samples of a process."""

    before: float
    after: float

    def is_flat(self, tolerance: float) -> bool:
        return self.after - self.before <= tolerance


def measure_growth(values: Sequence[float]) -> Growth:
    """Compare the last quarter with the second; the first one is when caches fill."""
    quarter = len(values) // 4
    assert quarter >= 2, f"too few samples: {len(values)}"
    return Growth(statistics.median(values[quarter : 2 * quarter]), statistics.median(values[-quarter:]))
