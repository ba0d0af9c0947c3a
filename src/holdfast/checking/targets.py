"""Which files a target names: a file, a folder or a module. Nothing is imported to find out."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.checking.modules import UnreadableSource

_IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}


def find_files(target: str) -> Iterator[Path]:
    """The files that a target names: itself, those in a folder, or those of a module."""
    path = Path(target)
    if os.path.isdir(path):  # unlike the path's own methods, these say no where nobody may look
        yield from _find_files_in_folder(path)
    elif os.path.exists(path) or target.endswith(".py") or os.sep in target:
        yield path  # if it is not there, reading it says so
    elif (module := _find_module(target)) is not None:
        yield from find_files(str(module))
    else:
        raise UnreadableSource(
            f"there is no file, folder or module {target!r}: name a file or a folder by its path, and a module as in "
            f"`pkg.jobs`"
        )


def _find_module(name: str) -> Path | None:
    """Where a module lies. ``importlib`` would import the packages around it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for root in dict.fromkeys([os.getcwd(), *sys.path]):
        place = Path(root or ".").joinpath(*parts)
        if os.path.isfile(place / "__init__.py"):
            return place
        file = place.with_name(f"{place.name}.py")
        if os.path.isfile(file):
            return file
    return None


def _find_files_in_folder(folder: Path) -> Iterator[Path]:
    """The Python files under a folder, without hidden folders and virtual environments."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            one
            for one in folders
            if not one.startswith(".")
            and one not in _IGNORED_FOLDERS
            and not os.path.exists(os.path.join(root, one, "pyvenv.cfg"))
        )
        yield from (Path(root, name) for name in sorted(names) if name.endswith(".py"))
