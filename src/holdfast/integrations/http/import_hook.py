"""Patches a library right after it is imported, so that installing imports no library."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from holdfast.integrations.http.endpoints import RequestFilter


class _PatchingFinder:
    """Finds the modules to patch, with the help of the other finders."""

    def __init__(self) -> None:
        self.patches: dict[str, tuple[str, RequestFilter]] = {}
        """By library: the module whose ``patch`` patches it, and its argument."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        patch = self.patches.get(name)
        if patch is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                _patch_after_execution(spec.loader, *patch)
                return spec
        return None


_finder = _PatchingFinder()


def patch_when_imported(library: str, patching_module: str, request_filter: RequestFilter) -> None:
    """Call ``patch(library, request_filter)`` of the patching module once the library is imported."""
    if library in _finder.patches:
        return
    _finder.patches[library] = patching_module, request_filter
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    if (imported := sys.modules.get(library)) is not None:
        import_module(patching_module).patch(imported, request_filter)


def _patch_after_execution(loader: Any, patching_module: str, request_filter: RequestFilter) -> None:
    # The loader stays the same object, because other code may look at it.
    execute = loader.exec_module

    def execute_and_patch(module: ModuleType) -> None:
        if loader.__dict__.get("exec_module") is execute_and_patch:
            del loader.exec_module
        execute(module)
        import_module(patching_module).patch(module, request_filter)

    loader.exec_module = execute_and_patch
