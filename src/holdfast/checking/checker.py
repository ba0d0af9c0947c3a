"""Files, folders and modules in, findings out."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checking.await_checks import read_awaits
from holdfast.checking.call_checks import read_calls
from holdfast.checking.findings import Fault, Finding, Place
from holdfast.checking.modules import Library, Unreadable
from holdfast.checking.resolver import CALL, Value
from holdfast.checking.scopes import Assigned, Binding, Declared, Defined, FunctionNode, Parameter, Scope
from holdfast.checking.syntax_checks import OrderReader, is_set_type
from holdfast.checking.targets import files_of
from holdfast.checking.workflow_code import Code, Program

_CONTAINERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray"}


@dataclass
class Report:
    """What a check came to."""

    files: int = 0
    workflows: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    unreadable: list[str] = field(default_factory=list[str])
    """What could not be found, read or parsed, one message each."""


def check(targets: Iterable[str]) -> Report:
    """Check files, folders and modules. None of them is imported."""
    report, library = Report(), Library()
    found: dict[Path, None] = {}
    for target in targets:
        try:
            found.update(dict.fromkeys(files_of(target)))
        except Unreadable as error:
            report.unreadable.append(str(error))
    for path in found:
        try:
            workflows, findings = _check_file(path, library)
        except Unreadable as error:
            report.unreadable.append(str(error))
        except RecursionError:
            report.unreadable.append(f"{path} cannot be parsed: it is nested too deeply")
        else:
            report.files += 1
            report.workflows += workflows
            report.findings += findings
    return report


def _check_file(path: Path, library: Library) -> tuple[int, list[Finding]]:
    module = library.read(path)
    program = Program(module, library)
    codes = program.workflow_code()
    if not codes:
        return 0, []
    outside = _File(program, {code.node for code in codes})
    place = Place(str(path), module)
    found: set[Finding] = set()
    for code in codes:
        for fault in _faults(program, outside, code):
            if (finding := place.finding(fault, code.workflow)) is not None:
                found.add(finding)
    return len({code.workflow for code in codes}), sorted(found)


def _faults(program: Program, outside: _File, code: Code) -> Iterator[Fault]:
    yield from read_calls(program, code)
    yield from read_awaits(program, code)
    reader = OrderReader(outside, program.module.scopes.parents)
    for written in reader.read(program.walk(code.node)):
        yield Fault(written.kind, written.what, written.node)


class _File:
    """What a file tells of the names that a function in it does not bind itself."""

    def __init__(self, program: Program, workflow_code: set[FunctionNode]) -> None:
        self._program = program
        self._workflow_code = workflow_code

    def outlives(self, name: str, scope: Scope) -> bool:
        """Whether a name belongs to the module, to a class, or to a function that no run calls."""
        owner = scope.owner(name)
        if owner is None:
            return False
        if any(isinstance(one, Parameter) and one.of_class for one in owner.names[name]):
            return True
        around: Scope | None = owner
        while around is not None:
            if around.node in self._workflow_code:
                return False
            around = around.parent
        return True

    def is_container(self, name: str, scope: Scope) -> bool:
        """Whether it is plain to see: `counter.add(1)` may be anything."""
        bindings = scope.bindings(name)
        return bool(bindings) and all(_is_container(one) for one in bindings)

    def is_set(self, node: ast.expr, scope: Scope) -> bool:
        """Whether a module's variable is a set, or a function says that it returns one."""
        match node:
            case ast.Name(id=name):
                bindings = scope.bindings(name)
                return bool(bindings) and all(_is_set(one) for one in bindings)
            case ast.Call() | ast.Await(value=ast.Call()):
                value = self._program.reader.value(node, scope)
                return value is not None and _returns_set(value, awaited=isinstance(node, ast.Await))
            case _:
                return False


def _returns_set(value: Value, *, awaited: bool) -> bool:
    if not isinstance(value.root, Defined) or isinstance(value.root.node, ast.ClassDef) or value.trail != (CALL,):
        return False
    node = value.root.node
    # A plain function may be a step, whose call is awaited.
    says_so = node.returns is not None and is_set_type(node.returns)
    return says_so and (awaited or isinstance(node, ast.FunctionDef))


def _is_container(binding: Binding) -> bool:
    match binding:
        case Assigned(value) | Declared(_, ast.expr() as value):
            made = value.func if isinstance(value, ast.Call) else None
            name = made.id if isinstance(made, ast.Name) else made.attr if isinstance(made, ast.Attribute) else ""
            literals = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
            return isinstance(value, literals) or name in _CONTAINERS
        case _:
            return False


def _is_set(binding: Binding) -> bool:
    match binding:
        case Declared(annotation):
            return is_set_type(annotation)
        case Assigned(ast.Set(elts=elements)):
            return not all(isinstance(one, ast.Constant) and isinstance(one.value, int) for one in elements)
        case Assigned(ast.Call(func=ast.Name(id="set" | "frozenset"))) | Assigned(ast.SetComp()):
            return True
        case _:
            return False
