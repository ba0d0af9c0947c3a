"""A worker of the soak: ``worker.py``, with the soak's workflows, and the stacks of all its threads on SIGUSR1."""

from __future__ import annotations

import faulthandler
import signal

import soak_flows  # noqa: F401 - makes the workflows known

faulthandler.register(signal.SIGUSR1, all_threads=True)
# One that has handed over before it is told a second time is not to be killed by that.
signal.signal(signal.SIGTERM, lambda *_: None)

import worker  # noqa: E402, F401 - serves until it is told to stop
