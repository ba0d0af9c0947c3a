"""Files, folders and modules in, findings out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checking.await_checks import find_await_violations
from holdfast.checking.call_checks import find_call_violations
from holdfast.checking.findings import Finding, FindingBuilder, Violation
from holdfast.checking.modules import ModuleLoader, UnreadableSource
from holdfast.checking.resolver import CALL, ResolvedValue
from holdfast.checking.scopes import (
    AssignmentBinding,
    Binding,
    DeclarationBinding,
    DefinitionBinding,
    FunctionNode,
    ParameterBinding,
    Scope,
)
from holdfast.checking.syntax_checks import SyntaxChecker, get_last_name, is_int_constant, is_set_type
from holdfast.checking.targets import find_files
from holdfast.checking.workflow_code import WorkflowFunction, WorkflowModule

_CONTAINER_TYPES = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray"}


@dataclass
class CheckReport:
    """The result of a check."""

    file_count: int = 0
    workflow_count: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    read_errors: list[str] = field(default_factory=list[str])
    """A message for each target that could not be found, read or parsed."""


def check_code(targets: Iterable[str]) -> CheckReport:
    """Check files, folders and modules, without importing them."""
    report, loader = CheckReport(), ModuleLoader()
    paths: dict[Path, None] = {}
    for target in targets:
        try:
            paths.update(dict.fromkeys(find_files(target)))
        except UnreadableSource as error:
            report.read_errors.append(str(error))
    for path in paths:
        try:
            workflow_count, findings = _check_file(path, loader)
        except UnreadableSource as error:
            report.read_errors.append(str(error))
        except RecursionError:
            report.read_errors.append(f"{path} cannot be parsed: it is nested too deeply")
        else:
            report.file_count += 1
            report.workflow_count += workflow_count
            report.findings += findings
    return report


def _check_file(path: Path, loader: ModuleLoader) -> tuple[int, list[Finding]]:
    module = loader.load(path)
    program = WorkflowModule(module, loader)
    functions = program.find_workflow_functions()
    if not functions:
        return 0, []
    outer_names = _FileNames(program, {function.node for function in functions})
    builder = FindingBuilder(str(path), module)
    findings: set[Finding] = set()
    for function in functions:
        for violation in _find_violations(program, outer_names, function):
            if (finding := builder.build(violation, function.workflow)) is not None:
                findings.add(finding)
    return len({function.workflow for function in functions}), sorted(findings)


def _find_violations(program: WorkflowModule, outer_names: _FileNames, code: WorkflowFunction) -> Iterator[Violation]:
    yield from find_call_violations(program, code)
    yield from find_await_violations(program, code)
    yield from SyntaxChecker(outer_names, program.module.scopes.parents).find_violations(program.walk(code.node))


class _FileNames:
    """The names that a function does not bind itself, as its file binds them."""

    def __init__(self, program: WorkflowModule, workflow_code: set[FunctionNode]) -> None:
        self._program = program
        self._workflow_code = workflow_code

    def is_outside_run(self, name: str, scope: Scope) -> bool:
        """Whether a name belongs to the module, to a class, or to a function that no run calls."""
        owner = scope.find_owner(name)
        if owner is None:
            return False
        if any(isinstance(binding, ParameterBinding) and binding.is_classmethod for binding in owner.names[name]):
            return True
        outer: Scope | None = owner
        while outer is not None:
            if outer.node in self._workflow_code:
                return False
            outer = outer.parent
        return True

    def is_container(self, name: str, scope: Scope) -> bool:
        """Whether all bindings of a name are containers: otherwise `counter.add(1)` may mean anything."""
        bindings = scope.get_bindings(name)
        return bool(bindings) and all(map(_is_container, bindings))

    def is_set(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a module's variable is a set, or a function is annotated to return one."""
        match node:
            case ast.Name(id=name):
                bindings = scope.get_bindings(name)
                return bool(bindings) and all(map(_is_set, bindings))
            case ast.Call() | ast.Await(value=ast.Call()):
                value = self._program.resolver.resolve(node, scope)
                return value is not None and _is_set_returning(value, is_awaited=isinstance(node, ast.Await))
            case _:
                return False


def _is_set_returning(value: ResolvedValue, *, is_awaited: bool) -> bool:
    if (
        not isinstance(value.root, DefinitionBinding)
        or isinstance(value.root.node, ast.ClassDef)
        or value.path != (CALL,)
    ):
        return False
    node = value.root.node
    # A plain function may be a step, and calls of steps are awaited.
    is_annotated = node.returns is not None and is_set_type(node.returns)
    return is_annotated and (is_awaited or isinstance(node, ast.FunctionDef))


def _is_container(binding: Binding) -> bool:
    match binding:
        case AssignmentBinding(value) | DeclarationBinding(_, ast.expr() as value):
            literals = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
            is_made = isinstance(value, ast.Call) and get_last_name(value.func) in _CONTAINER_TYPES
            return isinstance(value, literals) or is_made
        case _:
            return False


def _is_set(binding: Binding) -> bool:
    match binding:
        case DeclarationBinding(annotation):
            return is_set_type(annotation)
        case AssignmentBinding(ast.Set(elts=elements)):
            return not all(map(is_int_constant, elements))
        case AssignmentBinding(ast.Call(func=ast.Name(id="set" | "frozenset"))) | AssignmentBinding(ast.SetComp()):
            return True
        case _:
            return False
