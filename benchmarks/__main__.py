"""Measures, and prints a table: ``python -m benchmarks [NAME ...] [--rounds N] [--json FILE] [--into PAGE]``.

Each measurement runs in a process of its own, so that none sees the memory or the garbage of another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform as machine
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from benchmarks import (  # noqa: E402
    agents,
    composition,
    crash_checks,
    dashboard,
    drivers,
    floors,
    growth,
    platform_load,
    platform_requests,
    poolers,
    postgres_benchmarks,
    restart,
    sqlite_benchmarks,
)
from benchmarks.figures_page import FIGURES_PATH, Figures, insert_figures, read_figures, write_figures  # noqa: E402
from benchmarks.sqlite_benchmarks import Measurement  # noqa: E402


async def measure_temporal(folder: Path, rounds: int) -> list[Measurement]:
    # Imported only here: every full garbage collection of another measurement would visit the objects of the SDK.
    from benchmarks import temporal_benchmarks

    return await temporal_benchmarks.measure_temporal(folder, rounds)


BENCHMARKS = {
    **sqlite_benchmarks.BENCHMARKS,
    **composition.BENCHMARKS,
    **crash_checks.BENCHMARKS,
    **restart.BENCHMARKS,
    **agents.BENCHMARKS,
    **drivers.BENCHMARKS,
    **postgres_benchmarks.BENCHMARKS,
    "poolers": poolers.measure_poolers,
    **platform_load.BENCHMARKS,
    **platform_requests.BENCHMARKS,
    "temporal": measure_temporal,
    **dashboard.BENCHMARKS,
    **growth.BENCHMARKS,
    **floors.BENCHMARKS,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which to measure: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="number of rounds whose median counts")
    parser.add_argument("--json", type=Path, help=f"also write the figures here, such as {FIGURES_PATH.name}")
    parser.add_argument("--render", type=Path, metavar="FILE", help="use the figures of this file; measure nothing")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the figures into the tables of this page")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(BENCHMARKS)}")
    if options.inner:
        [name] = options.names
        print(json.dumps([asdict(line) for line in run_benchmark(name, options.rounds)]))
        return
    figures = read_figures(options.render) if options.render else measure_all(options)
    if options.into:
        options.into.write_text(insert_figures(options.into.read_text(), figures))


def measure_all(options: argparse.Namespace) -> Figures:
    """Measure, print the figures, and save them after each benchmark."""
    print(f"Python {machine.python_version()}, SQLite {sqlite3.sqlite_version}, median of {options.rounds} rounds\n")
    figures: dict[str, list[Measurement]] = {}
    for name in options.names or BENCHMARKS:
        command = [sys.executable, "-m", "benchmarks", name, "--rounds", str(options.rounds), "--inner"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        figures[name] = [Measurement(**fields) for fields in json.loads(done.stdout)]
        for measurement in figures[name]:
            print_measurement(measurement)
        if options.json:
            write_figures(options.json, {name: figures[name]}, options.rounds)
    return figures


def run_benchmark(name: str, rounds: int) -> list[Measurement]:
    # In the project's folder and not in the system's temporary folder, which may be in memory.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
        return asyncio.run(BENCHMARKS[name](Path(folder), rounds))


def print_measurement(measurement: Measurement) -> None:
    mark = {True: "ok", False: "MISSED", None: ""}[measurement.is_met]
    print(
        f"{measurement.title:<44} {measurement.value:>9,.1f} {measurement.unit:<8} {measurement.comparison:<44} "
        f"{measurement.target:<18} {mark}",
        flush=True,
    )


if __name__ == "__main__":
    main()
