"""Resolves what an expression refers to, as far as names show.

A **value** is a root and a path. The root is a dotted path that was imported (``httpx``), a builtin, or a function or
class that is defined in a file. The path is what is done to it: attributes, and calls as ``()``. So under ``import
httpx`` and ``client = httpx.AsyncClient()`` the expression ``client.get`` is ``httpx.AsyncClient().get``. An expression
that is not certain has no value.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.checking.modules import ModuleLoader, SourceModule
from holdfast.checking.scopes import (
    AssignmentBinding,
    Binding,
    DeclarationBinding,
    DefinitionBinding,
    ImportBinding,
    ParameterBinding,
    Scope,
)

CALL = "()"
_MAX_DEPTH = 20
_HOLDFAST_NAMES = frozenset({"workflow", "step", "llm_step", "tool", "parallel", "map", "now", "uuid4", "random",
                   "ask", "wait_for_signal", "current_run"})  # fmt: skip
"""The names of Holdfast to recognize, from whichever module they are imported."""


@dataclass(frozen=True)
class ResolvedValue:
    """What an expression refers to."""

    module: SourceModule
    """The file that binds the root."""
    root: str | DefinitionBinding
    path: tuple[str, ...] = ()

    def append(self, *parts: str) -> ResolvedValue:
        """The value of an attribute of it, or of a call."""
        return replace(self, path=(*self.path, *parts))

    @property
    def dotted_path(self) -> str:
        """The root and the path as text, with ``()`` for calls; empty if a checked file defines the root."""
        if isinstance(self.root, DefinitionBinding):
            return ""
        return self.root + "".join(part if part == CALL else f".{part}" for part in self.path)


class Resolver:
    """Resolves the expressions of one module."""

    def __init__(self, module: SourceModule, loader: ModuleLoader) -> None:
        self._module = module
        self._loader = loader

    def resolve(self, node: ast.expr, scope: Scope, depth: int = 0) -> ResolvedValue | None:
        """What an expression in a scope refers to; ``depth`` counts the names followed so far."""
        if depth > _MAX_DEPTH:
            return None  # `a = b; b = a`
        match node:
            case ast.Name(id=name):
                return self._resolve_name(name, scope, depth + 1)
            case ast.Attribute(value=inner, attr=attribute):
                base = self.resolve(inner, scope, depth + 1)
                return base and self._follow_import(base.append(attribute), depth)
            case ast.Call(func=inner):
                base = self.resolve(inner, scope, depth + 1)
                return base and base.append(CALL)
            case ast.Await(value=inner):
                return self.resolve(inner, scope, depth + 1)
            case ast.BinOp(left=left, op=ast.Div()):  # Path("a") / "b"
                base = self.resolve(left, scope, depth + 1)
                return base if base and base.dotted_path.startswith("pathlib.") else None
            case _:
                return None

    def _resolve_name(self, name: str, scope: Scope, depth: int) -> ResolvedValue | None:
        owner = scope.find_owner(name)
        if owner is not None:
            value = self._resolve_bindings(owner.names[name], owner, depth)
            return value and self._follow_import(value, depth)
        stars = scope.module_scope.star_imports
        if "holdfast" in stars and name in _HOLDFAST_NAMES:
            return ResolvedValue(self._module, f"holdfast.{name}")
        for star in stars:
            if (target := self._loader.resolve_path(star, self._module)) is not None and not target[1]:
                module, _ = target
                if name in module.scopes.module_scope.names:
                    return Resolver(module, self._loader)._resolve_name(name, module.scopes.module_scope, depth + 1)
        return ResolvedValue(self._module, f"builtins.{name}") if scope.is_builtin(name) else None

    def _resolve_bindings(self, bindings: Sequence[Binding], scope: Scope, depth: int) -> ResolvedValue | None:
        """The value of a name, if all its bindings agree; ``name = None`` only means that it is missing."""
        values: list[ResolvedValue] = []
        for binding in bindings:
            if _is_none_binding(binding):
                continue
            value = self._resolve_binding(binding, scope, depth + 1)
            if value is None:
                return None
            values.append(value)
        if values and all(isinstance(value.root, DefinitionBinding) and not value.path for value in values):
            return values[-1]  # overloads, or one definition for each platform
        return values[0] if values and all(value == values[0] for value in values) else None

    def _resolve_binding(self, binding: Binding, scope: Scope, depth: int) -> ResolvedValue | None:
        match binding:
            case ImportBinding(path):
                return ResolvedValue(self._module, path)
            case DefinitionBinding():
                return ResolvedValue(self._module, binding)
            case AssignmentBinding(value):
                return self.resolve(value, scope, depth)
            case DeclarationBinding(annotation, value):
                resolved = self.resolve(value, scope, depth) if value is not None else None
                return resolved or self._resolve_instance(annotation, scope, depth)
            case ParameterBinding(owner=ast.ClassDef() as cls):
                outer = self._module.scopes.get_scope(cls).parent
                if outer is None:
                    return None
                class_value = ResolvedValue(self._module, DefinitionBinding(cls, outer))
                return class_value if binding.is_classmethod else class_value.append(CALL)
            case ParameterBinding(annotation=ast.expr() as annotation):
                return self._resolve_instance(annotation, scope.parent or scope, depth)
            case _:
                return None

    def _resolve_instance(self, annotation: ast.expr, scope: Scope, depth: int) -> ResolvedValue | None:
        """An instance of an annotated class."""
        match annotation:
            case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
                return self._resolve_instance(left, scope, depth)
            case ast.Name() | ast.Attribute():
                base = self.resolve(annotation, scope, depth + 1)
                return base and base.append(CALL)
            case _:
                return None

    def _follow_import(self, value: ResolvedValue, depth: int) -> ResolvedValue | None:
        """The value as the file that defines it binds it, if that file is next to the importing one."""
        if isinstance(value.root, DefinitionBinding) or CALL in value.path or value.root.startswith("builtins."):
            return value
        dotted = value.dotted_path
        if dotted.partition(".")[0] == "holdfast":
            last = dotted.rpartition(".")[2]
            return replace(value, root=f"holdfast.{last}", path=()) if last in _HOLDFAST_NAMES else value
        target = self._loader.resolve_path(dotted, value.module) if depth <= _MAX_DEPTH else None
        if target is None or not target[1]:
            return value
        module, (name, *rest) = target
        definition = Resolver(module, self._loader)._resolve_name(name, module.scopes.module_scope, depth + 1)
        # If that file does not define it, it is unknown: the user's `redis.py` is not the library of that name.
        return definition and definition.append(*rest)


def _is_none_binding(binding: Binding) -> bool:
    match binding:
        case AssignmentBinding(ast.Constant(value=None)) | DeclarationBinding(_, ast.Constant(value=None)):
            return True
        case _:
            return False
