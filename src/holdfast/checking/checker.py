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
from holdfast.checking.syntax_checks import SyntaxChecker, is_set_type
from holdfast.checking.targets import find_files
from holdfast.checking.workflow_code import WorkflowFunction, WorkflowModule

_CONTAINER_TYPES = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray"}


@dataclass
class CheckReport:
    """What a check came to."""

    file_count: int = 0
    workflow_count: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    read_errors: list[str] = field(default_factory=list[str])
    """What could not be found, read or parsed, one message each."""


def check_code(targets: Iterable[str]) -> CheckReport:
    """Check files, folders and modules. None of them is imported."""
    report, library = CheckReport(), ModuleLoader()
    found: dict[Path, None] = {}
    for target in targets:
        try:
            found.update(dict.fromkeys(find_files(target)))
        except UnreadableSource as error:
            report.read_errors.append(str(error))
    for path in found:
        try:
            workflows, findings = _check_file(path, library)
        except UnreadableSource as error:
            report.read_errors.append(str(error))
        except RecursionError:
            report.read_errors.append(f"{path} cannot be parsed: it is nested too deeply")
        else:
            report.file_count += 1
            report.workflow_count += workflows
            report.findings += findings
    return report


def _check_file(path: Path, library: ModuleLoader) -> tuple[int, list[Finding]]:
    module = library.load(path)
    program = WorkflowModule(module, library)
    codes = program.find_workflow_functions()
    if not codes:
        return 0, []
    outside = _FileNames(program, {code.node for code in codes})
    place = FindingBuilder(str(path), module)
    found: set[Finding] = set()
    for code in codes:
        for fault in _find_violations(program, outside, code):
            if (finding := place.build(fault, code.workflow)) is not None:
                found.add(finding)
    return len({code.workflow for code in codes}), sorted(found)


def _find_violations(program: WorkflowModule, outer_names: _FileNames, code: WorkflowFunction) -> Iterator[Violation]:
    yield from find_call_violations(program, code)
    yield from find_await_violations(program, code)
    reader = SyntaxChecker(outer_names, program.module.scopes.parents)
    for written in reader.find_violations(program.walk(code.node)):
        yield Violation(written.kind, written.code_text, written.node)


class _FileNames:
    """What a file tells of the names that a function in it does not bind itself."""

    def __init__(self, program: WorkflowModule, workflow_code: set[FunctionNode]) -> None:
        self._program = program
        self._workflow_code = workflow_code

    def is_outside_run(self, name: str, scope: Scope) -> bool:
        """Whether a name belongs to the module, to a class, or to a function that no run calls."""
        owner = scope.find_owner(name)
        if owner is None:
            return False
        if any(isinstance(one, ParameterBinding) and one.is_classmethod for one in owner.names[name]):
            return True
        around: Scope | None = owner
        while around is not None:
            if around.node in self._workflow_code:
                return False
            around = around.parent
        return True

    def is_container(self, name: str, scope: Scope) -> bool:
        """Whether it is plain to see: `counter.add(1)` may be anything."""
        bindings = scope.get_bindings(name)
        return bool(bindings) and all(_is_container(one) for one in bindings)

    def is_set(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a module's variable is a set, or a function says that it returns one."""
        match node:
            case ast.Name(id=name):
                bindings = scope.get_bindings(name)
                return bool(bindings) and all(_is_set(one) for one in bindings)
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
    # A plain function may be a step, whose call is awaited.
    says_so = node.returns is not None and is_set_type(node.returns)
    return says_so and (is_awaited or isinstance(node, ast.FunctionDef))


def _is_container(binding: Binding) -> bool:
    match binding:
        case AssignmentBinding(value) | DeclarationBinding(_, ast.expr() as value):
            made = value.func if isinstance(value, ast.Call) else None
            name = made.id if isinstance(made, ast.Name) else made.attr if isinstance(made, ast.Attribute) else ""
            literals = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
            return isinstance(value, literals) or name in _CONTAINER_TYPES
        case _:
            return False


def _is_set(binding: Binding) -> bool:
    match binding:
        case DeclarationBinding(annotation):
            return is_set_type(annotation)
        case AssignmentBinding(ast.Set(elts=elements)):
            return not all(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in elements)
        case AssignmentBinding(ast.Call(func=ast.Name(id="set" | "frozenset"))) | AssignmentBinding(ast.SetComp()):
            return True
        case _:
            return False
