"""Finds the files of a target: a file, a folder or a module. It imports nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.checking.modules import UnreadableSource

_IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}


def find_files(target: str) -> Iterator[Path]:
    """The files of a target. Raises ``UnreadableSource``."""
    path = Path(target)
    if os.path.isdir(path):  # unlike the path's own methods, these return false where access is denied
        yield from _find_files_in_folder(path)
    elif os.path.exists(path) or target.endswith(".py") or os.sep in target:
        yield path  # if it does not exist, reading it raises the error
    elif (module := _find_module(target)) is not None:
        yield from find_files(str(module))
    else:
        raise UnreadableSource(
            f"there is no file, folder or module {target!r}: name a file or a folder by its path, and a module as in "
            f"`pkg.jobs`"
        )


def _find_module(name: str) -> Path | None:
    """The path of a module. ``importlib`` would import the packages around it."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return None
    for root in dict.fromkeys([os.getcwd(), *sys.path]):
        path = Path(root or ".").joinpath(*parts)
        if os.path.isfile(path / "__init__.py"):
            return path
        file = path.with_name(f"{path.name}.py")
        if os.path.isfile(file):
            return file
    return None


def _find_files_in_folder(folder: Path) -> Iterator[Path]:
    """The Python files under a folder, without hidden folders and virtual environments."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _IGNORED_FOLDERS
            and not os.path.exists(os.path.join(root, name, "pyvenv.cfg"))
        )
        yield from (Path(root, name) for name in sorted(names) if name.endswith(".py"))
