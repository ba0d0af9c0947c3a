"""Replay is silent: what workflow code logs while its past is replayed was logged the first time.

``logging`` has no hook that every record passes, so ``Logger.handle`` is wrapped once. The wrapper asks which loop is
running, so a step, another thread and the engine itself are never silenced.
"""

from __future__ import annotations

import logging

from holdfast.core.loop import running_loop

_handle = logging.Logger.handle


def _handle_unless_replaying(self: logging.Logger, record: logging.LogRecord) -> None:
    loop = running_loop()
    if loop is None or not loop.is_silent:
        _handle(self, record)


def install() -> None:
    """Wrap ``Logger.handle``; doing it twice changes nothing."""
    logging.Logger.handle = _handle_unless_replaying
