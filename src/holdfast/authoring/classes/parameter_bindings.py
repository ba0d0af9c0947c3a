"""Where each parameter of a step gets its value from.

Inputs are the parameters of steps without ``depends_on``, and the fields of the templates. For a step with
dependencies, by one rule after the other: (1) a parameter named like a dependency's method takes its output; (2) one
named like an input takes the input; (3) if exactly one dependency is left, the first parameter that is left takes its
output; (4) whatever is left is a further input, which may stay at its default. Two or more dependencies that are left
are a mistake, and so is a name that could mean two things.

All of it is decided when the class is defined, from names alone.
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
    """The method whose output it takes; ``None``: the input ``input``."""
    input: str = ""
    if_skipped: IfSkipped = "skip"
    """What happens when that step was skipped: it takes ``None``, stays at its default, or its own step is skipped."""


class Condition(NamedTuple):
    """A ``when=`` with what it is called with."""

    function: Callable[..., Any]
    positional: tuple[Source, ...]
    named: tuple[Source, ...]


def bind_step(
    member: Member, dependencies: Sequence[Member], inputs: Collection[str], steps: Mapping[str, Member], where: str
) -> list[Source]:
    """The source of every parameter of one step."""
    of_method = {one.method: one for one in dependencies}
    taken: dict[str, str | None] = {}
    for name in member.parameters:
        if name in of_method:
            taken[name] = name
        elif name in steps:
            raise DefinitionError(_names_a_stranger(member, name, steps[name], where))
        elif name in inputs:
            taken[name] = None
    left = [one for one in dependencies if one.method not in taken]
    free = [name for name in member.parameters if name not in taken]
    if len(left) > 1:
        raise DefinitionError(_too_many_left(member, left, where))
    if left and free:
        taken[free[0]] = left[0].method
    return [_source(member, name, taken.get(name)) for name in member.parameters]


def _source(member: Member, parameter: str, step: str | None) -> Source:
    if step is None:
        return Source(parameter, None, parameter)
    if_skipped: IfSkipped = "skip"
    if allows_none(member.annotation(parameter)):
        if_skipped = "none"
    elif member.has_default(parameter):
        if_skipped = "default"
    return Source(parameter, step, if_skipped=if_skipped)


def _names_a_stranger(member: Member, name: str, other: Member, where: str) -> str:
    if not member.declared.depends_on or other is member:
        return (
            f"{where}: {name!r} is both an input, of step {member}, and the method of step {other.number}. Rename the "
            f"parameter, or write depends_on={other.number} if it is to take that step's output."
        )
    return (
        f"{where}: the parameter {name!r} of step {member} is named like step {other}, which it does not depend on. "
        f"Add {other.number} to its depends_on to take that output, or rename the parameter."
    )


def _too_many_left(member: Member, left: Sequence[Member], where: str) -> str:
    names = [one.method for one in left]
    call = f"def {member.method}(self, {', '.join(names)})"
    return (
        f"{where}: step {member} depends on {_listed(left)}, and it is not clear which of its parameters take their "
        f"outputs. Name the parameters like the methods, `{call}`; a step that must only come before is named with "
        f"`after=`."
    )


def choose_each(member: Member, sources: Sequence[Source], where: str) -> str | None:
    """The parameter of a fan-out that takes the items; ``None`` for any other step."""
    declared = member.declared
    if not declared.is_fan_out:
        return None
    known = ", ".join(member.parameters) or "none"
    each = declared.each
    if each is None:
        bound = [source.parameter for source in sources if source.step is not None]
        if len(declared.depends_on) != 1 or len(bound) != 1:
            raise DefinitionError(
                f"{where}: step {member} has @parallel, and it is not clear which of its parameters ({known}) takes "
                f"the items one by one: name it with each=, as in "
                f"@step({member.number}, each={next(iter(member.parameters), 'item')!r})"
            )
        each = bound[0]
    elif each not in member.parameters:
        raise DefinitionError(
            f"{where}: each={each!r} names no parameter of step {member}; its parameters are: {known}"
        )
    if member.has_default(each):
        raise DefinitionError(
            f"{where}: the parameter {each!r} of step {member} takes the items of a list one by one, so it cannot have "
            f"a default: drop it"
        )
    return each


def bind_condition(
    member: Member, dependencies: Sequence[Member], ancestors: Collection[str], inputs: Collection[str], where: str
) -> Condition | None:
    """What the ``when=`` of a step is called with."""
    when = member.declared.when
    if when is None:
        return None
    label = f"{where}: the when= of step {member}"
    if isinstance(when, Step):
        raise DefinitionError(f"{label} is a step. It is workflow code: pass a plain function of recorded values.")
    if is_async(when) or inspect.isasyncgenfunction(when):
        raise DefinitionError(
            f"{label} is async. It only decides, from what is recorded already: make it a plain function, and do what "
            f"needs waiting in a step before."
        )
    parameters = _parameters_of(when)
    if parameters and parameters[0].name == "self":
        raise DefinitionError(f"{label} takes `self`. It is a plain function of earlier outputs and inputs: drop it.")
    taken: dict[str, Source] = {}
    left: list[inspect.Parameter] = []
    for parameter in parameters:
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise DefinitionError(f"{label} has the parameter `{parameter}`: name what it needs")
        if parameter.name in ancestors:
            taken[parameter.name] = Source(parameter.name, parameter.name, if_skipped="none")
        elif parameter.name in inputs:
            taken[parameter.name] = Source(parameter.name, None, parameter.name)
        else:
            left.append(parameter)
    # As for steps, also one with a default: that of `bool` has one.
    if len(left) > 1:
        left = [parameter for parameter in left if parameter.default is inspect.Parameter.empty]
    if len(left) == 1 and len(dependencies) == 1 and dependencies[0].method not in taken:
        only = left.pop()
        taken[only.name] = Source(only.name, dependencies[0].method, if_skipped="none")
    left = [parameter for parameter in left if parameter.default is inspect.Parameter.empty]
    if left:
        known = ", ".join([*ancestors, *inputs]) or "none"
        raise DefinitionError(
            f"{label} takes {', '.join(repr(parameter.name) for parameter in left)}, which is neither a step before it "
            f"nor an input (there are: {known})"
        )
    bound = [parameter for parameter in parameters if parameter.name in taken]
    by_place = [one for one in bound if one.kind is inspect.Parameter.POSITIONAL_ONLY]
    by_name = [one for one in bound if one.kind is not inspect.Parameter.POSITIONAL_ONLY]
    return Condition(when, tuple(taken[one.name] for one in by_place), tuple(taken[one.name] for one in by_name))


def _parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # `bool`, and others that are written in C
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]


class Input(NamedTuple):
    """An input of the workflow, with all that its steps say of it."""

    name: str
    annotation: Any
    default: Any


def collect_inputs(
    members: Sequence[Member],
    sources: Mapping[str, Sequence[Source]],
    each: Mapping[str, str | None],
    fields: Sequence[str],
    where: str,
) -> list[Input]:
    """The inputs, in the order in which the templates and then the steps name them."""
    users: dict[str, list[Member]] = {field: [] for field in fields}
    for member in members:
        for source in sources[member.method]:
            if source.step is None:
                users.setdefault(source.input, []).append(member)
    for member in members:
        for source in sources[member.method]:
            if source.step is not None and source.parameter != source.step and source.parameter in users:
                taker = users[source.parameter][0]
                raise DefinitionError(
                    f"{where}: {source.parameter!r} is an input of step {taker}, but in step {member} it would take "
                    f"the output of {source.step!r}. Name it {source.step!r} there, or rename the input."
                )
    return [_input(name, takers, each, where) for name, takers in users.items()]


def _input(name: str, takers: Sequence[Member], each: Mapping[str, str | None], where: str) -> Input:
    annotation: Any = inspect.Parameter.empty
    by: Member | None = None
    for member in takers:
        declared = member.annotation(name)
        if each[member.method] == name:
            declared = list_of(declared)
        if declared is inspect.Parameter.empty or declared is Any:
            continue
        if by is not None and declared != annotation:
            raise DefinitionError(
                f"{where}: the input {name!r} is declared as `{_shown(annotation)}` by step {by} and as "
                f"`{_shown(declared)}` by step {member}: make them the same, or rename one of them"
            )
        annotation, by = declared, by or member
    default: Any = inspect.Parameter.empty
    if takers and all(member.has_default(name) for member in takers):
        default = takers[0].parameters[name].default
    return Input(name, annotation, default)


def list_of(annotation: Any) -> Any:
    """The annotation of a list of such values."""
    return list[Any] if annotation is inspect.Parameter.empty else list[annotation]


def allows_none(annotation: Any) -> bool:
    """Whether a parameter that is declared so may be ``None``."""
    if annotation is None or annotation is NoneType or annotation is Any or annotation is object:
        return True
    if hasattr(annotation, "__value__"):  # ``type Name = ...``
        return allows_none(annotation.__value__)
    origin = get_origin(annotation)
    if origin is Annotated:
        return allows_none(get_args(annotation)[0])
    if origin is Literal:
        return None in get_args(annotation)
    return (origin is Union or origin is UnionType) and any(map(allows_none, get_args(annotation)))


def _listed(members: Sequence[Member]) -> str:
    words = [str(member) for member in members]
    return f"steps {', '.join(words[:-1])} and {words[-1]}"


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
