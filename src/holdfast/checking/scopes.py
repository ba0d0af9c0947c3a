"""Scopes: which names a piece of code binds, and to what.

A name may be bound in several places. Whoever asks gets all of them, and has to be sure of each: a name that is now an
imported module and now something else is nothing that one can know.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension: TypeAlias = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
ScopeNode: TypeAlias = ast.Module | FunctionNode | ast.ClassDef | Comprehension

BUILTIN_NAMES = frozenset(dir(builtins))


@dataclass(frozen=True)
class ImportBinding:
    """Bound by an import, to ``path``; with leading dots where the import is relative."""

    path: str


@dataclass(frozen=True)
class DefinitionBinding:
    """Bound by ``def`` or ``class``."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    scope: Scope
    """The scope in which it is defined."""


@dataclass(frozen=True)
class AssignmentBinding:
    """Bound to the value of an expression, by ``=`` or ``with ... as``."""

    value: ast.expr


@dataclass(frozen=True)
class ParameterBinding:
    """A parameter of a function."""

    annotation: ast.expr | None
    default: ast.expr | None
    owner: ast.ClassDef | None = None
    """The class, for the first parameter of a method."""
    is_classmethod: bool = False
    """Whether it is the class itself, as in a class method."""


@dataclass(frozen=True)
class DeclarationBinding:
    """Declared with a type, as in ``name: type`` or ``name: type = value``."""

    annotation: ast.expr
    value: ast.expr | None


@dataclass(frozen=True)
class UnknownBinding:
    """Bound in a way that tells nothing: by a loop, by unpacking, by a pattern."""


Binding: TypeAlias = (
    ImportBinding | DefinitionBinding | AssignmentBinding | ParameterBinding | DeclarationBinding | UnknownBinding
)


@dataclass(eq=False)
class Scope:
    """The names that a module, a function, a class or a comprehension binds."""

    node: ScopeNode
    parent: Scope | None
    names: dict[str, list[Binding]] = field(default_factory=dict[str, "list[Binding]"])
    outer_declarations: dict[str, str] = field(default_factory=dict[str, str])
    """Names that the code declares ``global`` or ``nonlocal``."""
    star_imports: list[str] = field(default_factory=list[str])
    """Modules from which everything is imported."""

    @property
    def module_scope(self) -> Scope:
        """The outermost scope."""
        return self if self.parent is None else self.parent.module_scope

    def find_owner(self, name: str) -> Scope | None:
        """The scope that a name belongs to when it is used in this one; ``None`` if the file does not bind it."""
        if self.outer_declarations.get(name) == "global":
            return self.module_scope if name in self.module_scope.names else None
        scope: Scope | None = self
        while scope is not None:
            # What a class binds is not seen from the functions in it.
            visible = scope is self or not isinstance(scope.node, ast.ClassDef)
            if visible and name in scope.names and name not in scope.outer_declarations:
                return scope
            scope = scope.parent
        return None

    def get_bindings(self, name: str) -> list[Binding]:
        """All that a name may be bound to when it is used in this scope."""
        owner = self.find_owner(name)
        return [] if owner is None else owner.names[name]

    def is_builtin(self, name: str) -> bool:
        """Whether a name stands for Python's own. A star import may hide that, so it is not known then."""
        return name in BUILTIN_NAMES and self.find_owner(name) is None and not self.module_scope.star_imports

    def bind(self, name: str, binding: Binding) -> None:
        """Note that this scope's code binds a name."""
        scope: Scope = self
        if self.outer_declarations.get(name) == "global":
            scope = self.module_scope
        elif self.outer_declarations.get(name) == "nonlocal":
            scope = self.find_owner(name) or self
        scope.names.setdefault(name, []).append(binding)


