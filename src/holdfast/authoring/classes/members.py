"""The numbered methods of a workflow class, and the instance that they run on.

There is one instance in a process, created when the first step needs it. Runs share it, and it is lost with the
process: an attribute that a step sets would be missing after a crash. So its attributes cannot be set after
``__init__``.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from holdfast.authoring.compensation import make_compensation
from holdfast.authoring.introspection import format_location, resolve_hints
from holdfast.authoring.step import Step, define_step, get_modifiers, resolve_compensation
from holdfast.authoring.step_declaration import StepDeclaration
from holdfast.engine.definitions import StepDefinition
from holdfast.errors import DefinitionError, UsageError

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A numbered method, as a step that is bound to the instance."""

    method_name: str
    definition: StepDefinition
    declaration: StepDeclaration
    parameters: dict[str, inspect.Parameter]
    """Without ``self``."""
    hints: dict[str, Any]

    @property
    def number(self) -> int:
        """The number it was declared with."""
        return self.declaration.number

    def __str__(self) -> str:
        return f"{self.number} ({self.method_name})"

    def get_annotation(self, parameter: str) -> Any:
        """The annotation of a parameter; ``inspect.Parameter.empty`` if it has none."""
        return self.hints.get(parameter, inspect.Parameter.empty)

    def has_default(self, parameter: str) -> bool:
        """Whether a parameter can be left out."""
        return self.parameters[parameter].default is not inspect.Parameter.empty


def read_members(cls: type[Any], subject: str) -> list[Member]:
    """The numbered steps of a class, in the order of their numbers. It inherits those of its bases."""
    found = _collect_attributes(cls, subject)
    instance = SharedInstance(cls, subject)
    reader = _MemberReader(found, instance, subject)
    steps: dict[int, Member] = {}
    names: dict[str, Member] = {}
    for method, attribute in found.items():
        if not isinstance(attribute, Step) or attribute.declaration is None:
            continue
        member = reader.read(method, cast("Step[..., Any]", attribute))
        if member.number in steps:
            raise DefinitionError(
                f"{subject}: two steps have the number {member.number}: {steps[member.number].method_name!r} and "
                f"{method!r}. Give one of them another, such as {_find_free_number(found)}."
            )
        if (other := names.get(member.definition.name)) is not None:
            raise DefinitionError(
                f"{subject}: steps {other} and {member} are both named {member.definition.name!r} in the journal: "
                f"give one of them another `name=`"
            )
        steps[member.number] = names[member.definition.name] = member
    reader.check_unnumbered_steps()
    if not steps:
        raise DefinitionError(
            f"{subject} has no steps. A workflow class is made of numbered methods:\n\n"
            f"    @workflow\n    class {cls.__name__}:\n        @step(1)\n        async def first(self, ...): ...\n"
        )
    return [steps[number] for number in sorted(steps)]


