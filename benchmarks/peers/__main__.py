"""Measure the peers beside Holdfast, and print tables: ``python -m benchmarks.peers [--only NAMES] [--json FILE]``."""

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
from benchmarks.peers.figures import Figures, Report, read  # noqa: E402
from benchmarks.peers.peer_benchmark import Bare, Measuring, Sizes  # noqa: E402
from benchmarks.peers.peer_stores import Stores  # noqa: E402
from benchmarks.peers.tables import brief, into, render  # noqa: E402

QUICK = Sizes(rounds=1, crashes=1, steps=20, runs=5, kept=(2, 20))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("--only", help=f"which to measure, with commas: {', '.join(FAMILIES)} (all unless given)")
    parser.add_argument("--rounds", type=int, help="take the median of so many rounds (5)")
    parser.add_argument("--json", type=Path, help="also keep the figures here")
    parser.add_argument("--quick", action="store_true", help="only see whether everything works")
    parser.add_argument("--render", type=Path, metavar="FILE", help="take what is kept there, and measure nothing")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="put the tables into this page instead")
    parser.add_argument("--brief", action="store_true", help="one table with what matters most")
    options = parser.parse_args()
    report = read(options.render) if options.render else _measured(parser, options)
    tables = brief(report) if options.brief else render(report)
    if options.into:
        options.into.write_text(into(options.into.read_text(), tables))
    else:
        print(tables, end="")


def _measured(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Report:
    only = options.only.split(",") if options.only else FAMILIES
    if unknown := set(only) - set(FAMILIES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(FAMILIES)}")
    sizes = QUICK if options.quick else Sizes()
    sizes.rounds = options.rounds or sizes.rounds
    return asyncio.run(measure([peer for peer in PEERS if peer.family in only], sizes, options.json))


async def measure(peers: list[Peer], sizes: Sizes, keep: Path | None) -> Report:
    """One peer after the other; what is there already is kept whenever one is done."""
    bare = Bare()
    report = _report(sizes, bare, [])
    # Beside the project, not in the system's temporary folder: that one may lie in memory.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT, ignore_cleanup_errors=True) as name:
        async with Stores(Path(name)) as stores:
            for peer in peers:
                found = await Measuring(peer, stores, Path(name), sizes, bare).figures()
                report = _report(sizes, bare, [*report.peers, found])
                if keep:
                    report.write(keep)
    return report


def _report(sizes: Sizes, bare: Bare, peers: list[Figures]) -> Report:
    return Report(
        platform.python_version(),
        os.cpu_count() or 1,
        sizes.rounds,
        sizes.crashes,
        sizes.steps,
        sizes.runs,
        *[statistics.median(rates) if rates else 0 for rates in (bare.sqlite, bare.postgres)],
        peers,
    )


if __name__ == "__main__":
    main()