class ScopeTree:
    """All scopes of a tree, by the node that opens each; and for every node its parent."""

    def __init__(self, tree: ast.Module) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(tree):
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
        self.module_scope = Scope(tree, None)
        self.scopes_by_node: dict[ast.AST, Scope] = {tree: self.module_scope}
        self._bind_all(tree.body, self.module_scope)

    def get_scope(self, node: ast.AST) -> Scope:
        """The scope that a node opens."""
        return self.scopes_by_node[node]

    def iter_functions(self) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Scope]]:
        """Every named function, with the scope that it is defined in."""
        for node, scope in self.scopes_by_node.items():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and scope.parent is not None:
                yield node, scope.parent

    def iter_classes(self) -> Iterator[tuple[ast.ClassDef, Scope]]:
        """Every class, with the scope that it is defined in."""
        for node, scope in self.scopes_by_node.items():
            if isinstance(node, ast.ClassDef) and scope.parent is not None:
                yield node, scope.parent

    # Binding

    def _bind_all(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for node in nodes:  # a `global` holds for the whole function, so it is looked for first
            for inner in _iter_own_nodes(node):
                if isinstance(inner, ast.Global | ast.Nonlocal):
                    word = "global" if isinstance(inner, ast.Global) else "nonlocal"
                    scope.outer_declarations.update(dict.fromkeys(inner.names, word))
        for node in nodes:
            self._bind(node, scope)

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self._bind_function(node, scope)
                return
            case ast.ClassDef():
                scope.bind(node.name, DefinitionBinding(node, scope))
                inner = self.scopes_by_node[node] = Scope(node, scope)
                for outside in [*node.decorator_list, *node.bases, *node.keywords]:
                    self._bind(outside, scope)
                self._bind_all(node.body, inner)
                return
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                scope = self.scopes_by_node[node] = Scope(node, scope)
            case ast.Import(names=names):
                for alias in names:
                    path = alias.name if alias.asname else alias.name.partition(".")[0]
                    scope.bind(alias.asname or path, ImportBinding(path))
            case ast.ImportFrom(module=module, names=names, level=level):
                base = "." * level + (module or "")
                for alias in names:
                    if alias.name == "*":
                        scope.module_scope.star_imports.append(base)
                    else:
                        dot = "" if not module else "."
                        scope.bind(alias.asname or alias.name, ImportBinding(f"{base}{dot}{alias.name}"))
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind_target(target, scope, AssignmentBinding(value))
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self._bind_target(target, scope, DeclarationBinding(annotation, value))
            case ast.NamedExpr(target=target, value=value):
                self._bind_target(target, _find_function_scope(scope), AssignmentBinding(value))
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.comprehension(target=target):
                self._bind_target(target, scope, UnknownBinding())
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._bind_target(target, scope, AssignmentBinding(value))
            case ast.ExceptHandler(name=str(name)):
                scope.bind(name, UnknownBinding())
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                scope.bind(name, UnknownBinding())
            case _:
                pass
        for child in ast.iter_child_nodes(node):
            self._bind(child, scope)

    def _bind_target(self, target: ast.expr, scope: Scope, binding: Binding) -> None:
        match target:
            case ast.Name(id=name):
                scope.bind(name, binding)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for part in parts:
                    self._bind_target(part, scope, UnknownBinding())
            case ast.Starred(value=part):
                self._bind_target(part, scope, UnknownBinding())
            case _:
                pass  # an attribute or an item: no name

    def _bind_function(self, node: FunctionNode, scope: Scope) -> None:
        inner = self.scopes_by_node[node] = Scope(node, scope)
        if not isinstance(node, ast.Lambda):
            scope.bind(node.name, DefinitionBinding(node, scope))
            for decorator in node.decorator_list:
                self._bind(decorator, scope)
        self._bind_parameters(node, scope, inner)
        for default in [*node.args.defaults, *(one for one in node.args.kw_defaults if one is not None)]:
            self._bind(default, scope)
        if isinstance(node, ast.Lambda):
            self._bind(node.body, inner)
        else:
            self._bind_all(node.body, inner)

    def _bind_parameters(self, node: FunctionNode, outer: Scope, inner: Scope) -> None:
        given = node.args
        plain = [*given.posonlyargs, *given.args]
        defaults: dict[ast.arg, ast.expr] = dict(zip(reversed(plain), reversed(given.defaults), strict=False))
        defaults.update((one, value) for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value)
        for at, one in enumerate([*plain, *given.kwonlyargs]):
            owner = outer.node if at == 0 and isinstance(outer.node, ast.ClassDef) else None
            marks = [] if isinstance(node, ast.Lambda) else [_get_name(mark) for mark in node.decorator_list]
            if "staticmethod" in marks or isinstance(node, ast.Lambda):
                owner = None
            inner.bind(one.arg, ParameterBinding(one.annotation, defaults.get(one), owner, "classmethod" in marks))
        for one in (given.vararg, given.kwarg):
            if one is not None:
                inner.bind(one.arg, UnknownBinding())


def _get_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _find_function_scope(scope: Scope) -> Scope:
    """Where ``:=`` binds: in the function around a comprehension."""
    while isinstance(scope.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) and scope.parent:
        scope = scope.parent
    return scope


def _iter_own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all in it that belongs to the same scope."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _iter_own_nodes(child)