def _collect_attributes(cls: type[Any], subject: str) -> dict[str, Any]:
    """The attributes of the class and its bases."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        attributes: dict[str, Any] = dict(vars(base))
        for name, attribute in attributes.items():
            kind = type(attribute).__name__
            before = found.get(name)
            if isinstance(before, Step) and before.declaration is not None and inspect.isfunction(attribute):
                raise DefinitionError(
                    f"{subject}: {name!r} ({format_location(attribute)}) takes the place of step "
                    f"{before.declaration.number} of a "
                    f"base class, but is no step: put @step({before.declaration.number}) on it"
                )
            if kind in ("staticmethod", "classmethod") and isinstance(attribute.__func__, Step):
                raise DefinitionError(
                    f"{subject}: step {name!r} is a {kind}; a step of a class is an ordinary method with `self`: drop "
                    f"@{kind}"
                )
            if inspect.isfunction(attribute) and get_modifiers(attribute):
                raise DefinitionError(
                    f"{subject}: {name!r} ({format_location(attribute)}) has "
                    f"{get_modifiers(attribute)[0].decorator_name}, but is no step: put @step(number) on it"
                )
            found[name] = attribute
    return found


def _find_free_number(attributes: dict[str, Any]) -> int:
    return 1 + max(
        step.declaration.number for step in attributes.values() if isinstance(step, Step) and step.declaration
    )


class _MemberReader:
    """Binds the methods of a class to its instance."""

    def __init__(self, attributes: dict[str, Any], instance: SharedInstance, subject: str) -> None:
        self._attributes = attributes
        self._instance = instance
        self._subject = subject
        self._compensation_methods: set[str] = set()

    def read(self, method: str, step: Step[..., Any]) -> Member:
        assert step.declaration is not None
        where = f"{self._subject}: step {step.declaration.number} ({method})"
        name = method if step.name == getattr(step.definition.function, "__name__", None) else step.name
        definition = replace(self._bind_to_instance(step.definition, where), name=name)
        parameters = dict(inspect.signature(definition.function).parameters)
        for parameter in parameters.values():
            if parameter.kind not in _KEYWORD_KINDS:
                raise DefinitionError(
                    f"{where} has the parameter `{parameter}`; its arguments are given by name, so it takes only "
                    f"ordinary parameters: name what it needs"
                )
        if step.declaration.compensate is not None:
            undo = self._resolve_compensation(step.declaration.compensate, where)
            definition = replace(definition, compensation=make_compensation(definition, undo, where))
        return Member(method, definition, step.declaration, parameters, resolve_hints(definition.function))

    def check_unnumbered_steps(self) -> None:
        """A method with ``@step`` and no number is a mistake, unless it undoes another."""
        for method, attribute in self._attributes.items():
            if (
                isinstance(attribute, Step)
                and attribute.declaration is None
                and attribute.definition.parameters[:1] == ("self",)
                and method not in self._compensation_methods
            ):
                raise DefinitionError(
                    f"{self._subject}: step {method!r} has no number, so nothing would ever run it: write "
                    f"@step({_find_free_number(self._attributes) if self._has_numbered_steps() else 1}), or drop @step "
                    "if it is a helper"
                )

    def _has_numbered_steps(self) -> bool:
        return any(isinstance(one, Step) and one.declaration is not None for one in self._attributes.values())

    def _bind_to_instance(self, definition: StepDefinition, subject: str) -> StepDefinition:
        if not definition.parameters:
            raise DefinitionError(f"{subject} takes no `self`: write `def {definition.function.__name__}(self)`")
        function = self._instance.bind_method(definition.function)
        return replace(definition, function=function, parameters=definition.parameters[1:])

    def _resolve_compensation(self, value: Any, subject: str) -> StepDefinition:
        """The value of ``compensate=``: a method of the class, by its name or as a function, or another function."""
        if isinstance(value, str):
            method = value
            if method not in self._attributes or not callable(self._attributes[method]):
                known = (
                    ", ".join(name for name, one in self._attributes.items() if _can_compensate(name, one)) or "none"
                )
                raise DefinitionError(
                    f"{subject}: compensate={value!r} names no method of the class (there are: {known})"
                )
            value = self._attributes[method]
        else:
            # In the class body, a method is still a plain function.
            method = next((name for name, one in self._attributes.items() if one is value), "")
        if not method:
            return resolve_compensation(value, subject)
        if isinstance(value, Step) and value.declaration is not None:
            raise DefinitionError(
                f"{subject}: its compensation {method!r} is step {value.declaration.number} of the graph, which runs "
                f"anyway: drop its number"
            )
        self._compensation_methods.add(method)
        definition: StepDefinition = value.definition if isinstance(value, Step) else define_step(value)
        return self._bind_to_instance(definition, f"{subject}: its compensation {method!r}")


def _can_compensate(name: str, attribute: Any) -> bool:
    is_numbered = isinstance(attribute, Step) and attribute.declaration is not None
    return (
        not name.startswith("__") and not is_numbered and (isinstance(attribute, Step) or inspect.isfunction(attribute))
    )


class SharedInstance:
    """The one object of the class in this process, and its methods as functions without ``self``."""

    def __init__(self, cls: type[Any], subject: str) -> None:
        try:
            inspect.signature(cls).bind()
        except TypeError as error:
            raise DefinitionError(
                f"{subject}: `{cls.__name__}()` does not work ({error}). Its instance is made by Holdfast, without "
                f"arguments: give those of `__init__` defaults, and make what belongs to a run an input of a step."
            ) from None
        except ValueError:
            pass  # the class has no signature to check
        self._cls = cls
        self._instance: Any = None
        self._lock = threading.Lock()
        self._forbid_assignment()

    def get(self) -> Any:
        """The instance, created on first use."""
        if self._instance is None:
            with self._lock:  # plain steps run in threads
                if self._instance is None:
                    self._instance = self._cls()
        return self._instance

    def bind_method(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A method as a function without ``self``."""

        @functools.wraps(function)
        def bound(*args: Any, **kwargs: Any) -> Any:
            return function(self.get(), *args, **kwargs)

        bound.__annotations__ = function.__annotations__  # Python 3.14 copies only the function that computes them
        signature = inspect.signature(function)
        bound.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
        return bound

    def _forbid_assignment(self) -> None:
        cls: Any = self._cls
        set_attribute, delete_attribute = cls.__setattr__, cls.__delattr__

        def __setattr__(instance: Any, name: str, value: Any) -> None:
            self._check_assignment(instance, name)
            set_attribute(instance, name, value)

        def __delattr__(instance: Any, name: str) -> None:
            self._check_assignment(instance, name)
            delete_attribute(instance, name)

        cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__

    def _check_assignment(self, instance: Any, name: str) -> None:
        if instance is self._instance:
            raise UsageError(
                f"a step of workflow class {self._cls.__name__!r} changes `self.{name}`. What is kept on self is not "
                f"recorded, and would be gone after a crash: return it, and take it as a parameter where it is needed. "
                f"`__init__` may set what is the same for all runs, such as a client."
            )
