"""Tables on a terminal: columns under a bold head, as wide as what stands in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.text import Text

from holdfast.cli.formatting import console


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[int] = (),
    bold: Collection[str] = (),
    styles: Mapping[int, Sequence[str]] | None = None,
    indent: int = 0,
) -> None:
    """Print rows; the columns in ``numbers`` stand under each other by their last digit.

    Rows whose first cell is one of ``bold`` are printed as the head is. ``styles`` has a style for each row's cell of
    a column. An empty ``head`` is not printed.
    """
    out = console()
    columns = range(max(map(len, (head, *rows))))
    widths = [max(len(row[column]) for row in (*([head] if head else []), *rows)) for column in columns]
    for number, row in enumerate((head, *rows)):
        if not row:
            continue
        line = Text(" " * indent, "bold" if number == 0 or row[0] in bold else "")
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            style = styles[column][number - 1] if number and styles and column in styles else ""
            line.append("  " if column else "").append(
                cell.rjust(width) if column in numbers else cell.ljust(width), style or None
            )
        line.rstrip()
        out.print(line, soft_wrap=True)
