"""The graph of a class workflow: computed once, when the class is defined, and never changed."""

from __future__ import annotations

import difflib
import keyword
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, NotRequired, Optional

from holdfast.authoring.classes.members import Member
from holdfast.authoring.classes.parameter_bindings import (
    Condition,
    Input,
    Source,
    bind_condition,
    bind_step,
    choose_item_parameter,
    collect_inputs,
    to_list_type,
)
from holdfast.authoring.parallel import DEFAULT_MAX_CONCURRENCY
from holdfast.authoring.step import Step
from holdfast.authoring.step_declaration import Reference
from holdfast.errors import DefinitionError

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic reads the older ones only in this form
    from typing_extensions import TypedDict


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A step in the graph. Steps refer to each other by index: their order by number."""

    index: int
    number: int
    name: str
    """Its name in the journal."""
    step: Step[..., Any]
    sources: tuple[tuple[str, int | None, str, str], ...]
    """For each parameter: its name, the index of the step with its value or ``None``, the input, and ``if_skipped``."""
    unbound_dependencies: tuple[int, ...]
    """Dependencies with an output that no parameter takes; when one of them is skipped, so is this step."""
    condition: Condition | None
    each: str | None
    max_concurrency: int
    predecessor_count: int
    """How many steps must end before it."""
    dependents: tuple[int, ...]
    """Steps that wait for this one."""
    can_be_skipped: bool
    output_type: Any
    """The annotation of its output as others see it: a list, for a fan-out."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The graph of a class workflow."""

    nodes: tuple[Node, ...]
    inputs: tuple[Input, ...]
    first_nodes: tuple[Node, ...]
    """Steps without predecessors."""
    final_nodes: tuple[Node, ...]
    """Steps without dependents: their outputs are the result."""
    index_by_method: Mapping[str, int]
    """The index of each step, by the name of its method."""

    @property
    def step_numbers(self) -> dict[str, int]:
        """The numbers of the steps, by their names in the journal."""
        return {node.name: node.number for node in self.nodes}

    def build_signature(self) -> tuple[Signature, dict[str, Any]]:
        """The inputs as keyword arguments, and their annotations."""
        parameters = [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.annotation)
            for one in self.inputs
        ]
        hints = {one.name: one.annotation for one in self.inputs if one.annotation is not Parameter.empty}
        return Signature(parameters), hints

    def build_result_type(self, name: str) -> Any:
        """The annotation of the result: that of the only final step, or a dict with those of all."""
        if len(self.final_nodes) == 1:
            node = self.final_nodes[0]
            if node.can_be_skipped and node.output_type is not Parameter.empty:
                return Optional[node.output_type]  # noqa: UP045 - `|` does not take every annotation
            return node.output_type
        if all(node.output_type is Parameter.empty for node in self.final_nodes):
            return dict[str, Any]
        fields: dict[str, Any] = {}
        for node in self.final_nodes:
            output = Any if node.output_type is Parameter.empty else node.output_type
            fields[node.name] = NotRequired[output] if node.can_be_skipped else output
        make: Any = TypedDict
        return make(f"{name}Result", fields)


def get_fan_out_names(function: Callable[..., Any]) -> set[str]:
    """The names of a workflow's fan-outs in the journal; empty unless this function runs a class workflow."""
    graph: Graph | None = getattr(function, "holdfast_graph", None)
    return set() if graph is None else {node.name for node in graph.nodes if node.each is not None}


def get_conditions(function: Callable[..., Any]) -> list[Callable[..., Any]] | None:
    """The ``when=`` functions of a workflow; ``None`` unless this function runs a class workflow."""
    graph: Graph | None = getattr(function, "holdfast_graph", None)
    return None if graph is None else [node.condition.function for node in graph.nodes if node.condition is not None]


def build_graph(members: Sequence[Member], template_fields: Sequence[str], subject: str) -> Graph:
    """Connect the steps of a class. Raises ``DefinitionError`` for every mistake in their declarations."""
    return _GraphBuilder(members, template_fields, subject).build()


