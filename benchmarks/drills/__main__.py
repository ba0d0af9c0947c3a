"""Runs drills, and prints their figures: ``python -m benchmarks.drills [NAME ...] [--json FILE] [--into PAGE]``.

Each drill runs in a process of its own, on each store that it is about. The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from app_processes import World

from benchmarks.__main__ import print_measurement
from benchmarks.drills import ROOT
from benchmarks.drills.drill_world import open_world
from benchmarks.figures_page import Figures, insert_figures, read_figures, write_figures
from benchmarks.sqlite_benchmarks import Measurement

FIGURES_PATH = Path(__file__).parent / "figures.json"
BOTH = ("sqlite", "postgres")

Drill = Callable[[World], list[Measurement]]


def _load(module: str, name: str, **size: object) -> Drill:
    return partial(getattr(importlib.import_module(f"benchmarks.drills.{module}"), name), **size)


DRILLS: dict[str, tuple[tuple[str, ...], Callable[[], Drill]]] = {
    "mass-death": (
        ("postgres",),
        lambda: _load("mass_death", "kill_most_workers", worker_count=20, survivor_count=2, run_count=2000),
    ),
    "partition": (("postgres",), lambda: _load("partition", "partition_worker", mode="black hole")),
    "reset": (("postgres",), lambda: _load("partition", "partition_worker", mode="reset")),
    "timers": (BOTH, lambda: _load("timers", "ring_at_once", run_count=10_000, sleep_s=120)),
    "timers-of-two": (
        BOTH,
        lambda: _load("timers", "ring_at_once", run_count=10_000, sleep_s=120, worker_count=2),
    ),
    "signals": (BOTH, lambda: _load("signals", "send_many_signals", signal_count=100_000)),
    "leaking-tool": (BOTH, lambda: _load("leaking_tool", "leak_until_killed", neighbor_count=50, step_count=150)),
    "agent-soak": (BOTH, lambda: _load("agent_soak", "soak_agents", seconds=600)),
}
"""The stores of each drill, and the drill at full size."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drills", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which drills: {', '.join(DRILLS)} (default: all)")
    parser.add_argument("--store", choices=BOTH, action="append", help="only on this store")
    parser.add_argument("--json", type=Path, help=f"also write the figures here, such as {FIGURES_PATH.name}")
    parser.add_argument("--render", type=Path, metavar="FILE", help="use the figures of this file; run nothing")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the figures into the tables of this page")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.names) - set(DRILLS)
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(DRILLS)}")
    stores = options.store or list(BOTH)
    if options.inner:
        # Whoever stops a drill must not leave its processes behind; a shell's background jobs ignore Ctrl-C.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
        [name], [store] = options.names, stores
        with open_world(store) as world:
            print(json.dumps([asdict(line) for line in DRILLS[name][1]()(world)]))
        return
    failed: list[str] = []
    figures = read_figures(options.render) if options.render else run_drills(options, stores, failed)
    if options.into:
        options.into.write_text(insert_figures(options.into.read_text(), figures))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run_drills(options: argparse.Namespace, stores: list[str], failed: list[str]) -> Figures:
    """Run each drill, print its figures, and save them. Adds the drills that failed to ``failed``."""
    figures: dict[str, list[Measurement]] = {}
    for name in options.names or DRILLS:
        for store in (store for store in DRILLS[name][0] if store in stores):
            command = [sys.executable, "-m", "benchmarks.drills", name, "--store", store, "--inner"]
            done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                failed.append(f"{name} on {store}")
                continue
            lines = [Measurement(**fields) for fields in json.loads(done.stdout.splitlines()[-1])]
            figures[f"{name}-{store}"] = lines
            for line in lines:
                print_measurement(line)
            if options.json:
                write_figures(options.json, {f"{name}-{store}": lines}, 1)
    return figures


if __name__ == "__main__":
    main()
