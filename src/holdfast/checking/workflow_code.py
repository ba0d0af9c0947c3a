"""Finds the workflow code of a file: workflows, conditions of declared steps, and the functions that these call."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.checking.modules import ModuleLoader, SourceModule
from holdfast.checking.resolver import CALL, ResolvedValue, Resolver
from holdfast.checking.scopes import DefinitionBinding, FunctionNode, Scope

_WORKFLOW_DECORATORS = {"holdfast.workflow", "holdfast.workflow()"}
_STEP_DECORATORS = {"holdfast.step", "holdfast.step()", "holdfast.llm_step()", "holdfast.tool", "holdfast.tool()"}
_TRANSPARENT_PREFIXES = ("functools.", "contextlib.", "typing.", "abc.", "builtins.")
"""Decorators whose result still calls the function. Other decorators may do anything with it."""
_CHILD_START_PATHS = {(CALL,), ("start", CALL), ("options", CALL, CALL), ("options", CALL, "start", CALL)}
_CALLING_FUNCTIONS = {
    "builtins.map", "builtins.filter", "builtins.sorted", "builtins.min", "builtins.max", "functools.reduce",
    "holdfast.map", "itertools.groupby", "itertools.takewhile", "itertools.dropwhile",
}  # fmt: skip
"""Functions that call their arguments at once."""
_CALLING_METHODS = {"sort", "start_soon", "add_done_callback", "call_soon", "call_later"}


@dataclass(frozen=True)
class WorkflowFunction:
    """A function that is workflow code."""

    node: FunctionNode
    workflow: str
    """The workflow that it belongs to."""
    is_workflow: bool
    """Whether it is the workflow itself, not a function that it calls."""


class WorkflowModule:
    """One module with its workflows and steps."""

    def __init__(self, module: SourceModule, loader: ModuleLoader) -> None:
        self.module = module
        self.resolver = Resolver(module, loader)
        self._loader = loader

    # Kinds of values

    def is_step_call(self, value: ResolvedValue) -> bool:
        """Whether a value is the result of calling a step."""
        if self._has_decorator(value, _STEP_DECORATORS):
            return value.path in ((CALL,), ("options", CALL, CALL))
        return value.dotted_path in ("holdfast.step()()", "holdfast.step()()()")  # charge = step(function)

    def is_workflow_call(self, value: ResolvedValue) -> bool:
        """Whether a value is the result of calling a workflow: a child."""
        return self._has_decorator(value, _WORKFLOW_DECORATORS) and value.path in _CHILD_START_PATHS

    def is_coroutine_call(self, value: ResolvedValue) -> bool:
        """Whether a value is the result of calling a plain async function."""
        if value.path != (CALL,) or not isinstance(value.root, DefinitionBinding):
            return False
        node = value.root.node
        return isinstance(node, ast.AsyncFunctionDef) and not node.decorator_list and not _is_generator(node)

    def _has_decorator(self, value: ResolvedValue, decorators: set[str]) -> bool:
        if not isinstance(value.root, DefinitionBinding):
            return False
        return not decorators.isdisjoint(self._resolve_decorators(value.root, value.module))

    def _resolve_decorators(self, definition: DefinitionBinding, module: SourceModule) -> list[str]:
        resolver = self.resolver if module is self.module else Resolver(module, self._loader)
        values = (resolver.resolve(decorator, definition.scope) for decorator in definition.node.decorator_list)
        return ["?" if value is None else value.dotted_path or "?" for value in values]

    # Workflow code

    def find_workflow_functions(self) -> list[WorkflowFunction]:
        """Every function of the module that is workflow code, each once, workflows first."""
        found: dict[FunctionNode, WorkflowFunction] = {}
        todo = deque(self._find_workflows())
        while todo:
            code = todo.popleft()
            if code.node not in found:
                found[code.node] = code
                todo.extend(
                    WorkflowFunction(node, code.workflow, False) for node in self._find_called_functions(code.node)
                )
        return list(found.values())

    def _find_workflows(self) -> Iterator[WorkflowFunction]:
        scopes = self.module.scopes
        for definition in sorted(scopes.iter_definitions(), key=lambda item: isinstance(item.node, ast.ClassDef)):
            node = definition.node
            if _WORKFLOW_DECORATORS.isdisjoint(self._resolve_decorators(definition, self.module)):
                continue
            if isinstance(node, ast.ClassDef):
                for condition in self._find_conditions(node, scopes.get_scope(node)):
                    yield WorkflowFunction(condition, node.name, False)
            else:
                yield WorkflowFunction(node, node.name, True)
        for node in ast.walk(self.module.tree):  # flow = workflow(function), flow = workflow(id="x")(function)
            match node:
                case ast.Assign(value=ast.Call(func=decorator, args=[ast.Name() as argument])):
                    value = self.resolver.resolve(decorator, scopes.module_scope)
                    if value is not None and value.dotted_path in _WORKFLOW_DECORATORS:
                        function = self._get_plain_function(self.resolver.resolve(argument, scopes.module_scope))
                        if function is not None:
                            yield WorkflowFunction(function, argument.id, True)
                case _:
                    pass

    def _find_conditions(self, node: ast.ClassDef, scope: Scope) -> Iterator[FunctionNode]:
        """The ``when=`` arguments of the steps of a class."""
        for method in node.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for decorator in method.decorator_list:
                value = self.resolver.resolve(decorator, scope)
                if (
                    not isinstance(decorator, ast.Call)
                    or value is None
                    or not value.dotted_path.startswith("holdfast.")
                ):
                    continue
                for keyword in decorator.keywords:
                    if keyword.arg != "when":
                        continue
                    if isinstance(keyword.value, ast.Lambda):
                        yield keyword.value
                    elif function := self._get_plain_function(self.resolver.resolve(keyword.value, scope)):
                        yield function

    def _find_called_functions(self, node: FunctionNode) -> Iterator[FunctionNode]:
        for inner, scope in self.walk(node):
            if not isinstance(inner, ast.Call):
                continue
            value = self.resolver.resolve(inner, scope)
            if value is not None:
                yield from self._find_functions(value)
            if self._is_calling_arguments(inner, scope):
                for argument in [*inner.args, *(keyword.value for keyword in inner.keywords)]:
                    if isinstance(argument, ast.Name | ast.Attribute):
                        function = self._get_plain_function(self.resolver.resolve(argument, scope))
                        if function is not None:
                            yield function

    def _find_functions(self, value: ResolvedValue) -> Iterator[FunctionNode]:
        """The functions of this module that a call runs."""
        if value.module is not self.module or not isinstance(value.root, DefinitionBinding):
            return
        node = value.root.node
        if not isinstance(node, ast.ClassDef):
            if value.path == (CALL,) and (function := self._get_plain_function(replace(value, path=()))):
                yield function
            return
        match value.path:
            case ("()",):
                names = ("__init__", "__post_init__")
            case (str(method), "()") | ("()", str(method), "()"):
                names = (method,)
            case _:
                return
        class_scope = self.module.scopes.get_scope(node)
        for name in names:
            for binding in class_scope.names.get(name, []):
                if isinstance(binding, DefinitionBinding) and (
                    function := self._get_plain_function(ResolvedValue(self.module, binding))
                ):
                    yield function

    def _get_plain_function(self, value: ResolvedValue | None) -> FunctionNode | None:
        """A plain function of this module: not a step, not a workflow, and not changed by a decorator."""
        if (
            value is None
            or value.path
            or value.module is not self.module
            or not isinstance(value.root, DefinitionBinding)
        ):
            return None
        node = value.root.node
        if isinstance(node, ast.ClassDef):
            return None
        decorators = self._resolve_decorators(value.root, self.module)
        return node if all(name.startswith(_TRANSPARENT_PREFIXES) for name in decorators) else None

    # Walking

    def walk(self, function: FunctionNode) -> Iterator[tuple[ast.AST, Scope]]:
        """All nodes of a function's body that run when it runs, each with its scope.

        It leaves out the bodies of functions inside it: they run when they are called, which may be in a step. It
        includes only the lambdas that are called where they are written, as in ``sorted(key=lambda ...)``.
        """
        scope = self.module.scopes.get_scope(function)
        for node in [function.body] if isinstance(function, ast.Lambda) else function.body:
            yield from self._walk(node, scope)

    def _walk(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
        children: list[ast.AST]
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                children = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
            case ast.Lambda():
                children = [node.body] if self._is_called_in_place(node, scope) else []
                scope = self.module.scopes.get_scope(node)
            case ast.ClassDef():
                children = list(node.body)
                scope = self.module.scopes.get_scope(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                children = list(ast.iter_child_nodes(node))
                scope = self.module.scopes.get_scope(node)
            case ast.AnnAssign(target=target, value=value):
                children = [target, *([value] if value is not None else [])]
            case _:
                children = list(ast.iter_child_nodes(node))
        yield node, scope
        for child in children:
            yield from self._walk(child, scope)

    def _is_called_in_place(self, node: ast.Lambda, scope: Scope) -> bool:
        parent = self.module.scopes.parents[node]
        if isinstance(parent, ast.keyword):
            parent = self.module.scopes.parents[parent]
        return isinstance(parent, ast.Call) and (parent.func is node or self._is_calling_arguments(parent, scope))

    def _is_calling_arguments(self, call: ast.Call, scope: Scope) -> bool:
        """Whether a call runs its function arguments at once."""
        callee = self.resolver.resolve(call.func, scope)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        return (callee is not None and callee.dotted_path in _CALLING_FUNCTIONS) or method in _CALLING_METHODS


def _is_generator(node: ast.AsyncFunctionDef) -> bool:
    todo: list[ast.AST] = list(node.body)
    while todo:
        inner = todo.pop()
        if isinstance(inner, ast.Yield):
            return True
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo.extend(ast.iter_child_nodes(inner))
    return False
