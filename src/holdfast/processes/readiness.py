"""Whether a process is ready: it does its work, and is not about to stop."""

from __future__ import annotations

from collections.abc import Callable

STARTING = "it is starting"
STOPPING = "it is stopping"


class Readiness:
    """The readiness of this process. Probes and the supervisor read it, from threads of their own."""

    def __init__(self) -> None:
        self.get_reason: Callable[[], str] = lambda: STARTING
        """Returns why the process is not ready, or an empty string if it is. Whatever serves replaces this function."""
