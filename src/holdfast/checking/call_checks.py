"""Finds calls that only a step may make: clocks, random numbers, files, networks, threads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from holdfast.checking.findings import Violation
from holdfast.checking.rules import ATTRIBUTE_KINDS, METHOD_RULES, Rule, find_rule
from holdfast.checking.scopes import DefinitionBinding, Scope
from holdfast.checking.workflow_code import WorkflowFunction, WorkflowModule

_MAX_CODE_LENGTH = 60


def find_call_violations(program: WorkflowModule, code: WorkflowFunction) -> Iterator[Violation]:
    """The violations in one function."""
    for node, scope in program.walk(code.node):
        match node:
            case ast.Call():
                rule = _find_broken_rule(program, node, scope)
                if rule is not None:
                    yield Violation(rule.kind, _describe_call(program, node.func, scope), node, rule.remedy)
            case ast.Attribute() | ast.Name() if isinstance(node.ctx, ast.Load):
                value = program.resolver.resolve(node, scope)
                if value is not None and (kind := ATTRIBUTE_KINDS.get(value.dotted_path)) is not None:
                    yield Violation(kind, f"`{value.dotted_path}`", node)
            case _:
                pass


def _find_broken_rule(program: WorkflowModule, call: ast.Call, scope: Scope) -> Rule | None:
    value = program.resolver.resolve(call.func, scope)
    if value is not None and isinstance(value.root, DefinitionBinding):
        return None  # defined in a checked file
    if value is not None and (rule := find_rule(value.dotted_path, _count_arguments(call))) is not None:
        return rule
    return METHOD_RULES.get(call.func.attr) if isinstance(call.func, ast.Attribute) else None


def _count_arguments(call: ast.Call) -> int:
    """The number of arguments of a call; with `*` or `**`, a high one, because it is unknown."""
    is_unknown = any(isinstance(arg, ast.Starred) for arg in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )
    return 99 if is_unknown else len(call.args) + len(call.keywords)


def _describe_call(program: WorkflowModule, func: ast.expr, scope: Scope) -> str:
    """The source of a call, and the full name of its callee if that differs."""
    written = " ".join(ast.unparse(func).split())
    value = program.resolver.resolve(func, scope)
    dotted = written if value is None else value.dotted_path.removeprefix("builtins.")
    if dotted.endswith(written):
        return f"`{written}()`"
    return f"`{written}()`, which is `{dotted}`" if len(written) <= _MAX_CODE_LENGTH else f"`{dotted}()`"
