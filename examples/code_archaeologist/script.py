"""The answers of the scripted models. A real model uses none of this."""

from __future__ import annotations

from typing import Any

from holdfast.testing import answer, call

MODERN = '''\
"""A report of sales by region, from a file of lines such as ``north; 1200.50``.

Call it as ``python sales.py FILE``.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sale:
    """An amount that was sold in a region."""

    region: str
    amount: float


def parse(line: str) -> Sale | None:
    """The sale in a line, or ``None`` if there is none to be read."""
    region, semicolon, rest = line.partition(";")
    try:
        return Sale(region.strip(), float(rest.split(";")[0])) if semicolon else None
    except ValueError:
        return None


def load(path: Path) -> tuple[list[Sale], int]:
    """The sales in a file, and how many lines could not be read."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    sales = [parse(line) for line in lines]
    return [sale for sale in sales if sale is not None], sales.count(None)


def report(path: Path) -> Iterator[str]:
    """The lines of the report."""
    sales, bad = load(path)
    totals: defaultdict[str, float] = defaultdict(float)
    for sale in sales:
        totals[sale.region] += sale.amount
    for region, total in sorted(totals.items()):
        yield f"{region:<10} {total:10.2f}"
    yield f"{'total':<10} {sum(totals[region] for region in sorted(totals)):10.2f}"
    if bad:
        yield f"{bad} bad lines"


def main() -> int:
    """Print the report of the file that the command line names."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).exists():
        print("usage: sales.py FILE")
        return 2
    for line in report(Path(sys.argv[1])):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
'''

PAGE = """\
# sales.py

Adds up sales by region.

    python sales.py FILE

The file has a sale in each line, as `region; amount`. Empty lines and lines that begin with `#` are passed over; lines
that cannot be read are counted. It prints a total for each region in alphabetical order, the total of all, and how many
bad lines there were, if any. Without a file that exists it prints its usage and ends with exit code 2.
"""

SURVEY: dict[str, Any] = {
    "purpose": "Prints the total of sales for each region, and of all, from a file of lines `region; amount`.",
    "problems": [
        {"line": 10, "what": "a mutable default argument: all sales share one list of tags", "weight": "bug"},
        {"line": 18, "what": "a file that is never closed", "weight": "risk"},
        {"line": 21, "what": "cuts off the last character even if it is no line end", "weight": "bug"},
        {"line": 27, "what": "a bare except hides every mistake", "weight": "risk"},
        {"line": 6, "what": "totals and errors are global, so a second report adds to the first", "weight": "risk"},
        {"line": 33, "what": "has_key has been gone since Python 3", "weight": "style"},
        {"line": 39, "what": "sum hides the builtin", "weight": "style"},
    ],
}

ARCHAEOLOGIST = [call("read_file", name="sales.py"), answer(SURVEY)]

MODERNIZER = [
    call("read_file", name="sales.py"),
    call("write_file", name="sales.py", text=MODERN.replace("def main() -> int:", "def main() -> int")),  # a slip
    call("write_file", name="sales.py", text=MODERN),
    "Rewritten with dataclasses, pathlib, f-strings and type hints; no globals, and the file is closed.",
]

DOCUMENTER = [
    call("read_file", name="sales.py"),
    call("write_file", name="sales.md", text=PAGE),
    "sales.md is written.",
]

FOREMAN = [
    call("archaeologist", task="Survey sales.py: what is it for, and what is wrong with it?"),
    call(
        "modernizer",
        task="Rewrite sales.py. It prints the totals of sales by region. What is wrong with it:\n"
        + "\n".join(f"- line {one['line']}: {one['what']}" for one in SURVEY["problems"]),
    ),
    call("documenter", task="Read sales.py and write a page about it to sales.md."),
    "sales.py was surveyed, with seven problems, and rewritten; its output is the same. sales.md describes it.",
]
