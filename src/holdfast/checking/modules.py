"""Files as modules: read and parsed, never imported."""

from __future__ import annotations

import ast
import tokenize
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from holdfast.checking.scopes import Scopes
from holdfast.errors import UsageError


class Unreadable(UsageError):
    """A file that cannot be read, or is no Python; says which, and why."""


@dataclass(eq=False)
class Module:
    """A parsed file."""

    path: Path
    source: str
    tree: ast.Module

    @cached_property
    def scopes(self) -> Scopes:
        """Its scopes."""
        return Scopes(self.tree)

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, as Python counts them: a form feed ends none."""
        return self.source.split("\n")

    @cached_property
    def roots(self) -> list[Path]:
        """Where its absolute imports may start: above its package, beside it, and here."""
        top = self.path.parent
        while (top / "__init__.py").exists():
            top = top.parent
        return list(dict.fromkeys([top, self.path.parent, Path.cwd()]))


def read_module(path: Path) -> Module:
    """Read and parse a file."""
    try:
        with tokenize.open(path) as file:
            source = file.read()
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror or error}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path} cannot be read as text: {error}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `"\d"` is the author's business
            tree = ast.parse(source, str(path))
    except SyntaxError as error:
        raise Unreadable(f"{path}:{error.lineno or 1}:{error.offset or 1} cannot be parsed: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{path} cannot be parsed: {error or type(error).__name__}") from None
    return Module(path.resolve(), source, tree)


class Library:
    """The modules that were asked for, and those that they import and that lie next to them."""

    def __init__(self) -> None:
        self._modules: dict[Path, Module | None] = {}
        self._found: dict[tuple[Path, str], tuple[Module, list[str]] | None] = {}

    def read(self, path: Path) -> Module:
        """The module in a file; raises ``Unreadable``."""
        known = self._modules.get(path.resolve())
        if known is None:
            known = self._modules[path.resolve()] = read_module(path)
        return known

    def find(self, dotted: str, importer: Module) -> tuple[Module, list[str]] | None:
        """The module that a dotted path begins with, and the rest of the path.

        ``steps.charge``, imported by ``app.py``, is ``charge`` in the ``steps.py`` beside it.
        """
        key = importer.path, dotted
        if key not in self._found:
            self._found[key] = self._find(dotted, importer)
        return self._found[key]

    def _find(self, dotted: str, importer: Module) -> tuple[Module, list[str]] | None:
        names = dotted.lstrip(".")
        level = len(dotted) - len(names)
        parts = names.split(".") if names else []
        for root in [importer.path.parents[level - 1]] if level else importer.roots:
            # The longest path that is a file: a name in a package may be a module of its own.
            for length in range(len(parts), 0, -1):
                place = root.joinpath(*parts[:length])
                for file in (place.with_name(place.name + ".py"), place / "__init__.py"):
                    if file != importer.path and (module := self._try(file)) is not None:
                        return module, parts[length:]
            if level and (module := self._try(root / "__init__.py")) is not None and module is not importer:
                return module, parts
        return None

    def _try(self, file: Path) -> Module | None:
        key = file.resolve()
        if key not in self._modules:
            try:
                self._modules[key] = read_module(file) if file.is_file() else None
            except Unreadable:
                self._modules[key] = None  # told when it is checked itself
        return self._modules[key]
