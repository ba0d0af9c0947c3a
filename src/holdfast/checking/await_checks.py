"""Steps, signals and children that workflow code calls and does not wait for.

A call of a step gives a coroutine: until something awaits it, nothing has happened. Whether something does is followed
through expressions and through names; where a coroutine goes somewhere that cannot be seen, it is taken to be in good
hands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from holdfast.checking.findings import Fault
from holdfast.checking.resolver import CALL
from holdfast.checking.scopes import Scope
from holdfast.checking.workflow_code import Code, Program

_WAITS = {"holdfast.ask()", "holdfast.wait_for_signal()", "holdfast.map()", "asyncio.sleep()", "asyncio.wait_for()",
          "asyncio.wait()"}  # fmt: skip
_TASKS = {
    "asyncio.create_task()",
    "asyncio.ensure_future()",
    "asyncio.gather()",
    "asyncio.shield()",
    "asyncio.get_running_loop().create_task()",
    "asyncio.get_event_loop().create_task()",
}
_TAKES_VALUES = {"print", "str", "repr", "len", "int", "float", "bool", "sum", "sorted", "min", "max", "round", "abs",
                 "list", "tuple", "set", "dict", "enumerate", "zip", "range"}  # fmt: skip
"""Builtins that can do nothing with a coroutine."""
_OF_COROUTINES = {"send", "throw", "close", "add_done_callback", "cancel", "result", "done"}


class _Fate(Enum):
    """What becomes of a coroutine."""

    FINE = "awaited, or handed on"
    DROPPED = "dropped where it was made"
    USED = "used as if it were the outcome"
    KEPT = "kept under a name that nothing uses"
    RETURNED = "the result of the run"


def read_awaits(program: Program, code: Code) -> Iterator[Fault]:
    """The faults in one function."""
    follower = _Follower(program, code)
    for node, scope in program.walk(code.node):
        if not isinstance(node, ast.Call):
            continue
        what = f"`{_short(node)}`"
        if _is_task(program, node, scope):
            if isinstance(follower.parent(node), ast.Expr):
                yield Fault(
                    "await",
                    what,
                    node,
                    "keep the task and `await` it, or use `asyncio.TaskGroup`",
                    "nothing awaits the task, so the run may end before it, and its errors are lost",
                )
        elif noun := _noun(program, node, scope):
            yield from _told(follower.fate(node, scope), what, noun, node)


def _told(fate: _Fate, what: str, noun: str, node: ast.Call) -> Iterator[Fault]:
    match fate:
        case _Fate.DROPPED:
            yield Fault("await", what, node, why=f"{noun} is not awaited, so it never runs")
        case _Fate.KEPT:
            yield Fault("await", what, node, why=f"{noun} is never awaited, so it never runs")
        case _Fate.USED:
            remedy = f"write `(await {_short(node)})`"
            yield Fault("await", what, node, remedy, f"{noun} gives a coroutine here, not its outcome")
        case _Fate.RETURNED:
            remedy = f"write `return await {_short(node)}`"
            yield Fault("await", what, node, remedy, f"{noun} never runs: the run would return a coroutine")
        case _Fate.FINE:
            pass


def _noun(program: Program, node: ast.Call, scope: Scope) -> str:
    """What a call that gives a coroutine is called; empty for any other."""
    value = program.reader.value(node, scope)
    if value is None:
        return ""
    if program.is_step(value):
        return "the step"
    if program.is_workflow_call(value):
        return "the child"
    return "it" if value.dotted in _WAITS or program.is_coroutine(value) else ""


def _is_task(program: Program, node: ast.Call, scope: Scope) -> bool:
    value = program.reader.value(node, scope)
    return value is not None and value.dotted in _TASKS


class _Follower:
    """Follows coroutines through one function."""

    def __init__(self, program: Program, code: Code) -> None:
        self._program = program
        self._code = code
        self._parents = program.module.scopes.parents

    def parent(self, node: ast.AST) -> ast.AST:
        """The node around a node."""
        return self._parents[node]

    def fate(self, node: ast.expr, scope: Scope) -> _Fate:
        """What becomes of the coroutine that an expression gives."""
        return self._fate(node, scope, in_container=False, by_name=False)

    def _fate(self, node: ast.expr, scope: Scope, *, in_container: bool, by_name: bool) -> _Fate:
        parent = self._parents[node]
        match parent:
            case ast.Expr():
                return _Fate.FINE if by_name else _Fate.DROPPED
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.Starred():
                return self._fate(parent, scope, in_container=True, by_name=by_name)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                if element is not node:
                    return _Fate.FINE
                return self._fate(parent, scope, in_container=True, by_name=by_name)
            case ast.DictComp(value=element) if element is node:
                return self._fate(parent, scope, in_container=True, by_name=by_name)
            case ast.IfExp(test=test) if test is not node:
                return self._fate(parent, scope, in_container=in_container, by_name=by_name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not by_name:
                return self._fate_of_name(name, scope, in_container)
            case ast.Return() if self._code.is_workflow and not by_name and self._returns_here(parent):
                return _Fate.RETURNED
            case _:
                used = not in_container and self._is_value_use(parent, node, scope)
                return _Fate.USED if used else _Fate.FINE

    def _returns_here(self, node: ast.Return) -> bool:
        """Whether this is the workflow's own return, and it does not return what it was told to by a lambda."""
        around: ast.AST = node
        while not isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            around = self._parents[around]
        return around is self._code.node and isinstance(around, ast.AsyncFunctionDef)

    def _fate_of_name(self, name: str, scope: Scope, in_container: bool) -> _Fate:
        owner = scope.owner(name)
        if owner is None or owner is not self._program.module.scopes.of(self._code.node):
            return _Fate.FINE
        if len(owner.names[name]) > 1:
            return _Fate.FINE  # it may be something else by the time it is used
        loads = [
            node
            for node in ast.walk(self._code.node)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]
        if not loads:
            return _Fate.KEPT
        fates = {self._fate(load, scope, in_container=in_container, by_name=True) for load in loads}
        return _Fate.USED if fates == {_Fate.USED} else _Fate.FINE

    def _is_value_use(self, parent: ast.AST, node: ast.expr, scope: Scope) -> bool:
        """Whether a coroutine is used in a way in which only the outcome makes sense."""
        match parent:
            case ast.BinOp() | ast.Compare() | ast.UnaryOp() | ast.FormattedValue() | ast.AugAssign():
                return not _compares_identity(parent)
            case ast.For(iter=used) | ast.comprehension(iter=used) | ast.Subscript(value=used):
                return used is node
            case ast.If(test=used) | ast.While(test=used) | ast.IfExp(test=used) | ast.Assert(test=used):
                return used is node
            case ast.Attribute(attr=attribute):
                return attribute not in _OF_COROUTINES and not attribute.startswith(("cr_", "__"))
            case ast.Call(func=ast.Name(id=name)) if scope.is_builtin(name):
                return name in _TAKES_VALUES
            case ast.Call() if node is not parent.func:
                made = self._program.reader.value(parent, scope)
                return made is not None and self._program.is_step(made) and made.trail[-1] == CALL
            case ast.keyword():
                return self._is_value_use(self._parents[parent], node, scope)
            case _:
                return False


def _compares_identity(node: ast.AST) -> bool:
    """`task is None`, `task in done`: these look at the object, whatever it is."""
    identity = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    return isinstance(node, ast.Compare) and all(isinstance(one, identity) for one in node.ops)


def _short(node: ast.Call) -> str:
    return f"{ast.unparse(node.func)}({'...' if node.args or node.keywords else ''})"
