"""Drills: failures of a whole deployment, with real processes, that check what Holdfast promises and measure the rest.

Each module has one drill: a function of a ``World`` and a size that raises ``AssertionError`` if a promise is broken,
and returns what it measured. ``python -m benchmarks.drills`` runs them at full size; ``tests/processes/test_drill_*``
run them small. They use the worlds, ledgers, and servers of the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_TEST_FOLDERS = ("tests", "tests/processes", "tests/stores", "tests/soak")

for _folder in (ROOT / "src", *(ROOT / name for name in _TEST_FOLDERS)):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))
