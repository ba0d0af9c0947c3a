"""How long ``crash_everywhere`` takes for a sequence of steps, and how much memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.sqlite_benchmarks import ROOT, Measurement, build_environment, median

TARGETS_S = {200: 5.0, 1000: 60.0}
MAX_PEAK_MB = 200.0


async def measure_crash_everywhere(folder: Path, rounds: int) -> list[Measurement]:
    del folder
    lines: list[Measurement] = []
    for length, target_s in TARGETS_S.items():
        # A check of 1,000 steps takes so long that more rounds would tell nothing new.
        checks = [await asyncio.to_thread(run_check, length) for _ in range(rounds if length == 200 else 1)]
        seconds, peak_mb = median([check["seconds"] for check in checks]), max(check["peak_mb"] for check in checks)
        title = f"crash_everywhere of {length:,} steps"
        trials = f"{checks[0]['point_count']:,.0f} points in {checks[0]['trial_count']:,.0f} runs"
        lines += [
            Measurement(title, seconds, "s", trials, f"<= {target_s:.0f} s", seconds <= target_s),
            Measurement(f"{title}: peak memory", peak_mb, "MB", "", f"<= {MAX_PEAK_MB:.0f} MB", peak_mb <= MAX_PEAK_MB),
        ]
    return lines


def run_check(length: int) -> dict[str, float]:
    """Check a sequence in a new process, whose peak memory is then that of the check."""
    command = [sys.executable, "-m", "benchmarks.crash_checks", str(length)]
    done = subprocess.run(command, cwd=ROOT, env=build_environment(), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main(length: int) -> None:
    import resource

    from benchmarks import workloads
    from holdfast.testing import Runner

    started = time.perf_counter()
    report = Runner().crash_everywhere_sync(workloads.sequence, length)
    seconds = time.perf_counter() - started
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    alone_count = report.point_count - report.series_point_count
    figures = {
        "seconds": seconds,
        "peak_mb": peak_mb,
        "point_count": report.point_count,
        "trial_count": alone_count + report.series_count + report.pair_count,
    }
    print(json.dumps(figures))


BENCHMARKS: dict[str, Callable[[Path, int], Awaitable[list[Measurement]]]] = {
    "crash-everywhere": measure_crash_everywhere
}

if __name__ == "__main__":
    main(int(sys.argv[1]))
