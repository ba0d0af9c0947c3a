"""Where each parameter of a step gets its value from.

Inputs are the parameters of steps without ``depends_on``, and the fields of the templates. The parameters of a step
with dependencies are bound by these rules, in this order: (1) a parameter named like a dependency's method takes its
output; (2) one named like an input takes the input; (3) if exactly one dependency is left, the first remaining
parameter takes its output; (4) every other parameter is a further input, which may have a default. Two or more
remaining dependencies are an error, and so is a name with two meanings.

All of this is decided when the class is defined, from names alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from holdfast.authoring.classes.members import Member
from holdfast.authoring.introspection import is_async
from holdfast.authoring.step import Step
from holdfast.errors import DefinitionError

IfSkipped = Literal["none", "default", "skip"]


class Source(NamedTuple):
    """Where a parameter gets its value from: the output of a step, or an input."""

    parameter: str
    step: str | None
    """The method with the output that it takes; ``None``: it takes the input ``input``."""
    input: str = ""
    if_skipped: IfSkipped = "skip"
    """What happens if that step was skipped: take ``None``, take the default, or skip this step, too."""


class Condition(NamedTuple):
    """A ``when=`` function, with the sources of its arguments."""

    function: Callable[..., Any]
    positional: tuple[Source, ...]
    named: tuple[Source, ...]


def bind_step(
    member: Member, dependencies: Sequence[Member], inputs: Collection[str], steps: Mapping[str, Member], subject: str
) -> list[Source]:
    """The source of every parameter of one step."""
    methods = {one.method_name for one in dependencies}
    bound: dict[str, str | None] = {}
    for name in member.parameters:
        if name in methods:
            bound[name] = name
        elif name in steps:
            raise DefinitionError(_describe_undeclared_dependency(member, name, steps[name], subject))
        elif name in inputs:
            bound[name] = None
    unbound = [one for one in dependencies if one.method_name not in bound]
    free = [name for name in member.parameters if name not in bound]
    if len(unbound) > 1:
        raise DefinitionError(_describe_ambiguous_outputs(member, unbound, subject))
    if unbound and free:
        bound[free[0]] = unbound[0].method_name
    return [_make_source(member, name, bound.get(name)) for name in member.parameters]


def _make_source(member: Member, parameter: str, step: str | None) -> Source:
    if step is None:
        return Source(parameter, None, parameter)
    if_skipped: IfSkipped = "skip"
    if can_be_none(member.get_annotation(parameter)):
        if_skipped = "none"
    elif member.has_default(parameter):
        if_skipped = "default"
    return Source(parameter, step, if_skipped=if_skipped)


def _describe_undeclared_dependency(member: Member, name: str, other: Member, subject: str) -> str:
    if not member.declaration.depends_on or other is member:
        return (
            f"{subject}: {name!r} is both an input, of step {member}, and the method of step {other.number}. Rename "
            f"the parameter, or write depends_on={other.number} if it is to take that step's output."
        )
    return (
        f"{subject}: the parameter {name!r} of step {member} is named like step {other}, which it does not depend on. "
        f"Add {other.number} to its depends_on to take that output, or rename the parameter."
    )


def _describe_ambiguous_outputs(member: Member, unbound: Sequence[Member], subject: str) -> str:
    names = [one.method_name for one in unbound]
    call = f"def {member.method_name}(self, {', '.join(names)})"
    return (
        f"{subject}: step {member} depends on {_format_steps(unbound)}, and it is not clear which of its parameters "
        f"take their outputs. Name the parameters like the methods, `{call}`; a step that must only come before is "
        "named with `after=`."
    )


def choose_item_parameter(member: Member, sources: Sequence[Source], subject: str) -> str | None:
    """The parameter of a fan-out that takes the items; ``None`` for any other step."""
    declared = member.declaration
    if not declared.is_fan_out:
        return None
    known = ", ".join(member.parameters) or "none"
    each = declared.each
    if each is None:
        bound = [source.parameter for source in sources if source.step is not None]
        if len(declared.depends_on) != 1 or len(bound) != 1:
            raise DefinitionError(
                f"{subject}: step {member} has @parallel, and it is not clear which of its parameters ({known}) takes "
                f"the items one by one: name it with each=, as in "
                f"@step({member.number}, each={next(iter(member.parameters), 'item')!r})"
            )
        each = bound[0]
    elif each not in member.parameters:
        raise DefinitionError(
            f"{subject}: each={each!r} names no parameter of step {member}; its parameters are: {known}"
        )
    if member.has_default(each):
        raise DefinitionError(
            f"{subject}: the parameter {each!r} of step {member} takes the items of a list one by one, so it cannot "
            "have a default: drop it"
        )
    return each


def bind_condition(
    member: Member, dependencies: Sequence[Member], ancestors: Collection[str], inputs: Collection[str], subject: str
) -> Condition | None:
    """The ``when=`` of a step, with the sources of its arguments; ``None``: it has none."""
    when = member.declaration.when
    if when is None:
        return None
    label = f"{subject}: the when= of step {member}"
    if isinstance(when, Step):
        raise DefinitionError(f"{label} is a step. It is workflow code: pass a plain function of recorded values.")
    if is_async(when) or inspect.isasyncgenfunction(when):
        raise DefinitionError(
            f"{label} is async. It only decides, from what is recorded already: make it a plain function, and do what "
            f"needs waiting in a step before."
        )
    parameters = _get_parameters(when)
    if parameters and parameters[0].name == "self":
        raise DefinitionError(f"{label} takes `self`. It is a plain function of earlier outputs and inputs: drop it.")
    bound: dict[str, Source] = {}
    unbound: list[inspect.Parameter] = []
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise DefinitionError(f"{label} has the parameter `{parameter}`: name what it needs")
        if parameter.name in ancestors:
            bound[parameter.name] = Source(parameter.name, parameter.name, if_skipped="none")
        elif parameter.name in inputs:
            bound[parameter.name] = Source(parameter.name, None, parameter.name)
        else:
            unbound.append(parameter)
    required = [parameter for parameter in unbound if parameter.default is inspect.Parameter.empty]
    # As for steps, the only parameter may have a default: that of `bool` does.
    candidates = unbound if len(unbound) == 1 else required
    if len(candidates) == 1 and len(dependencies) == 1 and dependencies[0].method_name not in bound:
        name = candidates[0].name
        bound[name] = Source(name, dependencies[0].method_name, if_skipped="none")
    missing = [parameter.name for parameter in required if parameter.name not in bound]
    if missing:
        known = ", ".join([*ancestors, *inputs]) or "none"
        raise DefinitionError(
            f"{label} takes {', '.join(map(repr, missing))}, which is neither a step before it nor an input (there "
            f"are: {known})"
        )
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY and one.name in bound]
    named = [one.name for one in parameters if one.kind is not one.POSITIONAL_ONLY and one.name in bound]
    return Condition(when, tuple(bound[name] for name in positional), tuple(bound[name] for name in named))


def _get_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # `bool`, and others that are written in C
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]


class Input(NamedTuple):
    """An input of the workflow, as its steps declare it."""

    name: str
    annotation: Any
    default: Any


def collect_inputs(
    members: Sequence[Member],
    sources: Mapping[Member, Sequence[Source]],
    each: Mapping[Member, str | None],
    template_fields: Sequence[str],
    subject: str,
) -> list[Input]:
    """The inputs, in the order in which the templates and then the steps name them."""
    users: dict[str, list[Member]] = {field: [] for field in template_fields}
    for member in members:
        for source in sources[member]:
            if source.step is None:
                users.setdefault(source.input, []).append(member)
    for member in members:
        for source in sources[member]:
            if source.step is not None and source.parameter != source.step and source.parameter in users:
                user = users[source.parameter][0]
                raise DefinitionError(
                    f"{subject}: {source.parameter!r} is an input of step {user}, but in step {member} it would take "
                    f"the output of {source.step!r}. Name it {source.step!r} there, or rename the input."
                )
    return [_make_input(name, consumers, each, subject) for name, consumers in users.items()]


def _make_input(name: str, consumers: Sequence[Member], each: Mapping[Member, str | None], subject: str) -> Input:
    annotation: Any = inspect.Parameter.empty
    by: Member | None = None
    for member in consumers:
        declared = member.get_annotation(name)
        if each[member] == name:
            declared = to_list_type(declared)
        if declared is inspect.Parameter.empty or declared is Any:
            continue
        if by is not None and declared != annotation:
            raise DefinitionError(
                f"{subject}: the input {name!r} is declared as `{_format_annotation(annotation)}` by step {by} and as "
                f"`{_format_annotation(declared)}` by step {member}: make them the same, or rename one of them"
            )
        annotation, by = declared, by or member
    default: Any = inspect.Parameter.empty
    if consumers and all(member.has_default(name) for member in consumers):
        default = consumers[0].parameters[name].default
    return Input(name, annotation, default)


def to_list_type(annotation: Any) -> Any:
    """The annotation of a list of such values."""
    return list[Any] if annotation is inspect.Parameter.empty else list[annotation]


def can_be_none(annotation: Any) -> bool:
    """Whether a parameter with this annotation may be ``None``."""
    if annotation is None or annotation is NoneType or annotation is Any or annotation is object:
        return True
    if hasattr(annotation, "__value__"):  # ``type Name = ...``
        return can_be_none(annotation.__value__)
    origin = get_origin(annotation)
    if origin is Annotated:
        return can_be_none(get_args(annotation)[0])
    if origin is Literal:
        return None in get_args(annotation)
    return (origin is Union or origin is UnionType) and any(map(can_be_none, get_args(annotation)))


def _format_steps(members: Sequence[Member]) -> str:
    words = [str(member) for member in members]
    return f"steps {', '.join(words[:-1])} and {words[-1]}"


def _format_annotation(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
