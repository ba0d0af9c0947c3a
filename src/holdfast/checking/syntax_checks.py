"""What is written in workflow code that does not replay, whatever it calls: the order of sets, addresses and hashes,
what outlives a run, and handlers that stop every exception.

It reads the nodes of a function, and has to be told what the names mean that the function does not bind itself: from
the file (``holdfast check``), or from the function object (``holdfast.testing``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias

from holdfast.checking.scopes import AssignmentBinding, Binding, DeclarationBinding, ParameterBinding, Scope

CodeNode: TypeAlias = ast.stmt | ast.expr | ast.ExceptHandler

_ORDER_SENSITIVE_BUILTINS = {"list", "tuple", "enumerate", "iter", "zip", "map", "filter", "dict", "str", "repr"}
_ORDER_INSENSITIVE_BUILTINS = {"sorted", "set", "frozenset", "sum", "min", "max", "any", "all", "len"}
_MUTATING_METHODS = {
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
_MAX_CODE_LENGTH = 60
_TASK_FACTORIES = {"create_task", "ensure_future", "Task", "Future"}


class SyntaxViolation(NamedTuple):
    """Something that is written in a function."""

    kind: str
    code_text: str
    node: CodeNode


class OuterNames(Protocol):
    """What names mean that a function does not bind itself."""

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
    """Reads the nodes of one function."""

    def __init__(self, outer_names: OuterNames, parents: Mapping[ast.AST, ast.AST]) -> None:
        self._outer_names = outer_names
        self._parents = parents
        self._task_sets: set[tuple[Scope, str]] = set()
        """Names of sets that hold only tasks, which have a fixed order in workflow code."""
        self._in_progress: set[tuple[Scope, str]] = set()
        """Names whose nature is being asked for: `a = a | b` and `b = b | a` would have no end."""

    def find_violations(self, nodes: Iterable[tuple[ast.AST, Scope]]) -> Iterator[SyntaxViolation]:
        """All that is found."""
        nodes = list(nodes)
        self._collect_task_sets(nodes)
        for node, scope in nodes:
            yield from self._find_order_violations(node, scope)
            yield from self._find_state_violations(node, scope)
            yield from _find_catch_all_violations(node)

    # Order

    def _find_order_violations(self, node: ast.AST, scope: Scope) -> Iterator[SyntaxViolation]:
        match node:
            case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated) if self._is_set(iterated, scope):
                yield SyntaxViolation("set", f"`for ... in {_format_code(iterated)}`", iterated)
            case ast.ListComp(generators=loops) | ast.GeneratorExp(generators=loops) | ast.DictComp(generators=loops):
                if not self._is_order_insensitive(node, scope):
                    for loop in loops:
                        if self._is_set(loop.iter, scope):
                            yield SyntaxViolation("set", f"`for ... in {_format_code(loop.iter)}`", loop.iter)
            case ast.Call(func=ast.Name(id=name), args=[argument, *_]) if (
                name in _ORDER_SENSITIVE_BUILTINS
                and scope.find_owner(name) is None
                and self._is_set(argument, scope)
                and not self._is_order_insensitive(node, scope)
            ):
                yield SyntaxViolation("set", f"`{name}({_format_code(argument)})`", node)
            case ast.Call(func=ast.Attribute(attr="join"), args=[argument]) if self._is_set(argument, scope):
                yield SyntaxViolation("set", f"`{_format_code(node)}`", node)
            case ast.Call(func=ast.Attribute(value=taken_from, attr="pop"), args=[], keywords=[]) if self._is_set(
                taken_from, scope
            ):
                yield SyntaxViolation("set", f"`{_format_code(node)}`", node)
            case ast.Starred(value=value, ctx=ast.Load()) if self._is_set(value, scope):
                if not isinstance(self._parents.get(node), ast.Set):
                    yield SyntaxViolation("set", f"`*{_format_code(value)}`", value)
            case ast.FormattedValue(value=value) if self._is_set(value, scope):
                yield SyntaxViolation("set", f"`{{{_format_code(value)}}}`", value)
            case ast.Name(id="id", ctx=ast.Load()) if scope.is_builtin("id"):
                yield SyntaxViolation("address", "`id`", node)
            case ast.Name(id="hash", ctx=ast.Load()) if scope.is_builtin("hash"):
                yield SyntaxViolation("hash", "`hash`", node)
            case _:
                pass

    def _is_order_insensitive(self, node: ast.expr, scope: Scope) -> bool:
        """Whether what is made of a set is used in a way that does not depend on its order."""
        if isinstance(node, ast.DictComp):
            # Things are looked up in a mapping; in which order it was filled matters if filling it does something.
            return not any(isinstance(one, ast.Await) for one in ast.walk(node))
        match self._parents.get(node):
            case ast.Call(func=ast.Name(id=name), args=[first, *_]) if first is node:
                return name in _ORDER_INSENSITIVE_BUILTINS and scope.find_owner(name) is None
            case _:
                return False

    # Sets

    def _is_set(self, node: ast.expr, scope: Scope) -> bool:
        match node:
            case ast.Set(elts=elements):
                return not all(_is_int_constant(one) or _is_task_call(one) for one in elements)
            case ast.SetComp(elt=element):
                return not _is_task_call(element)
            case ast.Call(func=ast.Name(id="set" | "frozenset" as name), args=arguments) if (
                scope.find_owner(name) is None
            ):
                return not any(_has_fixed_order(one) for one in arguments)
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
        """Whether a name can only be a set: `words = sorted(words)` makes something else of it."""
        if (scope, name) in self._in_progress:
            return False
        self._in_progress.add((scope, name))
        try:
            return bool(bindings) and all(self._is_set_binding(one, name, scope) for one in bindings)
        finally:
            self._in_progress.remove((scope, name))

    def _is_set_binding(self, binding: Binding, name: str, scope: Scope) -> bool:
        match binding:
            case AssignmentBinding(value):
                itself = any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(value))
                return _is_still_set(value, name) if itself else self._is_set(value, scope)
            case DeclarationBinding(annotation, value):
                return is_set_type(annotation)
            case ParameterBinding(annotation=ast.expr() as annotation):
                return is_set_type(annotation)
            case _:
                return False

    def _collect_task_sets(self, nodes: list[tuple[ast.AST, Scope]]) -> None:
        """`tasks = set()`, to which only tasks are added."""
        added: dict[tuple[Scope, str], list[bool]] = {}
        for node, scope in nodes:
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="add"), args=[argument]):
                    owner = scope.find_owner(name)
                    if owner is not None:
                        added.setdefault((owner, name), []).append(
                            _is_task_call(argument) or _is_task_name(argument, scope)
                        )
                case _:
                    pass
        self._task_sets = {where for where, kinds in added.items() if all(kinds)}

    # State

    def _find_state_violations(self, node: ast.AST, scope: Scope) -> Iterator[SyntaxViolation]:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in _MUTATING_METHODS:
                if self._outer_names.is_outside_run(name, scope) and self._outer_names.is_container(name, scope):
                    yield SyntaxViolation("state", f"`{name}.{method}(...)`", node)
                elif _is_mutable_default(scope.get_bindings(name)):
                    yield SyntaxViolation("state", f"`{name}.{method}(...)` on the default of a parameter", node)
            case ast.Global(names=names):
                yield SyntaxViolation("state", f"`global {', '.join(names)}`", node)
            case ast.Nonlocal(names=names) if outer := [
                one for one in names if self._outer_names.is_outside_run(one, scope)
            ]:
                yield SyntaxViolation("state", f"`nonlocal {', '.join(outer)}`", node)
            case ast.Assign(targets=targets):
                yield from self._find_outer_writes(targets, node, scope)
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                yield from self._find_outer_writes([target], node, scope)
            case ast.Delete(targets=targets):
                yield from self._find_outer_writes(targets, node, scope)
            case _:
                pass

    def _find_outer_writes(self, targets: list[ast.expr], node: ast.stmt, scope: Scope) -> Iterator[SyntaxViolation]:
        for target in targets:
            match target:
                case ast.Subscript(value=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id=name)):
                    if self._outer_names.is_outside_run(name, scope):
                        shown = (
                            f"del {_format_code(target)}"
                            if isinstance(node, ast.Delete)
                            else f"{_format_code(target)} = ..."
                        )
                        yield SyntaxViolation("state", f"`{shown}`", node)
                case ast.Tuple(elts=parts) | ast.List(elts=parts):
                    yield from self._find_outer_writes(parts, node, scope)
                case _:
                    pass


def _find_catch_all_violations(node: ast.AST) -> Iterator[SyntaxViolation]:
    """Handlers that would stop what is thrown into waiting code when its run leaves memory.

    It is thrown where the code waits: around code that never does, such a handler stops nothing of ours.
    """
    match node:
        case (
            ast.Try(body=body, handlers=handlers, finalbody=last)
            | ast.TryStar(body=body, handlers=handlers, finalbody=last)
        ):
            if _can_wait(body):
                for handler in handlers:
                    if _is_swallowing(handler):
                        yield SyntaxViolation("catch-all", f"`{_format_handler(handler)}`", handler)
            if _can_wait([*body, *handlers, *last]):
                for line in _find_finally_exits(last):
                    yield SyntaxViolation("catch-all", f"`{_format_code(line)}` in a `finally` block", line)
        case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body) if _can_wait(body):
            for item in items:
                match item.context_expr:
                    case ast.Call(func=func, args=args) as call if _last_name(func) == "suppress" and any(
                        _last_name(one) == "BaseException" for one in args
                    ):
                        yield SyntaxViolation("catch-all", f"`{_format_code(call)}`", call)
                    case _:
                        pass
        case _:
            pass


# Reading single nodes


def is_set_type(annotation: ast.expr) -> bool:
    """Whether an annotation names a set; one of tasks, which have a fixed order, does not count."""
    match annotation:
        case ast.Subscript(value=base, slice=element):
            inner = element.value if isinstance(element, ast.Subscript) else element
            return is_set_type(base) and _last_name(inner) not in ("Task", "Future", "int")
        case _:
            return _last_name(annotation) in ("set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet")


def _is_still_set(value: ast.expr, name: str) -> bool:
    """Whether `name = value`, where the value is made of the name itself, leaves a set a set."""
    match value:
        case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()) | ast.SetComp() | ast.Set():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id=base), attr=method)):
            return base == name and method in _SET_METHODS
        case _:
            return False


def _is_int_constant(node: ast.expr) -> bool:
    """Whole numbers hash to themselves, in every process."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int)


