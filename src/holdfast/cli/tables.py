"""Tables on a terminal: columns under a bold head, as wide as what stands in them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.text import Text

from holdfast.cli.formatting import create_console


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    number_columns: Collection[int] = (),
    bold_rows: Collection[str] = (),
    styles: Mapping[int, Sequence[str]] | None = None,
    indent: int = 0,
) -> None:
    """Print rows; the columns in ``number_columns`` stand under each other by their last digit.

    Rows whose first cell is one of ``bold_rows`` are printed as the head is. ``styles`` has a style for each row's cell
    of a column. An empty ``header`` is not printed.
    """
    out = create_console()
    columns = range(max(map(len, (header, *rows))))
    widths = [max(len(row[column]) for row in (*([header] if header else []), *rows)) for column in columns]
    for number, row in enumerate((header, *rows)):
        if not row:
            continue
        line = Text(" " * indent, "bold" if number == 0 or row[0] in bold_rows else "")
        for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
            style = styles[column][number - 1] if number and styles and column in styles else ""
            line.append("  " if column else "").append(
                cell.rjust(width) if column in number_columns else cell.ljust(width), style or None
            )
        line.rstrip()
        out.print(line, soft_wrap=True)
