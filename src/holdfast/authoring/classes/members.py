"""Reading a workflow class: its numbered methods, and the instance that they run on.

There is one instance in a process, made when the first step needs it. Runs share it, and it is gone with the process:
what a step keeps on it would not be there after a crash. So once it is made, its attributes cannot be set.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from holdfast.authoring.compensation import compensation_of
from holdfast.authoring.introspection import hints_of, place_of
from holdfast.authoring.step import Step, compensation_step, marks_of, plain_step
from holdfast.authoring.step_declaration import Declared
from holdfast.engine.definitions import StepDefinition
from holdfast.errors import DefinitionError, UsageError

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A numbered method, as a step that is tied to the instance."""

    method: str
    definition: StepDefinition
    declared: Declared
    parameters: dict[str, inspect.Parameter]
    """Without ``self``."""
    hints: dict[str, Any]

    @property
    def number(self) -> int:
        """The number it was declared with."""
        return self.declared.number

    def __str__(self) -> str:
        return f"{self.number} ({self.method})"

    def annotation(self, parameter: str) -> Any:
        """What a parameter is declared as; ``inspect.Parameter.empty`` if it is not."""
        return self.hints.get(parameter, inspect.Parameter.empty)

    def has_default(self, parameter: str) -> bool:
        """Whether a parameter can be left out."""
        return self.parameters[parameter].default is not inspect.Parameter.empty


def read_members(cls: type[Any], where: str) -> list[Member]:
    """The numbered steps of a class, by number. Those of its bases count; a method of the same name replaces one."""
    found = _attributes(cls, where)
    instance = Instance(cls, where)
    reader = _Reader(found, instance, where)
    steps: dict[int, Member] = {}
    names: dict[str, Member] = {}
    for method, attribute in found.items():
        if not isinstance(attribute, Step) or attribute.declared is None:
            continue
        member = reader.read(method, cast("Step[..., Any]", attribute))
        if member.number in steps:
            raise DefinitionError(
                f"{where}: two steps have the number {member.number}: {steps[member.number].method!r} and "
                f"{method!r}. Give one of them another, such as {_free(found)}."
            )
        if (other := names.get(member.definition.name)) is not None:
            raise DefinitionError(
                f"{where}: steps {other} and {member} are both named {member.definition.name!r} in the journal: "
                f"give one of them another `name=`"
            )
        steps[member.number] = names[member.definition.name] = member
    reader.refuse_loose_steps()
    if not steps:
        raise DefinitionError(
            f"{where} has no steps. A workflow class is made of numbered methods:\n\n"
            f"    @workflow\n    class {cls.__name__}:\n        @step(1)\n        async def first(self, ...): ...\n"
        )
    return [steps[number] for number in sorted(steps)]


