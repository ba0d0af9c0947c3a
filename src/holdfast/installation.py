"""The version of Holdfast, and whether an unrelated distribution named ``holdfast`` is installed beside it.

Ours is ``holdfast-agents``. The other one has a package of the same import name: whichever is installed last overwrites
files of the first, and uninstalling either one deletes files of both. ``import holdfast`` looks for it, so this module
imports nothing that the interpreter has not already loaded, and reads one folder or two.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

__version__ = "0.2.0"

_OWN_ENTRY_POINT = "holdfast.testing.plugin"
"""An entry point of Holdfast. A distribution that has it is ours under the name of earlier development versions."""

REINSTALL_HINT = "Run `pip uninstall holdfast`, then `pip install --force-reinstall --no-deps holdfast-agents`."


def find_foreign_distribution() -> str | None:
    """The name and version of the unrelated distribution, or None if it is not installed."""
    for folder in _iterate_package_folders():
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            is_named_so = entry.startswith("holdfast-") and entry.endswith(".dist-info")
            if is_named_so and not _is_own_distribution(os.path.join(folder, entry)):
                return entry.removesuffix(".dist-info").replace("-", " ", 1)
    return None


def is_overwritten() -> bool:
    """Whether ``holdfast/__init__.py`` is that of the other distribution."""
    return "Runtime" not in dir(sys.modules["holdfast"])


def describe_clash(distribution: str) -> str:
    """What is wrong when ``find_foreign_distribution`` has found something."""
    return (
        f"The distribution {distribution!r} is installed in this environment. It is an unrelated project with the same "
        "import "
        f"name, and one has overwritten files of the other. Holdfast is the distribution 'holdfast-agents'."
    )


def _iterate_package_folders() -> Iterator[str]:
    """The folder that holds this package, and those that pip installs into."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    yield own
    for folder in sys.path:
        if folder != own and os.path.basename(folder) in ("site-packages", "dist-packages"):
            yield folder


def _is_own_distribution(folder: str) -> bool:
    try:
        with open(os.path.join(folder, "entry_points.txt"), encoding="utf-8") as file:
            return _OWN_ENTRY_POINT in file.read()
    except OSError:
        return False
