"""What an expression stands for, as far as names tell.

A **value** is a root and a trail. The root is a dotted path that was imported (``httpx``), a builtin, or a function or
class that is defined in a file; the trail is what is done to it: attributes, and calls as ``()``. So under ``import
httpx`` and ``client = httpx.AsyncClient()`` the expression ``client.get`` is ``httpx.AsyncClient().get``. What is not
known for sure stands for nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.checking.modules import Library, Module
from holdfast.checking.scopes import Assigned, Binding, Declared, Defined, Imported, Parameter, Scope

CALL = "()"
_DEEPEST = 20
_OURS = frozenset({"workflow", "step", "llm_step", "tool", "parallel", "map", "now", "uuid4", "random",
                   "ask", "wait_for_signal", "current_run"})  # fmt: skip
"""What of Holdfast's own is to be recognised, from wherever it is imported."""


@dataclass(frozen=True)
class Value:
    """What an expression stands for."""

    module: Module
    """The file in which the root was found."""
    root: str | Defined
    trail: tuple[str, ...] = ()

    def then(self, *more: str) -> Value:
        """What an attribute of it, or a call, stands for."""
        return replace(self, trail=(*self.trail, *more))

    @property
    def dotted(self) -> str:
        """The path as text, with ``()`` for calls; empty if it begins with something that a file defines."""
        if isinstance(self.root, Defined):
            return ""
        return self.root + "".join(part if part == CALL else f".{part}" for part in self.trail)


class Reader:
    """Tells what expressions of one module stand for."""

    def __init__(self, module: Module, library: Library) -> None:
        self._module = module
        self._library = library

    def value(self, node: ast.expr, scope: Scope) -> Value | None:
        """What an expression in a scope stands for."""
        return self._value(node, scope, 0)

    def _value(self, node: ast.expr, scope: Scope, depth: int) -> Value | None:
        if depth > _DEEPEST:
            return None  # `a = b; b = a`
        match node:
            case ast.Name(id=name):
                return self._of_name(name, scope, depth + 1)
            case ast.Attribute(value=inner, attr=attribute):
                base = self._value(inner, scope, depth + 1)
                return base and self._followed(base.then(attribute), depth)
            case ast.Call(func=inner):
                base = self._value(inner, scope, depth + 1)
                return base and base.then(CALL)
            case ast.Await(value=inner):
                return self._value(inner, scope, depth + 1)
            case ast.BinOp(left=left, op=ast.Div()):  # Path("a") / "b"
                base = self._value(left, scope, depth + 1)
                return base if base and base.dotted.startswith("pathlib.") else None
            case _:
                return None

    def _of_name(self, name: str, scope: Scope, depth: int) -> Value | None:
        owner = scope.owner(name)
        if owner is not None:
            found = self._of_bindings(owner.names[name], owner, depth)
            return found and self._followed(found, depth)
        stars = scope.module.stars
        if "holdfast" in stars and name in _OURS:
            return Value(self._module, f"holdfast.{name}")
        for star in stars:
            if (there := self._library.find(star, self._module)) is not None and not there[1]:
                module, _ = there
                if name in module.scopes.module.names:
                    return Reader(module, self._library)._of_name(name, module.scopes.module, depth + 1)
        return Value(self._module, f"builtins.{name}") if scope.is_builtin(name) else None

    def _of_bindings(self, bindings: Sequence[Binding], scope: Scope, depth: int) -> Value | None:
        """``None`` unless all that may be bound there is the same; ``name = None`` only means that it is missing."""
        values: list[Value] = []
        for binding in bindings:
            if _is_none(binding):
                continue
            value = self._of_binding(binding, scope, depth + 1)
            if value is None:
                return None
            values.append(value)
        if values and all(isinstance(one.root, Defined) and not one.trail for one in values):
            return values[-1]  # overloads, or one definition for each platform
        return values[0] if values and all(one == values[0] for one in values) else None

    def _of_binding(self, binding: Binding, scope: Scope, depth: int) -> Value | None:
        match binding:
            case Imported(path):
                return Value(self._module, path)
            case Defined():
                return Value(self._module, binding)
            case Assigned(value):
                return self._value(value, scope, depth)
            case Declared(annotation, value):
                known = self._value(value, scope, depth) if value is not None else None
                return known or self._instance(annotation, scope, depth)
            case Parameter(owner=ast.ClassDef() as cls):
                home = self._module.scopes.of(cls).parent
                if home is None:
                    return None
                itself = Value(self._module, Defined(cls, home))
                return itself if binding.of_class else itself.then(CALL)
            case Parameter(annotation=ast.expr() as annotation):
                outside = scope.parent or scope
                return self._instance(annotation, outside, depth)
            case _:
                return None

    def _instance(self, annotation: ast.expr, scope: Scope, depth: int) -> Value | None:
        """An instance of an annotated class."""
        match annotation:
            case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
                return self._instance(left, scope, depth)
            case ast.Name() | ast.Attribute():
                base = self._value(annotation, scope, depth + 1)
                return base and base.then(CALL)
            case _:
                return None

    def _followed(self, value: Value, depth: int) -> Value | None:
        """The same value, found in the file that defines it, where that lies next to the importing one."""
        if isinstance(value.root, Defined) or CALL in value.trail or value.root.startswith("builtins."):
            return value
        dotted = value.dotted
        if dotted.partition(".")[0] == "holdfast":
            last = dotted.rpartition(".")[2]
            return replace(value, root=f"holdfast.{last}", trail=()) if last in _OURS else value
        there = self._library.find(dotted, value.module) if depth <= _DEEPEST else None
        if there is None or not there[1]:
            return value
        module, (name, *rest) = there
        found = Reader(module, self._library)._of_name(name, module.scopes.module, depth + 1)
        # Unknown there is unknown here: the user's `redis.py` is not the library of that name.
        return found and found.then(*rest)


def _is_none(binding: Binding) -> bool:
    match binding:
        case Assigned(ast.Constant(value=None)) | Declared(_, ast.Constant(value=None)):
            return True
        case _:
            return False
