"""The scopes of a file: the names that its code binds, and what they are bound to.

A name may have several bindings. Callers get all of them, and must be sure of each: the value of a name that is
sometimes an imported module and sometimes something else is unknown.
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
    """Bound to an unknown value: by a loop, by unpacking, by a pattern."""


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
        """The scope that binds a name that is used in this one; ``None`` if the file does not bind it."""
        if self.outer_declarations.get(name) == "global":
            return self.module_scope if name in self.module_scope.names else None
        scope: Scope | None = self
        while scope is not None:
            # The functions in a class do not see the names that the class binds.
            visible = scope is self or not isinstance(scope.node, ast.ClassDef)
            if visible and name in scope.names and name not in scope.outer_declarations:
                return scope
            scope = scope.parent
        return None

    def get_bindings(self, name: str) -> list[Binding]:
        """All bindings of a name that is used in this scope."""
        owner = self.find_owner(name)
        return [] if owner is None else owner.names[name]

    def is_builtin(self, name: str) -> bool:
        """Whether a name is certainly a builtin; a star import may hide one."""
        return name in BUILTIN_NAMES and self.find_owner(name) is None and not self.module_scope.star_imports

    def bind(self, name: str, binding: Binding) -> None:
        """Add a binding by this scope's code."""
        scope: Scope = self
        if self.outer_declarations.get(name) == "global":
            scope = self.module_scope
        elif self.outer_declarations.get(name) == "nonlocal":
            scope = self.find_owner(name) or self
        scope.names.setdefault(name, []).append(binding)


class ScopeTree:
    """All scopes of a tree, by the node that opens each, and the parent of every node."""

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

    def iter_definitions(self) -> Iterator[DefinitionBinding]:
        """Every named function and class."""
        for node, scope in self.scopes_by_node.items():
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and scope.parent is not None:
                yield DefinitionBinding(node, scope.parent)

    # Binding

    def _bind_all(self, nodes: list[ast.stmt], scope: Scope) -> None:
        for node in nodes:  # a `global` applies to the whole function, so these come first
            for inner in _iter_own_nodes(node):
                if isinstance(inner, ast.Global | ast.Nonlocal):
                    keyword = "global" if isinstance(inner, ast.Global) else "nonlocal"
                    scope.outer_declarations.update(dict.fromkeys(inner.names, keyword))
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
        for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
            self._bind(default, scope)
        if isinstance(node, ast.Lambda):
            self._bind(node.body, inner)
        else:
            self._bind_all(node.body, inner)

    def _bind_parameters(self, node: FunctionNode, outer: Scope, inner: Scope) -> None:
        args = node.args
        positional = [*args.posonlyargs, *args.args]
        defaults: dict[ast.arg, ast.expr] = dict(zip(reversed(positional), reversed(args.defaults), strict=False))
        defaults.update((arg, value) for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value)
        decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
        names = {decorator.id for decorator in decorators if isinstance(decorator, ast.Name)}
        owner = outer.node if isinstance(outer.node, ast.ClassDef) else None
        if isinstance(node, ast.Lambda) or "staticmethod" in names:
            owner = None
        for arg in [*positional, *args.kwonlyargs]:
            inner.bind(arg.arg, ParameterBinding(arg.annotation, defaults.get(arg), owner, "classmethod" in names))
            owner = None  # only the first parameter is the instance or the class
        for arg in (args.vararg, args.kwarg):
            if arg is not None:
                inner.bind(arg.arg, UnknownBinding())


def _find_function_scope(scope: Scope) -> Scope:
    """The scope in which ``:=`` binds: that of the function around a comprehension."""
    while isinstance(scope.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) and scope.parent:
        scope = scope.parent
    return scope


def _iter_own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and everything in it that belongs to the same scope."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        for child in ast.iter_child_nodes(node):
            yield from _iter_own_nodes(child)
