"""Replay is silent: what workflow code logs while its past is replayed was logged the first time.

``logging`` has no hook that every record passes, so ``Logger.handle`` is wrapped once. The wrapper asks which loop is
running, so a step, another thread and the engine itself are never silenced.
"""

from __future__ import annotations

import logging

from holdfast.core.loop import get_run_loop

_is_installed = False


def install_filter() -> None:
    """Wrap ``Logger.handle``, once in a process: other libraries may wrap it too, before and after."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    handle = logging.Logger.handle

    def handle_unless_replaying(self: logging.Logger, record: logging.LogRecord) -> None:
        loop = get_run_loop()
        if loop is None or not loop.is_logging_suppressed:
            handle(self, record)

    logging.Logger.handle = handle_unless_replaying