def _is_task_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) in _TASK_FACTORIES


def _has_fixed_order(node: ast.expr) -> bool:
    """Whether a set made of this has the same order in every process."""
    match node:
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            return _is_task_call(element)
        case _:
            return isinstance(node, ast.Call) and _last_name(node.func) == "range"


def _is_task_name(node: ast.expr, scope: Scope) -> bool:
    if not isinstance(node, ast.Name):
        return False
    bindings = scope.get_bindings(node.id)
    return bool(bindings) and all(isinstance(one, AssignmentBinding) and _is_task_call(one.value) for one in bindings)


def _is_keys_call(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


def _is_mutable_default(bindings: list[Binding]) -> bool:
    match bindings:
        case [ParameterBinding(default=ast.List() | ast.Dict() | ast.Set())]:
            return True
        case _:
            return False


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _can_wait(nodes: Iterable[ast.AST]) -> bool:
    """Whether some of it may wait, or hand control to somebody who does."""
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
    return any(one is None or _last_name(one) == "BaseException" for one in types)


def _is_swallowing(handler: ast.ExceptHandler) -> bool:
    """Whether a handler stops every BaseException: none of its paths raises it again, as far as one can see."""
    raises = any(isinstance(node, ast.Raise) for line in handler.body for node in ast.walk(line))
    return _is_base_exception_handler(handler) and not raises


def _find_finally_exits(lines: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What drops the exception on its way through a ``finally`` block."""
    for line in lines:
        match line:
            case ast.Return() | ast.Break() | ast.Continue():
                yield line
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                pass
            case ast.For() | ast.AsyncFor() | ast.While():  # a `break` in it leaves only the loop
                yield from (one for one in _find_finally_exits(line.body) if isinstance(one, ast.Return))
            case _:
                for body in ("body", "orelse", "finalbody"):
                    yield from _find_finally_exits(getattr(line, body, []))


def _format_handler(handler: ast.ExceptHandler) -> str:
    return "except:" if handler.type is None else f"except {_format_code(handler.type)}:"


def _format_code(node: ast.AST) -> str:
    """Code on one line, and not too much of it."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _MAX_CODE_LENGTH else f"{text[: _MAX_CODE_LENGTH - 3]}..."
