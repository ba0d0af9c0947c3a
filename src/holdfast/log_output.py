"""Where log lines go, and their format, when the program has not configured logging.

A library leaves that to the program, with two exceptions: the commands ``holdfast worker`` and ``holdfast serve``
(``configure_logging``), and a script on a terminal that has not configured logging (``log_to_terminal``).
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

_TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object for each record: time, level, logger, message, and its extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str | None, log_format: str | None) -> None:
    """Configure the log of a command, on stderr.

    Without a level, Holdfast logs from ``info``, and everything else from ``warning``. A user's module that configures
    logging itself keeps its handlers, unless the user asks for a format.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_TEXT_FORMAT))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=log_format is not None)
    own = logging.getLogger("holdfast")
    if level is not None:
        logging.getLogger().setLevel(level.upper())
        own.setLevel(level.upper())
    elif own.level == logging.NOTSET:
        own.setLevel(logging.INFO)


class _TerminalHandler(logging.StreamHandler[Any]):
    """Writes to stderr, as long as the program has not configured logging."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setLevel(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s holdfast: %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless a handler was added since, which gets it as well."""
        others = [*logging.getLogger().handlers, *logging.getLogger("holdfast").handlers]
        if others == [self]:
            self.stream = sys.stderr  # a progress bar or a test may have replaced it
            super().emit(record)


def log_to_terminal() -> None:
    """Show Holdfast's warnings and errors in a script on a terminal that has not configured logging."""
    own = logging.getLogger("holdfast")
    if not (own.handlers or logging.getLogger().handlers) and sys.stderr is not None and sys.stderr.isatty():
        own.addHandler(_TerminalHandler())
