"""What is written in workflow code that does not replay, found in its syntax tree."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import NamedTuple

_ORDERED_USES = {"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "dict", "str", "repr"}
_MUTATORS = {
    "append",
    "add",
    "update",
    "setdefault",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "discard",
    "clear",
}
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}


class Finding(NamedTuple):
    """Something that is written in a function."""

    kind: str
    what: str
    place: str


def read_source(function: FunctionType) -> list[Finding]:
    """The findings in a function's source; none where there is no source."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return []
    return list(_Reader(function, first).read(tree))


class _Reader:
    def __init__(self, function: FunctionType, first_line: int) -> None:
        self._function = function
        self._first = first_line
        self._sets: set[str] = set()
        """Names that hold a set."""
        self._locals = {*function.__code__.co_varnames, *function.__code__.co_cellvars}

    def read(self, tree: ast.AST) -> Iterator[Finding]:
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._learn_sets(node)
        for node in nodes:
            yield from self._look_at(node)

    def _finding(self, kind: str, what: str, node: ast.stmt | ast.expr | ast.ExceptHandler) -> Finding:
        line = self._first + node.lineno - 1
        return Finding(kind, what, f"{self._function.__code__.co_filename}:{line} in {self._function.__name__}")

    def _look_at(self, node: ast.AST) -> Iterator[Finding]:
        match node:
            case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) if self._is_set(iterated):
                yield self._finding("set", f"`for ... in {ast.unparse(iterated)}`", iterated)
            case ast.ListComp(generators=loops) | ast.GeneratorExp(generators=loops) | ast.DictComp(generators=loops):
                for loop in loops:
                    if self._is_set(loop.iter):
                        yield self._finding("set", f"`for ... in {ast.unparse(loop.iter)}`", loop.iter)
            case ast.Call(func=ast.Name(id=name), args=[argument, *_]) if name in _ORDERED_USES and self._is_set(
                argument
            ):
                yield self._finding("set", f"`{name}({ast.unparse(argument)})`", node)
            case ast.Call(func=ast.Attribute(attr="join"), args=[argument]) if self._is_set(argument):
                yield self._finding("set", f"`{ast.unparse(node)}`", node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if (
                method in _MUTATORS and self._is_global(name)
            ):
                yield self._finding("state", f"`{name}.{method}(...)`", node)
            case ast.Starred(value=value) if self._is_set(value):
                yield self._finding("set", f"`*{ast.unparse(value)}`", value)
            case ast.Name(id="id", ctx=ast.Load()) if "id" not in self._locals:
                yield self._finding("address", "`id`", node)
            case ast.Name(id="hash", ctx=ast.Load()) if "hash" not in self._locals:
                yield self._finding("hash", "`hash`", node)
            case ast.Global(names=names):
                yield self._finding("state", f"`global {', '.join(names)}`", node)
            case ast.Nonlocal(names=names) if not self._function.__code__.co_cellvars:
                yield self._finding("state", f"`nonlocal {', '.join(names)}`", node)
            case ast.Assign(targets=targets):
                yield from self._stores(targets, node)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from self._stores([target], node)
            case ast.ExceptHandler() if _catches_everything(node):
                yield self._finding("catch-all", f"`{_head(node)}`", node)
            case ast.Call(func=func, args=args) if _last_name(func) == "suppress" and any(
                _last_name(argument) == "BaseException" for argument in args
            ):
                yield self._finding("catch-all", f"`{ast.unparse(node)}`", node)
            case ast.Try(finalbody=lines) | ast.TryStar(finalbody=lines):
                for line in _leaving_finally(lines):
                    yield self._finding("catch-all", f"`{ast.unparse(line)}` in a `finally` block", line)
            case ast.FormattedValue(value=value) if self._is_set(value):
                yield self._finding("set", f"`{{{ast.unparse(value)}}}`", value)
            case _:
                pass

    def _stores(self, targets: list[ast.expr], node: ast.stmt) -> Iterator[Finding]:
        for target in targets:
            match target:
                case ast.Subscript(value=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id=name)) if self._is_global(
                    name
                ):
                    yield self._finding("state", f"`{ast.unparse(target)} = ...`", node)
                case _:
                    pass

    def _is_global(self, name: str) -> bool:
        function = self._function
        return name not in self._locals and (name in function.__globals__ or name in function.__code__.co_freevars)

    # Sets

    def _learn_sets(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if self._is_set(value):
                self._sets.add(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if _is_set_type(annotation):
                self._sets.add(name)
            case ast.arg(arg=name, annotation=annotation) if annotation is not None and _is_set_type(annotation):
                self._sets.add(name)
            case _:
                pass

    def _is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Call(func=ast.Name(id=name)):
                return name in ("set", "frozenset")
            case ast.Call(func=ast.Attribute(value=value, attr=method)):
                return method in _SET_METHODS and self._is_set(value)
            case ast.Name(id=name):
                return name in self._sets or (
                    self._is_global(name) and isinstance(self._function.__globals__.get(name), set | frozenset)
                )
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return self._is_set(left) or self._is_set(right)
            case _:
                return False


def _is_set_type(annotation: ast.expr) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    return _last_name(base) in ("set", "frozenset", "Set", "FrozenSet", "AbstractSet")


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    """Whether a handler stops every BaseException: none of its paths raises it again, as far as one can see."""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    named = any(one is None or _last_name(one) == "BaseException" for one in types)
    return named and not any(isinstance(node, ast.Raise) for line in handler.body for node in ast.walk(line))


def _leaving_finally(lines: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What drops the exception on its way through a ``finally`` block."""
    for line in lines:
        match line:
            case ast.Return() | ast.Break() | ast.Continue():
                yield line
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case ast.For() | ast.AsyncFor() | ast.While():  # a `break` in it leaves only the loop
                yield from (one for one in _leaving_finally(line.body) if isinstance(one, ast.Return))
            case _:
                for body in ("body", "orelse", "finalbody"):
                    yield from _leaving_finally(getattr(line, body, []))


def _head(handler: ast.ExceptHandler) -> str:
    return "except:" if handler.type is None else f"except {ast.unparse(handler.type)}:"