class _GraphBuilder:
    def __init__(self, members: Sequence[Member], template_fields: Sequence[str], subject: str) -> None:
        self._members = members
        self._template_fields = tuple(dict.fromkeys(template_fields))
        self._subject = subject
        self._member_by_method = {member.method_name: member for member in members}
        self._member_by_number = {member.number: member for member in members}
        self._index_by_method = {member.method_name: index for index, member in enumerate(members)}
        self._depends_on = {
            one: self._resolve_references(one, one.declaration.depends_on, "depends_on") for one in members
        }
        self._predecessors: dict[Member, list[Member]] = {}
        """The steps that must end before a step."""
        self._dependents: dict[Member, list[Member]] = {member: [] for member in members}
        """The steps that wait for a step."""
        for member in members:
            after = self._resolve_references(member, member.declaration.after, "after")
            self._predecessors[member] = list(dict.fromkeys([*self._depends_on[member], *after]))
            for predecessor in self._predecessors[member]:
                self._dependents[predecessor].append(member)

    def build(self) -> Graph:
        self._check_acyclic()
        for field in self._template_fields:
            if keyword.iskeyword(field):
                raise DefinitionError(
                    f"{self._subject}: the field {field!r} of a template is a word of Python's own: rename it"
                )
            if field in self._member_by_method:
                raise DefinitionError(
                    f"{self._subject}: {field!r} is both a field of a template (id= or a queue's key=), and so an "
                    f"input, and the method of step {self._member_by_method[field].number}: rename one of them"
                )
        roots = [member for member in self._members if not member.declaration.depends_on]
        names = dict.fromkeys([*self._template_fields, *(name for member in roots for name in member.parameters)])
        sources = {
            one: bind_step(one, self._depends_on[one], names, self._member_by_method, self._subject)
            for one in self._members
        }
        each = {one: choose_item_parameter(one, sources[one], self._subject) for one in self._members}
        inputs = collect_inputs(self._members, sources, each, self._template_fields, self._subject)
        known = [one.name for one in inputs]
        conditions = {
            one: bind_condition(one, self._depends_on[one], self._find_ancestors(one), known, self._subject)
            for one in self._members
        }
        nodes: dict[str, Node] = {}
        for member in self._sort_topologically():
            nodes[member.method_name] = self._build_node(
                member, sources[member], each[member], conditions[member], nodes
            )
        in_order = tuple(nodes[member.method_name] for member in self._members)
        return Graph(
            nodes=in_order,
            inputs=tuple(inputs),
            first_nodes=tuple(node for node in in_order if node.predecessor_count == 0),
            final_nodes=tuple(node for node in in_order if not node.dependents),
            index_by_method=self._index_by_method,
        )

    def _build_node(
        self,
        member: Member,
        sources: Sequence[Source],
        each: str | None,
        condition: Condition | None,
        nodes: Mapping[str, Node],
    ) -> Node:
        index_of = self._index_by_method
        bound = {source.step for source in sources}
        # Neither `None` nor a default can replace a list of items.
        sources = [one._replace(if_skipped="skip") if one.parameter == each else one for one in sources]
        unbound = [one.method_name for one in self._depends_on[member] if one.method_name not in bound]
        skips_with = {one.step for one in sources if one.step is not None and one.if_skipped == "skip"} | set(unbound)
        output = member.get_annotation("return")
        return Node(
            index=index_of[member.method_name],
            number=member.number,
            name=member.definition.name,
            step=Step(member.definition),
            sources=tuple(
                (one.parameter, None if one.step is None else index_of[one.step], one.input, one.if_skipped)
                for one in sources
            ),
            unbound_dependencies=tuple(index_of[name] for name in unbound),
            condition=condition,
            each=each,
            max_concurrency=member.declaration.max_concurrency or DEFAULT_MAX_CONCURRENCY,
            predecessor_count=len(self._predecessors[member]),
            dependents=tuple(index_of[one.method_name] for one in self._dependents[member]),
            can_be_skipped=condition is not None or any(nodes[one].can_be_skipped for one in skips_with),
            output_type=output if each is None else to_list_type(output),
        )

    def _resolve_references(self, member: Member, references: Sequence[Reference], option: str) -> list[Member]:
        return list(dict.fromkeys(self._resolve_reference(member, reference, option) for reference in references))

    def _resolve_reference(self, member: Member, reference: Reference, option: str) -> Member:
        by_number = isinstance(reference, int)
        found = self._member_by_number.get(reference) if by_number else self._member_by_method.get(reference)
        if found is None:
            known = ", ".join(map(str, self._members))
            close = difflib.get_close_matches(str(reference), self._member_by_method, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise DefinitionError(
                f"{self._subject}: step {member} has {option}={reference!r}, but there is no such step.{hint} The "
                f"steps are: {known}."
            )
        if found is member:
            raise DefinitionError(
                f"{self._subject}: step {member} has {option}={reference!r}, which is itself: name the step before it, "
                f"or drop {option}="
            )
        return found

    def _check_acyclic(self) -> None:
        done: set[Member] = set()
        for start in self._members:
            path: list[Member] = []
            todo: list[tuple[Member, bool]] = [(start, False)]
            while todo:
                member, is_visited = todo.pop()
                if is_visited:
                    done.add(path.pop())
                elif member in path:
                    cycle = [*path[path.index(member) :], member]
                    raise DefinitionError(
                        f"{self._subject}: its steps wait for each other: {' -> '.join(map(str, cycle))} (each waits "
                        "for the next). Take one of them out of a depends_on= or after=."
                    )
                elif member not in done:
                    path.append(member)
                    todo.append((member, True))
                    todo.extend((one, False) for one in reversed(self._predecessors[member]))

    def _find_ancestors(self, member: Member) -> list[str]:
        """The methods of all steps before one, the nearest first."""
        found: dict[str, None] = {}
        todo = list(self._predecessors[member])
        for ancestor in todo:
            if ancestor.method_name not in found:
                found[ancestor.method_name] = None
                todo.extend(self._predecessors[ancestor])
        return list(found)

    def _sort_topologically(self) -> list[Member]:
        """The steps, each after its predecessors."""
        pending_counts = {member: len(before) for member, before in self._predecessors.items()}
        ordered = [member for member in self._members if not pending_counts[member]]
        for member in ordered:
            for dependent in self._dependents[member]:
                pending_counts[dependent] -= 1
                if not pending_counts[dependent]:
                    ordered.append(dependent)
        return ordered
