"""Tables: columns as wide as their widest cell. Cells are never wrapped or cut, so that ids can be copied whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from rich.text import Text

from holdfast.cli.shared.formatting import create_console, make_printable, print_json
from holdfast.services.json_form import to_json

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


def print_listing(
    items: Sequence[Any],
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    as_json: bool,
    empty_text: str,
    right_columns: Collection[int] = (),
) -> None:
    """Print what a command lists: as JSON, or as a table with a row for each item, or ``empty_text``."""
    if as_json:
        print_json(to_json(items))
    elif items:
        print_table(header, rows, right_columns=right_columns)
    else:
        create_console().print(empty_text)


def print_lines(lines: Iterable[str], style: str = "") -> None:
    """Print lines of recorded text."""
    out = create_console()
    for line in lines:
        out.print(Text(make_printable(line), style))
