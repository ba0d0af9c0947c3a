"""Measures peers next to Holdfast, and prints tables: ``python -m benchmarks.peers [--only NAMES] [--json FILE]``."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "src"))

from benchmarks.peers.catalog import FAMILIES, PEERS, Peer  # noqa: E402
from benchmarks.peers.figures import PeerFigures, PeerReport, read_report  # noqa: E402
from benchmarks.peers.peer_benchmark import BaselineRates, BenchmarkSizes, PeerBenchmark  # noqa: E402
from benchmarks.peers.peer_stores import PeerStoreFactory  # noqa: E402
from benchmarks.peers.plot import render_plot  # noqa: E402
from benchmarks.peers.tables import insert_tables, render_report, render_summary  # noqa: E402

QUICK_SIZES = BenchmarkSizes(
    round_count=1, crash_round_count=1, sequential_step_count=20, concurrent_run_count=5, size_sample=(2, 20)
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", help=f"which to measure, separated by commas: {', '.join(FAMILIES)} (default: all)")
    parser.add_argument("--rounds", type=int, help="number of rounds whose median counts (default: 5)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="one small round, to check that everything works")
    parser.add_argument("--render", type=Path, metavar="FILE", help="use the figures of this file; measure nothing")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the tables into this page instead")
    parser.add_argument("--brief", action="store_true", help="one table with the main figures")
    parser.add_argument("--plot", type=Path, metavar="SVG", help="also draw steps per second and takeovers")
    options = parser.parse_args()
    report = read_report(options.render) if options.render else _run_measurements(parser, options)
    tables = render_summary(report) if options.brief else render_report(report)
    if options.plot:
        options.plot.write_text(render_plot(report))
    if options.into:
        options.into.write_text(insert_tables(options.into.read_text(), tables))
    else:
        print(tables, end="")


def _run_measurements(parser: argparse.ArgumentParser, options: argparse.Namespace) -> PeerReport:
    only = options.only.split(",") if options.only else FAMILIES
    if unknown := set(only) - set(FAMILIES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(FAMILIES)}")
    sizes = QUICK_SIZES if options.quick else BenchmarkSizes()
    sizes.round_count = options.rounds or sizes.round_count
    return asyncio.run(measure_peers([peer for peer in PEERS if peer.family in only], sizes, options.json))


async def measure_peers(peers: list[Peer], sizes: BenchmarkSizes, output_path: Path | None) -> PeerReport:
    """Measure one peer after the other, and save the results after each."""
    bare = BaselineRates()
    report = _build_report(sizes, bare, [])
    # In the project's folder and not in the system's temporary folder, which may be in memory.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT, ignore_cleanup_errors=True) as name:
        async with PeerStoreFactory(Path(name)) as stores:
            for peer in peers:
                found = await PeerBenchmark(peer, stores, Path(name), sizes, bare).measure()
                report = _build_report(sizes, bare, [*report.peers, found])
                if output_path:
                    report.write(output_path)
    return report


def _build_report(sizes: BenchmarkSizes, baseline_rates: BaselineRates, peers: list[PeerFigures]) -> PeerReport:
    return PeerReport(
        platform.python_version(),
        os.cpu_count() or 1,
        sizes.round_count,
        sizes.crash_round_count,
        sizes.sequential_step_count,
        sizes.concurrent_run_count,
        *[statistics.median(rates) if rates else 0 for rates in (baseline_rates.sqlite, baseline_rates.postgres)],
        peers,
    )


if __name__ == "__main__":
    main()
