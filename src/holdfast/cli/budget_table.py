"""Budgets on a terminal. How tokens and money are told is in ``reports.run_usage``."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from holdfast.reports.budgets import RunBudget
from holdfast.reports.run_usage import list_budget_limits
from holdfast.stores.contract import RunUsage


def print_budget_table(out: Console, usage: RunUsage | RunBudget) -> None:
    """Print a budget as a table: what of it is used, and what is left."""
    rows = [("", "budget", "used", "left")]
    rows += [
        (one.name, *(one.format_amount(amount) for amount in (one.max_amount, one.used, one.remaining)))
        for one in list_budget_limits(usage)
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row, share in zip(rows, (None, *list_budget_limits(usage)), strict=True):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        spent = share is not None and share.remaining <= 0
        out.print(
            Text.assemble("      " + "  ".join(cells[:3]) + "  ", (cells[3], "yellow" if spent else "")),
            style="dim" if share is None else "",
            soft_wrap=True,
        )