def _attributes(cls: type[Any], where: str) -> dict[str, Any]:
    """What the class and its bases hold, the nearest definition of each name."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        attributes: dict[str, Any] = dict(vars(base))
        for name, attribute in attributes.items():
            kind = type(attribute).__name__
            before = found.get(name)
            if isinstance(before, Step) and before.declared is not None and inspect.isfunction(attribute):
                raise DefinitionError(
                    f"{where}: {name!r} ({place_of(attribute)}) takes the place of step {before.declared.number} of a "
                    f"base class, but is no step: put @step({before.declared.number}) on it"
                )
            if kind in ("staticmethod", "classmethod") and isinstance(attribute.__func__, Step):
                raise DefinitionError(
                    f"{where}: step {name!r} is a {kind}; a step of a class is an ordinary method with `self`: drop "
                    f"@{kind}"
                )
            if inspect.isfunction(attribute) and marks_of(attribute):
                raise DefinitionError(
                    f"{where}: {name!r} ({place_of(attribute)}) has {marks_of(attribute)[0].decorator}, but "
                    f"is no step: put @step(number) on it"
                )
            found[name] = attribute
    return found


def _free(found: dict[str, Any]) -> int:
    return 1 + max(step.declared.number for step in found.values() if isinstance(step, Step) and step.declared)


class _Reader:
    """Ties the methods of a class to its instance."""

    def __init__(self, found: dict[str, Any], instance: Instance, where: str) -> None:
        self._found = found
        self._instance = instance
        self._where = where
        self._compensations: set[str] = set()

    def read(self, method: str, step: Step[..., Any]) -> Member:
        assert step.declared is not None
        where = f"{self._where}: step {step.declared.number} ({method})"
        name = method if step.name == getattr(step.definition.function, "__name__", None) else step.name
        definition = replace(self._tied(step.definition, where), name=name)
        parameters = dict(inspect.signature(definition.function).parameters)
        for parameter in parameters.values():
            if parameter.kind not in _BY_NAME:
                raise DefinitionError(
                    f"{where} has the parameter `{parameter}`; its arguments are given by name, so it takes only "
                    f"ordinary parameters: name what it needs"
                )
        if step.declared.compensate is not None:
            undo = self._compensation(step.declared.compensate, where)
            definition = replace(definition, compensation=compensation_of(definition, undo, where))
        return Member(method, definition, step.declared, parameters, hints_of(definition.function))

    def refuse_loose_steps(self) -> None:
        """A method with ``@step`` and no number is a mistake, unless it undoes another."""
        for method, attribute in self._found.items():
            if (
                isinstance(attribute, Step)
                and attribute.declared is None
                and attribute.definition.parameters[:1] == ("self",)
                and method not in self._compensations
            ):
                raise DefinitionError(
                    f"{self._where}: step {method!r} has no number, so nothing would ever run it: write "
                    f"@step({_free(self._found) if self._has_numbers() else 1}), or drop @step if it is a helper"
                )

    def _has_numbers(self) -> bool:
        return any(isinstance(one, Step) and one.declared is not None for one in self._found.values())

    def _tied(self, definition: StepDefinition, where: str) -> StepDefinition:
        if not definition.parameters:
            raise DefinitionError(f"{where} takes no `self`: write `def {definition.function.__name__}(self)`")
        function = self._instance.method(definition.function)
        return replace(definition, function=function, parameters=definition.parameters[1:])

    def _compensation(self, given: Any, where: str) -> StepDefinition:
        """What ``compensate=`` names: a method of the class, by its name or as it is, or a function of the module."""
        if isinstance(given, str):
            method = given
            if method not in self._found or not callable(self._found[method]):
                known = ", ".join(name for name, one in self._found.items() if _may_undo(name, one)) or "none"
                raise DefinitionError(
                    f"{where}: compensate={given!r} names no method of the class (there are: {known})"
                )
            given = self._found[method]
        else:
            # The class body's own names are there when `compensate=` is written: a method comes as the function it is.
            method = next((name for name, one in self._found.items() if one is given), "")
        if not method:
            return compensation_step(given, where)
        if isinstance(given, Step) and given.declared is not None:
            raise DefinitionError(
                f"{where}: its compensation {method!r} is step {given.declared.number} of the graph, which runs "
                f"anyway: drop its number"
            )
        self._compensations.add(method)
        definition: StepDefinition = given.definition if isinstance(given, Step) else plain_step(given)
        return self._tied(definition, f"{where}: its compensation {method!r}")


def _may_undo(name: str, attribute: Any) -> bool:
    is_numbered = isinstance(attribute, Step) and attribute.declared is not None
    return (
        not name.startswith("__") and not is_numbered and (isinstance(attribute, Step) or inspect.isfunction(attribute))
    )


class Instance:
    """The one object of the class in this process, and its methods as functions without ``self``."""

    def __init__(self, cls: type[Any], where: str) -> None:
        try:
            inspect.signature(cls).bind()
        except TypeError as error:
            raise DefinitionError(
                f"{where}: `{cls.__name__}()` does not work ({error}). Its instance is made by Holdfast, without "
                f"arguments: give those of `__init__` defaults, and make what belongs to a run an input of a step."
            ) from None
        except ValueError:
            pass  # a class without a signature takes what it takes
        self._cls = cls
        self._made: Any = None
        self._making = threading.Lock()
        self._seal()

    def get(self) -> Any:
        """The instance, made when it is first asked for."""
        if self._made is None:
            with self._making:  # plain steps run in threads
                if self._made is None:
                    self._made = self._cls()
        return self._made

    def method(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A method as a function without ``self``."""

        @functools.wraps(function)
        def tied(*args: Any, **kwargs: Any) -> Any:
            return function(self.get(), *args, **kwargs)

        signature = inspect.signature(function)
        tied.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
        return tied

    def _seal(self) -> None:
        cls: Any = self._cls
        set_attribute, delete_attribute = cls.__setattr__, cls.__delattr__

        def __setattr__(instance: Any, name: str, value: Any) -> None:
            self._refuse(instance, name)
            set_attribute(instance, name, value)

        def __delattr__(instance: Any, name: str) -> None:
            self._refuse(instance, name)
            delete_attribute(instance, name)

        cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__

    def _refuse(self, instance: Any, name: str) -> None:
        if instance is self._made:
            raise UsageError(
                f"a step of workflow class {self._cls.__name__!r} changes `self.{name}`. What is kept on self is not "
                f"recorded, and would be gone after a crash: return it, and take it as a parameter where it is needed. "
                f"`__init__` may set what is the same for all runs, such as a client."
            )
