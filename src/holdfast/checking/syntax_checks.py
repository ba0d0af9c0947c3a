"""Finds code that does not replay, whatever it calls: the order of sets, addresses and hashes, state that outlives a
run, and handlers that stop every exception.

It reads the nodes of a function. The meaning of names that the function does not bind itself comes from the file
(``holdfast check``), or from the function object (``holdfast.testing``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from holdfast.checking.findings import Violation
from holdfast.checking.scopes import AssignmentBinding, Binding, DeclarationBinding, ParameterBinding, Scope

_ORDER_SENSITIVE_BUILTINS = {"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "dict", "str", "repr"}
_ORDER_INSENSITIVE_BUILTINS = {"sorted", "set", "frozenset", "sum", "min", "max", "any", "all", "len"}
_MUTATING_METHODS = {
    "append", "add", "update", "setdefault", "extend", "insert", "pop", "popitem", "remove", "discard", "clear",
}  # fmt: skip
_SET_METHODS = {"union", "intersection", "difference", "symmetric_difference", "copy"}
_MAX_CODE_LENGTH = 60
_TASK_FACTORIES = {"create_task", "ensure_future", "Task", "Future"}


class OuterNames(Protocol):
    """The meaning of names that a function does not bind itself."""

    def is_outside_run(self, name: str, scope: Scope) -> bool:
        """Whether a name belongs to something that outlives a run: a module, or a function around the workflow."""
        ...

    def is_container(self, name: str, scope: Scope) -> bool:
        """Whether an outer name is known to be a list, a dict or the like."""
        ...

    def is_set(self, node: ast.expr, scope: Scope) -> bool:
        """Whether an outer name, or the result of a call, is known to be a set."""
        ...


class SyntaxChecker:
    """Checks the nodes of one function."""

    def __init__(self, outer_names: OuterNames, parents: Mapping[ast.AST, ast.AST]) -> None:
        self._outer_names = outer_names
        self._parents = parents
        self._task_sets: set[tuple[Scope, str]] = set()
        """Names of sets that hold only tasks, which have a fixed order in workflow code."""
        self._in_progress: set[tuple[Scope, str]] = set()
        """Names that are being resolved: `a = a | b` and `b = b | a` would not end otherwise."""

    def find_violations(self, nodes: Iterable[tuple[ast.AST, Scope]]) -> Iterator[Violation]:
        """The violations in these nodes."""
        nodes = list(nodes)
        self._collect_task_sets(nodes)
        for node, scope in nodes:
            yield from self._find_order_violations(node, scope)
            yield from self._find_state_violations(node, scope)
            yield from _find_catch_all_violations(node)

    # Order

    def _find_order_violations(self, node: ast.AST, scope: Scope) -> Iterator[Violation]:
        match node:
            case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) if self._is_set(iterated, scope):
                yield Violation("set", f"`for ... in {_format_code(iterated)}`", iterated)
            case ast.ListComp(generators=loops) | ast.GeneratorExp(generators=loops) | ast.DictComp(generators=loops):
                if not self._is_order_insensitive(node, scope):
                    for loop in loops:
                        if self._is_set(loop.iter, scope):
                            yield Violation("set", f"`for ... in {_format_code(loop.iter)}`", loop.iter)
            case ast.Call(func=ast.Name(id=name), args=[argument, *_]) if (
                name in _ORDER_SENSITIVE_BUILTINS
                and scope.find_owner(name) is None
                and self._is_set(argument, scope)
                and not self._is_order_insensitive(node, scope)
            ):
                yield Violation("set", f"`{name}({_format_code(argument)})`", node)
            case ast.Call(func=ast.Attribute(attr="join"), args=[argument]) if self._is_set(argument, scope):
                yield Violation("set", f"`{_format_code(node)}`", node)
            case ast.Call(func=ast.Attribute(value=taken_from, attr="pop"), args=[], keywords=[]) if self._is_set(
                taken_from, scope
            ):
                yield Violation("set", f"`{_format_code(node)}`", node)
            case ast.Starred(value=value, ctx=ast.Load()) if self._is_set(value, scope):
                if not isinstance(self._parents.get(node), ast.Set):
                    yield Violation("set", f"`*{_format_code(value)}`", value)
            case ast.FormattedValue(value=value) if self._is_set(value, scope):
                yield Violation("set", f"`{{{_format_code(value)}}}`", value)
            case ast.Name(id="id", ctx=ast.Load()) if scope.is_builtin("id"):
                yield Violation("address", "`id`", node)
            case ast.Name(id="hash", ctx=ast.Load()) if scope.is_builtin("hash"):
                yield Violation("hash", "`hash`", node)
            case _:
                pass

    def _is_order_insensitive(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the result of iterating over a set does not depend on its order."""
        if isinstance(node, ast.DictComp):
            # The order of a mapping seldom matters, unless filling it has effects.
            return not any(isinstance(inner, ast.Await) for inner in ast.walk(node))
        match self._parents.get(node):
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if first is node:
                return name in _ORDER_INSENSITIVE_BUILTINS and scope.find_owner(name) is None
            case _:
                return False

    # Sets

    def _is_set(self, node: ast.expr, scope: Scope) -> bool:
        match node:
            case ast.Set(elts=elements):
                return not all(is_int_constant(element) or _is_task_call(element) for element in elements)
            case ast.SetComp(elt=element):
                return not _is_task_call(element)
            case ast.Call(func=ast.Name(id="set" | "frozenset" as name), args=arguments) if (
                scope.find_owner(name) is None
            ):
                return not any(map(_has_fixed_order, arguments))
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _SET_METHODS:
                return self._is_set(value, scope)
            case ast.Name(id=name):
                owner = scope.find_owner(name)
                if owner is None or self._outer_names.is_outside_run(name, scope):
                    return self._outer_names.is_set(node, scope)
                return (owner, name) not in self._task_sets and self._is_always_set(owner.names[name], name, owner)
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return any(self._is_set(side, scope) or _is_keys_call(side) for side in (left, right))
            case _:
                return self._outer_names.is_set(node, scope)

    def _is_always_set(self, bindings: list[Binding], name: str, scope: Scope) -> bool:
        """Whether a name is always a set: `words = sorted(words)` makes it a list."""
        if (scope, name) in self._in_progress:
            return False
        self._in_progress.add((scope, name))
        try:
            return bool(bindings) and all(self._is_set_binding(binding, name, scope) for binding in bindings)
        finally:
            self._in_progress.remove((scope, name))

    def _is_set_binding(self, binding: Binding, name: str, scope: Scope) -> bool:
        match binding:
            case AssignmentBinding(value):
                is_from_itself = any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(value))
                return _is_still_set(value, name) if is_from_itself else self._is_set(value, scope)
            case DeclarationBinding(annotation) | ParameterBinding(annotation=ast.expr() as annotation):
                return is_set_type(annotation)
            case _:
                return False

    def _collect_task_sets(self, nodes: list[tuple[ast.AST, Scope]]) -> None:
        """Find sets to which only tasks are added, as in `tasks = set()`."""
        is_task_added: dict[tuple[Scope, str], list[bool]] = {}
        for node, scope in nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="add"), args=[argument]):
                    owner = scope.find_owner(name)
                    if owner is not None:
                        is_task = _is_task_call(argument) or _is_task_name(argument, scope)
                        is_task_added.setdefault((owner, name), []).append(is_task)
                case _:
                    pass
        self._task_sets = {key for key, flags in is_task_added.items() if all(flags)}

    # State

    def _find_state_violations(self, node: ast.AST, scope: Scope) -> Iterator[Violation]:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _MUTATING_METHODS:
                if self._outer_names.is_outside_run(name, scope) and self._outer_names.is_container(name, scope):
                    yield Violation("state", f"`{name}.{method}(...)`", node)
                elif _is_mutable_default(scope.get_bindings(name)):
                    yield Violation("state", f"`{name}.{method}(...)` on the default of a parameter", node)
            case ast.Global(names=names):
                yield Violation("state", f"`global {', '.join(names)}`", node)
            case ast.Nonlocal(names=names) if outer := [
                name for name in names if self._outer_names.is_outside_run(name, scope)
            ]:
                yield Violation("state", f"`nonlocal {', '.join(outer)}`", node)
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                yield from self._find_outer_writes(targets, node, scope)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from self._find_outer_writes([target], node, scope)
            case _:
                pass

    def _find_outer_writes(self, targets: list[ast.expr], node: ast.stmt, scope: Scope) -> Iterator[Violation]:
        for target in targets:
            match target:
                case ast.Subscript(value=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id=name)):
                    if self._outer_names.is_outside_run(name, scope):
                        code = _format_code(target)
                        code = f"del {code}" if isinstance(node, ast.Delete) else f"{code} = ..."
                        yield Violation("state", f"`{code}`", node)
                case ast.Tuple(elts=parts) | ast.List(elts=parts):
                    yield from self._find_outer_writes(parts, node, scope)
                case _:
                    pass


