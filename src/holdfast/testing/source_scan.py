"""Nondeterministic code, found in the source of workflow functions.

``holdfast check`` reads files in the same way. Here there are function objects, so names can be resolved.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import NamedTuple

from holdfast.checking.scopes import Scope, ScopeTree
from holdfast.checking.syntax_checks import SyntaxChecker


class Finding(NamedTuple):
    """A problem in a function's source."""

    kind: str
    description: str
    location: str


def scan_source(function: FunctionType) -> list[Finding]:
    """The findings in a function's source; none if it has no source."""
    try:
        tree, first = _parse_lambda(function) if function.__name__ == "<lambda>" else _parse_function(function)
    except (OSError, TypeError, SyntaxError, IndentationError):
        return []
    scopes = ScopeTree(tree)
    file, name = function.__code__.co_filename, function.__name__
    return [
        Finding(found.kind, found.code_text, f"{file}:{first + found.node.lineno - 1} in {name}")
        for found in SyntaxChecker(_FunctionNames(function), scopes.parents).find_violations(
            _walk_scopes(tree, scopes.module_scope, scopes)
        )
    ]


def _parse_function(function: FunctionType) -> tuple[ast.Module, int]:
    """A function's syntax tree, and the line in its file that is line 1 of the tree."""
    lines, first = inspect.getsourcelines(function)
    return ast.parse(textwrap.dedent("".join(lines))), first


def _parse_lambda(function: FunctionType) -> tuple[ast.Module, int]:
    """The same for a ``lambda``. Its lines alone rarely parse: it is usually an argument of a decorator."""
    lines, _ = inspect.findsource(function)
    line = function.__code__.co_firstlineno
    found = [
        node for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Lambda) and node.lineno == line
    ]
    return ast.Module([ast.Expr(node) for node in found], []), 1


def _walk_scopes(node: ast.AST, scope: Scope, scopes: ScopeTree) -> Iterator[tuple[ast.AST, Scope]]:
    """All nodes with their scopes, including nested functions, which nothing else scans."""
    yield node, scope
    inside = scopes.scopes_by_node.get(node, scope)
    for child in ast.iter_child_nodes(node):
        yield from _walk_scopes(child, inside, scopes)


class _FunctionNames:
    """Resolves names that a function's code does not bind."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function

    def is_outside_run(self, name: str, scope: Scope) -> bool:
        """Whether a name belongs to the module or to an enclosing function."""
        owner = scope.find_owner(name)
        if owner is not None and owner.parent is not None:
            return False
        return name in self._function.__globals__ or name in self._function.__code__.co_freevars

    def is_container(self, name: str, scope: Scope) -> bool:
        """Always true: a rule is already broken, so anything that may be a container is a candidate."""
        return True

    def is_set(self, node: ast.expr, scope: Scope) -> bool:
        """Whether the node names a set in the module."""
        return isinstance(node, ast.Name) and isinstance(self._function.__globals__.get(node.id), set | frozenset)
