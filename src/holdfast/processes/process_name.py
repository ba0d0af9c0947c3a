"""What a process is called in lists of workers, logs, and traces."""

from __future__ import annotations

import os
import socket


def get_process_name() -> str:
    """The name of this process: its host and its pid."""
    return f"{socket.gethostname()}:{os.getpid()}"
