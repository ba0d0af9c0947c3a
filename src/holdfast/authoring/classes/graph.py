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
    choose_each,
    collect_inputs,
    list_of,
)
from holdfast.authoring.parallel import MAX_CONCURRENCY
from holdfast.authoring.step import Step
from holdfast.authoring.step_declaration import Reference
from holdfast.errors import DefinitionError

if sys.version_info >= (3, 12):
    from typing import TypedDict
else:  # pydantic reads the older ones only in this form
    from typing_extensions import TypedDict


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A step in its place in the graph. Steps refer to each other by index, which is their order by number."""

    index: int
    number: int
    name: str
    """What the journal calls it."""
    step: Step[..., Any]
    sources: tuple[tuple[str, int | None, str, str], ...]
    """For each parameter: its name, the index of the step whose output it takes or else the input, if skipped."""
    silent: tuple[int, ...]
    """Dependencies whose output no parameter takes; when one of them was skipped, this step is, too."""
    condition: Condition | None
    each: str | None
    max_concurrency: int
    waits_for: int
    """How many steps must have ended before it."""
    dependents: tuple[int, ...]
    """Steps that wait for this one."""
    may_be_skipped: bool
    output: Any
    """The annotation of its output as others see it: that of a fan-out is a list."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """All that is known of a class workflow."""

    nodes: tuple[Node, ...]
    inputs: tuple[Input, ...]
    first: tuple[Node, ...]
    """Steps that wait for nothing."""
    final: tuple[Node, ...]
    """Steps that nothing waits for: their outputs are the result."""
    of_method: Mapping[str, int]
    """The index of each step, by the name of its method."""

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers of the steps, by what the journal calls them."""
        return {node.name: node.number for node in self.nodes}

    def signature(self) -> tuple[Signature, dict[str, Any]]:
        """The inputs as keyword arguments, and their annotations."""
        parameters = [
            Parameter(one.name, Parameter.KEYWORD_ONLY, default=one.default, annotation=one.annotation)
            for one in self.inputs
        ]
        hints = {one.name: one.annotation for one in self.inputs if one.annotation is not Parameter.empty}
        return Signature(parameters), hints

    def result(self, name: str) -> Any:
        """The annotation of the result: the output of the only final step, or a dict with those of all."""
        if len(self.final) == 1:
            node = self.final[0]
            if node.may_be_skipped and node.output is not Parameter.empty:
                return Optional[node.output]  # noqa: UP045 - `|` does not take every annotation
            return node.output
        if all(node.output is Parameter.empty for node in self.final):
            return dict[str, Any]
        fields: dict[str, Any] = {}
        for node in self.final:
            output = Any if node.output is Parameter.empty else node.output
            fields[node.name] = NotRequired[output] if node.may_be_skipped else output
        make: Any = TypedDict
        return make(f"{name}Result", fields)


def fan_outs_of(function: Callable[..., Any]) -> set[str]:
    """What the journal calls the fan-outs of a workflow; none, unless this function runs a class workflow."""
    graph: Graph | None = getattr(function, "holdfast_graph", None)
    return set() if graph is None else {node.name for node in graph.nodes if node.each is not None}


def conditions_of(function: Callable[..., Any]) -> list[Callable[..., Any]] | None:
    """The ``when=`` functions of a workflow; ``None``, unless this function runs a class workflow."""
    graph: Graph | None = getattr(function, "holdfast_graph", None)
    return None if graph is None else [node.condition.function for node in graph.nodes if node.condition is not None]


def build_graph(members: Sequence[Member], fields: Sequence[str], where: str) -> Graph:
    """Wire the steps of a class; every mistake in the wiring is told here."""
    return _Builder(members, fields, where).build()


