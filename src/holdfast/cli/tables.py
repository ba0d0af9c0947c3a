"""Tables on a terminal: columns under a bold head, as wide as what stands in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.text import Text

from holdfast.cli.wording import console


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Collection[int] = (), bold: Collection[str] = ()
) -> None:
    """Print rows; the columns in ``numbers`` stand under each other by their last digit.

    Rows whose first cell is one of ``bold`` are printed as the head is.
    """
    out = console()
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    for number, row in enumerate((head, *rows)):
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        style = "bold" if number == 0 or row[0] in bold else ""
        out.print(Text("  ".join(cells).rstrip(), style), soft_wrap=True)
