"""Finds steps, signals and children that workflow code calls but does not await.

A call of a step returns a coroutine: until something awaits it, nothing happens. This module follows coroutines through
expressions and names. Where it loses track of a coroutine, it assumes that something awaits it.
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
"""Builtins that cannot do anything useful with a coroutine."""
_COROUTINE_METHODS = {"send", "throw", "close", "add_done_callback", "cancel", "result", "done"}


class _CoroutineUse(Enum):
    """What the code does with a coroutine."""

    FINE = "awaited, or passed on"
    DROPPED = "dropped where it was made"
    USED_AS_VALUE = "used as if it were the outcome"
    NEVER_USED = "assigned to a name that nothing uses"
    RETURNED = "the result of the run"


def find_await_violations(program: WorkflowModule, code: WorkflowFunction) -> Iterator[Violation]:
    """The violations in one function."""
    tracker = _CoroutineTracker(program, code)
    for node, scope in program.walk(code.node):
        if not isinstance(node, ast.Call):
            continue
        code_text = f"`{_format_call(node)}`"
        if _is_task_call(program, node, scope):
            if isinstance(program.module.scopes.parents[node], ast.Expr):
                yield Violation(
                    "await",
                    code_text,
                    node,
                    "keep the task and `await` it, or use `asyncio.TaskGroup`",
                    "nothing awaits the task, so the run may end before it, and its errors are lost",
                )
        elif noun := _describe_callee(program, node, scope):
            yield from _make_violations(tracker.classify(node, scope), code_text, noun, node)


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
    """A noun for the callee, if the call returns a coroutine; otherwise empty."""
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
    """Follows the coroutines of one function."""

    def __init__(self, program: WorkflowModule, code: WorkflowFunction) -> None:
        self._program = program
        self._code = code
        self._parents = program.module.scopes.parents

    def classify(
        self, node: ast.expr, scope: Scope, *, in_container: bool = False, by_name: bool = False
    ) -> _CoroutineUse:
        """What the code does with the coroutine that an expression returns.

        ``in_container``: it is an element of the expression's value; ``by_name``: the expression is a name for it.
        """
        parent = self._parents[node]
        match parent:
            case ast.Expr():
                return _CoroutineUse.FINE if by_name else _CoroutineUse.DROPPED
            case ast.List() | ast.Tuple() | ast.Set() | ast.Dict() | ast.Starred():
                return self.classify(parent, scope, in_container=True, by_name=by_name)
            case ast.ListComp(elt=element) | ast.SetComp(elt=element) | ast.GeneratorExp(elt=element):
                if element is not node:
                    return _CoroutineUse.FINE
                return self.classify(parent, scope, in_container=True, by_name=by_name)
            case ast.DictComp(value=element) if element is node:
                return self.classify(parent, scope, in_container=True, by_name=by_name)
            case ast.IfExp(test=test) if test is not node:
                return self.classify(parent, scope, in_container=in_container, by_name=by_name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if not by_name:
                return self._classify_name(name, scope, in_container)
            case ast.Return() if self._code.is_workflow and not by_name and self._is_workflow_return(parent):
                return _CoroutineUse.RETURNED
            case _:
                used = not in_container and self._is_value_use(parent, node, scope)
                return _CoroutineUse.USED_AS_VALUE if used else _CoroutineUse.FINE

    def _is_workflow_return(self, node: ast.Return) -> bool:
        """Whether this is the return of the workflow itself, and not of a function inside it."""
        function: ast.AST = node
        while not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            function = self._parents[function]
        return function is self._code.node and isinstance(function, ast.AsyncFunctionDef)

    def _classify_name(self, name: str, scope: Scope, in_container: bool) -> _CoroutineUse:
        owner = scope.find_owner(name)
        if owner is None or owner is not self._program.module.scopes.get_scope(self._code.node):
            return _CoroutineUse.FINE
        if len(owner.names[name]) > 1:
            return _CoroutineUse.FINE  # it may have another value by the time it is used
        loads = [
            node
            for node in ast.walk(self._code.node)
            if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        ]
        if not loads:
            return _CoroutineUse.NEVER_USED
        uses = {self.classify(load, scope, in_container=in_container, by_name=True) for load in loads}
        return _CoroutineUse.USED_AS_VALUE if uses == {_CoroutineUse.USED_AS_VALUE} else _CoroutineUse.FINE

    def _is_value_use(self, parent: ast.AST, node: ast.expr, scope: Scope) -> bool:
        """Whether a coroutine is used where only its outcome makes sense."""
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
                value = self._program.resolver.resolve(parent, scope)
                return value is not None and self._program.is_step_call(value) and value.path[-1] == CALL
            case ast.keyword():
                return self._is_value_use(self._parents[parent], node, scope)
            case _:
                return False


def _is_identity_comparison(node: ast.AST) -> bool:
    """`task is None`, `task in done`: these compare the object itself."""
    identity = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
    return isinstance(node, ast.Compare) and all(isinstance(op, identity) for op in node.ops)


def _format_call(node: ast.Call) -> str:
    return f"{ast.unparse(node.func)}({'...' if node.args or node.keywords else ''})"
