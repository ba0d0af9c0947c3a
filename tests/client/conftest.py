"""Each test has a working folder and a workflow registry of its own."""

from __future__ import annotations

from process_state import isolated_folder

__all__ = ["isolated_folder"]
