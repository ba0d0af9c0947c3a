"""Compares the speed of this tree with another one: ``python -m benchmarks.compare OTHER NAME ... [--pairs N]``.

``OTHER`` is a worktree of an earlier commit. Each pair runs a benchmark once in each tree, in turns, so that both see
the same machine. It compares the benchmark's own figures and the CPU time of its process and of those it started. The
interval is the 95 % interval of the mean ratio, this tree over the other one. A benchmark fails if its whole interval
is beyond 5 % slower. With ``--count``, ``strace`` counts fsyncs and messages to a database server, once in each tree.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOLERANCE = 1.05
_FASTER_IS_MORE = re.compile(r"/s$|per second")
_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t for a two-sided interval, by degrees of freedom from 1 on; 2.0 for more."""
_COUNTED = {"fsync": "fsyncs", "fdatasync": "fsyncs", "sendto": "messages", "sendmsg": "messages"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, help="a worktree of the commit to compare with")
    parser.add_argument("names", nargs="+", help="which benchmarks")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--count", action="store_true", help="also count fsyncs and messages with strace")
    options = parser.parse_args()
    is_slower = False
    for name in options.names:
        pairs: list[tuple[dict[str, float], dict[str, float]]] = []
        for number in range(options.pairs):
            trees = [ROOT, options.other] if number % 2 else [options.other, ROOT]
            costs = {tree: measure(tree, name) for tree in trees}
            pairs.append((costs[ROOT], costs[options.other]))
        for index, title in enumerate(list(pairs[0][0])[: len(pairs[0][1])]):  # the other tree may have fewer figures
            ratios = [list(here.values())[index] / list(there.values())[index] for here, there in pairs]
            low, mean, high = estimate_ratio(ratios)
            is_slower |= low > TOLERANCE
            print(
                f"{name:<20} {title[:44]:<44} {mean:6.3f}  95 %: {low:.3f} to {high:.3f}  "
                f"{'SLOWER' if low > TOLERANCE else 'ok'}",
                flush=True,
            )
        if options.count:
            for tree in (options.other, ROOT):
                print(f"{name:<20} {'here' if tree is ROOT else 'there':<6} {count_calls(tree, name)}", flush=True)
    sys.exit(is_slower)


def measure(tree: Path, name: str) -> dict[str, float]:
    """The cost of a benchmark: CPU time, then its own figures, normalized so that less is better."""
    before = os.times()
    figures = json.loads(run(tree, name, []))
    after = os.times()
    costs = {"CPU time": after.children_user - before.children_user + after.children_system - before.children_system}
    for figure in figures:
        title, value, unit = list(figure.values())[:3]  # in this order; earlier commits have other names for them
        costs[title] = 1 / value if _FASTER_IS_MORE.search(unit) else value
    return costs


def run(tree: Path, name: str, prefix: list[str]) -> str:
    command = [*prefix, sys.executable, "-m", "benchmarks", name, "--rounds", "1", "--inner"]
    return subprocess.run(command, cwd=tree, stdout=subprocess.PIPE, text=True, check=True).stdout


def estimate_ratio(ratios: list[float]) -> tuple[float, float, float]:
    """The geometric mean of ratios, and its interval at 95 %."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    t = _T_95[len(logs) - 2] if len(logs) - 2 < len(_T_95) else 2.0
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean - half), math.exp(mean), math.exp(mean + half)


def count_calls(tree: Path, name: str) -> dict[str, int]:
    with tempfile.NamedTemporaryFile("r") as summary:
        run(tree, name, ["strace", "-f", "-c", "-o", summary.name, "-e", f"trace={','.join(_COUNTED)}"])
        counts = dict.fromkeys(_COUNTED.values(), 0)
        for line in summary.read().splitlines():
            if (words := line.split()) and words[-1] in _COUNTED:
                counts[_COUNTED[words[-1]]] += int(words[3])
    return counts


if __name__ == "__main__":
    main()
