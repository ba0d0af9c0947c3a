"""The version of Holdfast, and whether an unrelated distribution named ``holdfast`` is installed as well.

Holdfast is the distribution ``holdfast-agents``. The other one has a package of the same import name: the one installed
last overwrites files of the first, and uninstalling either deletes files of both. Every ``import holdfast`` checks for
it, so this module imports only what the interpreter has already loaded, and reads one or two folders.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

__version__ = "0.2.0"

_OWN_ENTRY_POINT = "holdfast.testing.plugin"
"""An entry point of Holdfast. A distribution with it is Holdfast, under the name of earlier development versions."""

REINSTALL_HINT = "Run `pip uninstall holdfast`, then `pip install --force-reinstall --no-deps holdfast-agents`."


def find_foreign_distribution() -> str | None:
    """The name and version of the unrelated distribution, or None if it is not installed."""
    for folder in _iterate_package_folders():
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            has_name = entry.startswith("holdfast-") and entry.endswith(".dist-info")
            if has_name and not _is_own_distribution(os.path.join(folder, entry)):
                return entry.removesuffix(".dist-info").replace("-", " ", 1)
    return None


def is_overwritten() -> bool:
    """Whether the imported ``holdfast/__init__.py`` belongs to the other distribution."""
    return "Runtime" not in dir(sys.modules["holdfast"])


def describe_clash(distribution: str) -> str:
    """The message about a distribution that ``find_foreign_distribution`` has found."""
    return (
        f"The distribution {distribution!r} is installed in this environment. It is an unrelated project with the same "
        f"import name, and one has overwritten files of the other. Holdfast is the distribution 'holdfast-agents'."
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