def _find_catch_all_violations(node: ast.AST) -> Iterator[Violation]:
    """Handlers that would stop the exception that unloads a run.

    It is raised where the code waits, so a handler around code that never waits does no harm.
    """
    match node:
        case (
            ast.Try(body=body, handlers=handlers, finalbody=last)
            | ast.TryStar(body=body, handlers=handlers, finalbody=last)
        ):
            if _can_wait(body):
                for handler in handlers:
                    if _is_swallowing(handler):
                        yield Violation("catch-all", f"`{_format_handler(handler)}`", handler)
            if _can_wait([*body, *handlers, *last]):
                for statement in _find_finally_exits(last):
                    yield Violation("catch-all", f"`{_format_code(statement)}` in a `finally` block", statement)
        case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body) if _can_wait(body):
            for item in items:
                match item.context_expr:
                    case ast.Call(func=func, args=args) as call if get_last_name(func) == "suppress" and any(
                        get_last_name(arg) == "BaseException" for arg in args
                    ):
                        yield Violation("catch-all", f"`{_format_code(call)}`", call)
                    case _:
                        pass
        case _:
            pass


# Reading single nodes


def is_set_type(annotation: ast.expr) -> bool:
    """Whether an annotation names a set. Sets of tasks, which have a fixed order, do not count."""
    match annotation:
        case ast.Subscript(value=base, slice=element):
            inner = element.value if isinstance(element, ast.Subscript) else element
            return is_set_type(base) and get_last_name(inner) not in ("Task", "Future", "int")
        case _:
            return get_last_name(annotation) in ("set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet")


