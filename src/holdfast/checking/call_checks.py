"""What workflow code calls and reads that only a step may: clocks, chance, files, networks, threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from holdfast.checking.findings import Fault
from holdfast.checking.rules import ATTRIBUTES, METHODS, Rule, rule_for
from holdfast.checking.scopes import Defined, Scope
from holdfast.checking.workflow_code import Code, Program

_LONGEST = 60


def read_calls(program: Program, code: Code) -> Iterator[Fault]:
    """The faults in one function."""
    for node, scope in program.walk(code.node):
        match node:
            case ast.Call():
                rule = _broken(program, node, scope)
                if rule is not None:
                    yield Fault(rule.kind, _shown(program, node.func, scope), node, rule.remedy)
            case ast.Attribute() | ast.Name() if isinstance(node.ctx, ast.Load):
                value = program.reader.value(node, scope)
                if value is not None and (kind := ATTRIBUTES.get(value.dotted)) is not None:
                    yield Fault(kind, f"`{value.dotted}`", node)
            case _:
                pass


def _broken(program: Program, call: ast.Call, scope: Scope) -> Rule | None:
    value = program.reader.value(call.func, scope)
    if value is not None and isinstance(value.root, Defined):
        return None  # the file's own
    if value is not None and (rule := rule_for(value.dotted, _arguments(call))) is not None:
        return rule
    return METHODS.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None


def _arguments(call: ast.Call) -> int:
    """How many arguments a call has; `*` and `**` may be any number, so many."""
    spread = any(isinstance(one, ast.Starred) for one in call.args) or any(one.arg is None for one in call.keywords)
    return 99 if spread else len(call.args) + len(call.keywords)


def _shown(program: Program, func: ast.expr, scope: Scope) -> str:
    """A call as it is written, and what is called, if that is not how it is written."""
    written = " ".join(ast.unparse(func).split())
    value = program.reader.value(func, scope)
    dotted = written if value is None else value.dotted.removeprefix("builtins.")
    if dotted.endswith(written):
        return f"`{written}()`"
    return f"`{written}()`, which is `{dotted}`" if len(written) <= _LONGEST else f"`{dotted}()`"