class _Builder:
    def __init__(self, members: Sequence[Member], fields: Sequence[str], where: str) -> None:
        self._members = members
        self._fields = tuple(dict.fromkeys(fields))
        self._where = where
        self._steps = {member.method: member for member in members}
        self._numbers = {member.number: member for member in members}
        self._index = {member.method: index for index, member in enumerate(members)}
        self._depends_on = {one.method: self._resolve(one, one.declared.depends_on, "depends_on") for one in members}
        self._before = {
            one.method: list(
                dict.fromkeys([*self._depends_on[one.method], *self._resolve(one, one.declared.after, "after")])
            )
            for one in members
        }
        """All that must have ended before a step."""
        self._after: dict[str, list[Member]] = {member.method: [] for member in members}
        """All that waits for a step."""
        for member in members:
            for before in self._before[member.method]:
                self._after[before.method].append(member)

    def build(self) -> Graph:
        self._refuse_cycles()
        for field in self._fields:
            if keyword.iskeyword(field):
                raise DefinitionError(
                    f"{self._where}: the field {field!r} of a template is a word of Python's own: rename it"
                )
            if field in self._steps:
                raise DefinitionError(
                    f"{self._where}: {field!r} is both a field of a template (id= or a queue's key=), and so an input, "
                    f"and the method of step {self._steps[field].number}: rename one of them"
                )
        roots = [member for member in self._members if not member.declared.depends_on]
        names = dict.fromkeys([*self._fields, *(name for member in roots for name in member.parameters)])
        sources = {
            one.method: bind_step(one, self._depends_on[one.method], names, self._steps, self._where)
            for one in self._members
        }
        each = {one.method: choose_each(one, sources[one.method], self._where) for one in self._members}
        inputs = collect_inputs(self._members, sources, each, self._fields, self._where)
        known = [one.name for one in inputs]
        conditions = {
            one.method: bind_condition(
                one, self._depends_on[one.method], self._ancestors(one.method), known, self._where
            )
            for one in self._members
            if one.declared.when is not None
        }
        nodes: dict[str, Node] = {}
        for member in self._in_order():
            nodes[member.method] = self._node(
                member, sources[member.method], each[member.method], conditions.get(member.method), nodes
            )
        in_order = tuple(nodes[member.method] for member in self._members)
        return Graph(
            nodes=in_order,
            inputs=tuple(inputs),
            first=tuple(node for node in in_order if node.waits_for == 0),
            final=tuple(node for node in in_order if not node.dependents),
            of_method=self._index,
        )

    def _node(
        self,
        member: Member,
        sources: Sequence[Source],
        each: str | None,
        condition: Condition | None,
        nodes: Mapping[str, Node],
    ) -> Node:
        dependencies = [one.method for one in self._depends_on[member.method]]
        taken = {source.step for source in sources}
        # `None` is no list of items, and a default is none either.
        sources = [one._replace(if_skipped="skip") if one.parameter == each else one for one in sources]
        silent = [one for one in dependencies if one not in taken]
        skips_with = {one.step for one in sources if one.step is not None and one.if_skipped == "skip"} | set(silent)
        output = member.annotation("return")
        return Node(
            index=self._index[member.method],
            number=member.number,
            name=member.definition.name,
            step=Step(member.definition),
            sources=tuple(
                (one.parameter, None if one.step is None else self._index[one.step], one.input, one.if_skipped)
                for one in sources
            ),
            silent=tuple(self._index[one] for one in silent),
            condition=condition,
            each=each,
            max_concurrency=member.declared.max_concurrency or MAX_CONCURRENCY,
            waits_for=len(self._before[member.method]),
            dependents=tuple(self._index[one.method] for one in self._after[member.method]),
            may_be_skipped=condition is not None or any(nodes[one].may_be_skipped for one in skips_with),
            output=output if each is None else list_of(output),
        )

    # Which step is meant

    def _resolve(self, member: Member, references: Sequence[Reference], option: str) -> list[Member]:
        found = [self._one(member, reference, option) for reference in references]
        return list({one.method: one for one in found}.values())

    def _one(self, member: Member, reference: Reference, option: str) -> Member:
        found = self._numbers.get(reference) if isinstance(reference, int) else self._steps.get(reference)
        if found is None:
            known = ", ".join(map(str, self._members))
            close = difflib.get_close_matches(str(reference), self._steps, 1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise DefinitionError(
                f"{self._where}: step {member} has {option}={reference!r}, but there is no such step.{hint} The steps "
                f"are: {known}."
            )
        if found is member:
            raise DefinitionError(
                f"{self._where}: step {member} has {option}={reference!r}, which is itself: name the step before it, "
                f"or drop {option}="
            )
        return found

    def _refuse_cycles(self) -> None:
        done: set[str] = set()
        for start in self._members:
            way: dict[str, Member] = {}
            todo: list[tuple[Member, bool]] = [(start, False)]
            while todo:
                member, is_over = todo.pop()
                if is_over:
                    done.add(way.popitem()[0])
                elif member.method in way:
                    on_the_way = list(way.values())
                    cycle = [*on_the_way[on_the_way.index(member) :], member]
                    raise DefinitionError(
                        f"{self._where}: its steps wait for each other: {' -> '.join(map(str, cycle))} (each waits for "
                        f"the next). Take one of them out of a depends_on= or after=."
                    )
                elif member.method not in done:
                    way[member.method] = member
                    todo.append((member, True))
                    todo.extend((one, False) for one in reversed(self._before[member.method]))

    def _ancestors(self, method: str) -> list[str]:
        """All steps before one, the nearest first."""
        found: dict[str, None] = {}
        todo = [one.method for one in self._before[method]]
        for one in todo:
            if one not in found:
                found[one] = None
                todo.extend(before.method for before in self._before[one])
        return list(found)

    def _in_order(self) -> list[Member]:
        """The steps, each after all that it waits for."""
        missing = {method: len(before) for method, before in self._before.items()}
        ordered = [member for member in self._members if not missing[member.method]]
        for member in ordered:
            for after in self._after[member.method]:
                missing[after.method] -= 1
                if not missing[after.method]:
                    ordered.append(after)
        return ordered