def _is_still_set(value: ast.expr, name: str) -> bool:
    """Whether a set stays a set after `name = value`, where the value is computed from the name itself."""
    match value:
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()) | ast.SetComp() | ast.Set():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=base), attr=method)):
            return base == name and method in _SET_METHODS
        case _:
            return False


def is_int_constant(node: ast.expr) -> bool:
    """Whether this is an integer, which has the same hash in every process."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _is_task_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and get_last_name(node.func) in _TASK_FACTORIES


def _has_fixed_order(node: ast.expr) -> bool:
    """Whether a set made of this has the same order in every process."""
    match node:
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            return _is_task_call(element)
        case _:
            return isinstance(node, ast.Call) and get_last_name(node.func) == "range"


def _is_task_name(node: ast.expr, scope: Scope) -> bool:
    if not isinstance(node, ast.Name):
        return False
    bindings = scope.get_bindings(node.id)
    return bool(bindings) and all(
        isinstance(binding, AssignmentBinding) and _is_task_call(binding.value) for binding in bindings
    )


def _is_keys_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


def _is_mutable_default(bindings: list[Binding]) -> bool:
    match bindings:
        case [ParameterBinding(default=ast.List() | ast.Dict() | ast.Set())]:
            return True
        case _:
            return False


def get_last_name(node: ast.expr) -> str:
    """The last name of ``a.b.c``; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _can_wait(nodes: Iterable[ast.AST]) -> bool:
    """Whether some of this code may wait, or yield to a caller that waits."""
    for node in nodes:
        match node:
            case ast.Await() | ast.AsyncFor() | ast.AsyncWith() | ast.Yield() | ast.YieldFrom():
                return True
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                pass
            case ast.comprehension(is_async=1):
                return True
            case _:
                if _can_wait(ast.iter_child_nodes(node)):
                    return True
    return False


def _is_base_exception_handler(handler: ast.ExceptHandler) -> bool:
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(type is None or get_last_name(type) == "BaseException" for type in types)


def _is_swallowing(handler: ast.ExceptHandler) -> bool:
    """Whether a handler stops every BaseException: it never raises, as far as one can see."""
    has_raise = any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))
    return _is_base_exception_handler(handler) and not has_raise


def _find_finally_exits(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a ``finally`` block that drop the exception."""
    for statement in statements:
        match statement:
            case ast.Return() | ast.Break() | ast.Continue():
                yield statement
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case ast.For() | ast.AsyncFor() | ast.While():  # a `break` in it leaves only the loop
                yield from (exit for exit in _find_finally_exits(statement.body) if isinstance(exit, ast.Return))
            case _:
                for body in ("body", "orelse", "finalbody"):
                    yield from _find_finally_exits(getattr(statement, body, []))


def _format_handler(handler: ast.ExceptHandler) -> str:
    return "except:" if handler.type is None else f"except {_format_code(handler.type)}:"


def _format_code(node: ast.AST) -> str:
    """Code on one line, shortened."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _MAX_CODE_LENGTH else f"{text[: _MAX_CODE_LENGTH - 3]}..."
