"""Files as modules: read and parsed, never imported."""

from __future__ import annotations

import ast
import tokenize
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from holdfast.checking.scopes import ScopeTree
from holdfast.errors import UsageError


class UnreadableSource(UsageError):
    """A file that cannot be read, or is not Python."""


@dataclass(eq=False)
class SourceModule:
    """A parsed file."""

    path: Path
    source: str
    tree: ast.Module

    @cached_property
    def scopes(self) -> ScopeTree:
        """Its scopes."""
        return ScopeTree(self.tree)

    @cached_property
    def lines(self) -> list[str]:
        """Its lines, as Python counts them: a form feed does not end a line."""
        return self.source.split("\n")

    @cached_property
    def import_roots(self) -> list[Path]:
        """Where its absolute imports may start: above its package, next to it, and in the working directory."""
        top = self.path.parent
        while (top / "__init__.py").exists():
            top = top.parent
        return list(dict.fromkeys([top, self.path.parent, Path.cwd()]))


def read_module(path: Path) -> SourceModule:
    """Read and parse a file."""
    try:
        with tokenize.open(path) as file:
            source = file.read()
    except OSError as error:
        raise UnreadableSource(f"{path} cannot be read: {error.strerror or error}") from None
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UnreadableSource(f"{path} cannot be read as text: {error}") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as for `"\d"`, which is not a violation
            tree = ast.parse(source, str(path))
    except SyntaxError as error:
        raise UnreadableSource(
            f"{path}:{error.lineno or 1}:{error.offset or 1} cannot be parsed: {error.msg}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise UnreadableSource(f"{path} cannot be parsed: {error or type(error).__name__}") from None
    return SourceModule(path.resolve(), source, tree)


class ModuleLoader:
    """Loads the checked modules, and the modules next to them that they import."""

    def __init__(self) -> None:
        self._modules: dict[Path, SourceModule | None] = {}
        self._resolved: dict[tuple[Path, str], tuple[SourceModule, list[str]] | None] = {}

    def load(self, path: Path) -> SourceModule:
        """The module in a file; raises ``UnreadableSource``."""
        module = self._modules.get(path.resolve())
        if module is None:
            module = self._modules[path.resolve()] = read_module(path)
        return module

    def resolve_path(self, dotted: str, importer: SourceModule) -> tuple[SourceModule, list[str]] | None:
        """The module that a dotted path begins with, and the rest of the path.

        ``steps.charge``, imported by ``app.py``, is ``charge`` in the ``steps.py`` next to it.
        """
        key = importer.path, dotted
        if key not in self._resolved:
            self._resolved[key] = self._resolve_path(dotted, importer)
        return self._resolved[key]

    def _resolve_path(self, dotted: str, importer: SourceModule) -> tuple[SourceModule, list[str]] | None:
        names = dotted.lstrip(".")
        level = len(dotted) - len(names)
        parts = names.split(".") if names else []
        for root in [importer.path.parents[level - 1]] if level else importer.import_roots:
            # The longest path that is a file: a name in a package may be a module itself.
            for length in range(len(parts), 0, -1):
                path = root.joinpath(*parts[:length])
                for file in (path.with_name(path.name + ".py"), path / "__init__.py"):
                    if file != importer.path and (module := self._try_load(file)) is not None:
                        return module, parts[length:]
            if level and (module := self._try_load(root / "__init__.py")) is not None and module is not importer:
                return module, parts
        return None

    def _try_load(self, file: Path) -> SourceModule | None:
        key = file.resolve()
        if key not in self._modules:
            try:
                self._modules[key] = read_module(file) if file.is_file() else None
            except UnreadableSource:
                self._modules[key] = None  # reported if it is checked itself
        return self._modules[key]
