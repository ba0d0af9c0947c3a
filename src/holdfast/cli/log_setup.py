"""The log of ``holdfast worker`` and ``holdfast serve``."""

from __future__ import annotations

import logging
from collections.abc import Callable

import click

from holdfast.log_output import configure_logging


def set_up_log(name: str, level: str | None, log_format: str | None) -> Callable[[str], None]:
    """Set up the log, and return what prints the command's own lines: to stderr, because stdout belongs to the steps.

    They are part of a JSON log, which a line of plain text would break.
    """
    configure_logging(level, log_format)
    return logging.getLogger(name).info if log_format == "json" else _print_to_stderr


def _print_to_stderr(line: str) -> None:
    click.echo(line, err=True)
