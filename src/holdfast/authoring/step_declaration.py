"""The declaration of a step of a class workflow, as written in ``@step(2, depends_on=1, ...)``.

Only the class knows what a number or the name of a method refers to, so most of this is checked when the class is
defined (see ``classes``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.errors import DefinitionError

Reference = int | str
"""A step of the same class: its number, or the name of its method."""

References = Reference | Sequence[Reference]


@dataclass(frozen=True, slots=True)
class StepDeclaration:
    """A step in the graph of its class."""

    number: int
    depends_on: tuple[Reference, ...] = ()
    after: tuple[Reference, ...] = ()
    when: Callable[..., Any] | None = None
    each: str | None = None
    compensate: str | Callable[..., Any] | None = None
    max_concurrency: int | None = None
    """From ``@parallel``."""

    @property
    def is_fan_out(self) -> bool:
        """Whether the step is called once for each item of a list."""
        return self.each is not None or self.max_concurrency is not None


def make_declaration(
    number: object,
    depends_on: References,
    after: References,
    when: Callable[..., Any] | None,
    each: str | None,
    compensate: str | Callable[..., Any] | None,
) -> StepDeclaration:
    """The declaration, checked as far as possible without the class."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise DefinitionError(
            f"@step({number!r}): the number of a step in a class workflow is a whole number, 1 or more: @step(1)"
        )
    if each is not None and not isinstance(each, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"@step({number}): each= is the name of a parameter, not {each!r}")
    if when is not None and not callable(when):
        raise DefinitionError(f"@step({number}): when= is a function that tells whether the step runs, not {when!r}")
    if compensate is not None and not isinstance(compensate, str) and not callable(compensate):
        raise DefinitionError(
            f"@step({number}): compensate= is a function, or the name of a method, not {compensate!r}"
        )
    return StepDeclaration(
        number,
        _validate_references(depends_on, f"@step({number}): depends_on"),
        _validate_references(after, f"@step({number}): after"),
        when,
        each,
        compensate,
    )


def check_no_graph_options(subject: str, options: dict[str, Any]) -> None:
    """Raise if an option was given that only a step of a class workflow has."""
    for option, value in options.items():
        if value is not None and value != ():
            raise DefinitionError(
                f"{subject}: {option}= is for the numbered steps of a class workflow: give it a number, as in "
                f"@step(2, {option}={value!r}). In a workflow function, plain Python says what runs when."
            )


def _validate_references(value: Any, subject: str) -> tuple[Reference, ...]:
    many: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for one in many:
        if isinstance(one, bool) or not isinstance(one, int | str):
            raise DefinitionError(
                f"{subject}={value!r}: steps are named by their numbers, or by the names of their methods, as in "
                f"depends_on=1 or depends_on=(1, 2)"
            )
    return tuple(dict.fromkeys(many))
