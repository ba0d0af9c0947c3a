"""Tables: columns as wide as their widest cell. Cells are never wrapped or cut, so that ids can be copied whole."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.text import Text

from holdfast.cli.shared.formatting import create_console

Cell = str | Text
"""Text for a cell with a style."""


def layout_rows(
    rows: Sequence[Sequence[Cell]], *, right_columns: Collection[int] = (), min_widths: Sequence[int] = ()
) -> list[Text]:
    """A line for each row, all of the same width; cells in ``right_columns`` are aligned at their right end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths = [max(pair) for pair in zip(widths, min_widths or widths, strict=True)]
    lines: list[Text] = []
    for row in rows:
        line = Text()
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - len(cell))
            before, after = (padding, "") if index in right_columns else ("", padding)
            line.append(("  " if index else "") + before).append(cell).append(after)
        lines.append(line)
    return lines


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    right_columns: Collection[int] = (),
    header_style: str = "bold",
    indent: int = 0,
) -> None:
    """Print rows under a header; an empty ``header`` is not printed."""
    out = create_console()
    lines = layout_rows([*([header] if header else []), *rows], right_columns=right_columns)
    for index, line in enumerate(lines):
        line.rstrip()
        out.print(Text(" " * indent).append(line), style=header_style if header and index == 0 else "")
