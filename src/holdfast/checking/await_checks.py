"""Steps, signals and children that workflow code calls and does not wait for.

A call of a step gives a coroutine: until something awaits it, nothing has happened. Whether something does is followed
through expressions and through names; where a coroutine goes somewhere that cannot be seen, it is taken to be in good
hands.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from enum import Enum

from holdfast.checking.findings import Violation
from holdfast.checking.resolver import CALL
from holdfast.checking.scopes import Scope
from holdfast.checking.workflow_code import WorkflowFunction, WorkflowModule

_AWAITABLE_CALLS = {
    "holdfast.ask()", "holdfast.wait_for_signal()", "holdfast.map()", "asyncio.sleep()", "asyncio.wait_for()",
    "asyncio.wait()",
}  # fmt: skip
_TASK_FACTORIES = {
    "asyncio.create_task()",
    "asyncio.ensure_future()",
    "asyncio.gather()",
    "asyncio.shield()",
    "asyncio.get_running_loop().create_task()",
    "asyncio.get_event_loop().create_task()",
}
_VALUE_BUILTINS = {"print", "str", "repr", "len", "int", "float", "bool", "sum", "sorted", "min", "max", "round", "abs",
                 "list", "tuple", "set", "dict", "enumerate", "zip", "range"}  # fmt: skip
"""Builtins that can do nothing with a coroutine."""
_COROUTINE_METHODS = {"send", "throw", "close", "add_done_callback", "cancel", "result", "done"}


class _CoroutineUse(Enum):
    """What becomes of a coroutine."""

    FINE = "awaited, or handed on"
    DROPPED = "dropped where it was made"
    USED_AS_VALUE = "used as if it were the outcome"
    NEVER_USED = "kept under a name that nothing uses"
    RETURNED = "the result of the run"


def find_await_violations(program: WorkflowModule, code: WorkflowFunction) -> Iterator[Violation]:
    """The faults in one function."""
    follower = _CoroutineTracker(program, code)
    for node, scope in program.walk(code.node):
        if not isinstance(node, ast.Call):
            continue
        what = f"`{_format_call(node)}`"
        if _is_task_call(program, node, scope):
            if isinstance(follower.get_parent(node), ast.Expr):
                yield Violation(
                    "await",
                    what,
                    node,
                    "keep the task and `await` it, or use `asyncio.TaskGroup`",
                    "nothing awaits the task, so the run may end before it, and its errors are lost",
                )
        elif noun := _describe_callee(program, node, scope):
            yield from _make_violations(follower.classify(node, scope), what, noun, node)


def _make_violations(use: _CoroutineUse, code_text: str, noun: str, node: ast.Call) -> Iterator[Violation]:
    match use:
        case _CoroutineUse.DROPPED:
            yield Violation("await", code_text, node, reason=f"{noun} is not awaited, so it never runs")
        case _CoroutineUse.NEVER_USED:
            yield Violation("await", code_text, node, reason=f"{noun} is never awaited, so it never runs")
        case _CoroutineUse.USED_AS_VALUE:
            remedy = f"write `(await {_format_call(node)})`"
            yield Violation("await", code_text, node, remedy, f"{noun} gives a coroutine here, not its outcome")
        case _CoroutineUse.RETURNED:
            remedy = f"write `return await {_format_call(node)}`"
            yield Violation("await", code_text, node, remedy, f"{noun} never runs: the run would return a coroutine")
        case _CoroutineUse.FINE:
            pass


def _describe_callee(program: WorkflowModule, node: ast.Call, scope: Scope) -> str:
    """What a call that gives a coroutine is called; empty for any other."""
    value = program.resolver.resolve(node, scope)
    if value is None:
        return ""
    if program.is_step_call(value):
        return "the step"
    if program.is_workflow_call(value):
        return "the child"
    return "it" if value.dotted_path in _AWAITABLE_CALLS or program.is_coroutine_call(value) else ""


def _is_task_call(program: WorkflowModule, node: ast.Call, scope: Scope) -> bool:
    value = program.resolver.resolve(node, scope)
    return value is not None and value.dotted_path in _TASK_FACTORIES


class _CoroutineTracker:
    """Follows coroutines through one function."""

    def __init__(self, program: WorkflowModule, code: WorkflowFunction) -> None:
        self._program = program
        self._code = code
        self._parents = program.module.scopes.parents

    def get_parent(self, node: ast.AST) -> ast.AST:
        """The node around a node."""
        return self._parents[node]

    def classify(self, node: ast.expr, scope: Scope) -> _CoroutineUse:
        """What becomes of the coroutine that an expression gives."""
        return self._classify(node, scope, in_container=False, by_name=False)

    def _classify(self, node: ast.expr, scope: Scope, *, in_container: bool, by_name: bool) -> _CoroutineUse:
        parent = self._parents[node]
        match parent:
            case ast.Expr():
                return _CoroutineUse.FINE if by_name else _CoroutineUse.DROPPED
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.Starred():
                return self._classify(parent, scope, in_container=True, by_name=by_name)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                if element is not node:
                    return _CoroutineUse.FINE
                return self._classify(parent, scope, in_container=True, by_name=by_name)
            case ast.DictComp(value=element) if element is node:
                return self._classify(parent, scope, in_container=True, by_name=by_name)
            case ast.IfExp(test=test) if test is not node:
                return self._classify(parent, scope, in_container=in_container, by_name=by_name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not by_name:
                return self._classify_name(name, scope, in_container)
            case ast.Return() if self._code.is_workflow and not by_name and self._is_workflow_return(parent):
                return _CoroutineUse.RETURNED
            case _:
                used = not in_container and self._is_value_use(parent, node, scope)
                return _CoroutineUse.USED_AS_VALUE if used else _CoroutineUse.FINE

    def _is_workflow_return(self, node: ast.Return) -> bool:
        """Whether this is the workflow's own return, and it does not return what it was told to by a lambda."""
        around: ast.AST = node
        while not isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            around = self._parents[around]
        return around is self._code.node and isinstance(around, ast.AsyncFunctionDef)

    def _classify_name(self, name: str, scope: Scope, in_container: bool) -> _CoroutineUse:
        owner = scope.find_owner(name)
        if owner is None or owner is not self._program.module.scopes.get_scope(self._code.node):
            return _CoroutineUse.FINE
        if len(owner.names[name]) > 1:
            return _CoroutineUse.FINE  # it may be something else by the time it is used
        loads = [
            node
            for node in ast.walk(self._code.node)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]
        if not loads:
            return _CoroutineUse.NEVER_USED
        fates = {self._classify(load, scope, in_container=in_container, by_name=True) for load in loads}
        return _CoroutineUse.USED_AS_VALUE if fates == {_CoroutineUse.USED_AS_VALUE} else _CoroutineUse.FINE

    def _is_value_use(self, parent: ast.AST, node: ast.expr, scope: Scope) -> bool:
        """Whether a coroutine is used in a way in which only the outcome makes sense."""
        match parent:
            case ast.BinOp() | ast.Compare() | ast.UnaryOp() | ast.FormattedValue() | ast.AugAssign():
                return not _is_identity_comparison(parent)
            case ast.For(iter=used) | ast.comprehension(iter=used) | ast.Subscript(value=used):
                return used is node
            case ast.If(test=used) | ast.While(test=used) | ast.IfExp(test=used) | ast.Assert(test=used):
                return used is node
            case ast.Attribute(attr=attribute):
                return attribute not in _COROUTINE_METHODS and not attribute.startswith(("cr_", "__"))
            case ast.Call(func=ast.Name(id=name)) if scope.is_builtin(name):
                return name in _VALUE_BUILTINS
            case ast.Call() if node is not parent.func:
                made = self._program.resolver.resolve(parent, scope)
                return made is not None and self._program.is_step_call(made) and made.path[-1] == CALL
            case ast.keyword():
                return self._is_value_use(self._parents[parent], node, scope)
            case _:
                return False


def _is_identity_comparison(node: ast.AST) -> bool:
    """`task is None`, `task in done`: these look at the object, whatever it is."""
    identity = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    return isinstance(node, ast.Compare) and all(isinstance(one, identity) for one in node.ops)


def _format_call(node: ast.Call) -> str:
    return f"{ast.unparse(node.func)}({'...' if node.args or node.keywords else ''})"
