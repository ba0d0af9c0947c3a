"""``@parallel``: a step of a class workflow that is called once for each item of a list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, overload

from holdfast.authoring.step import Step, apply_modifier
from holdfast.errors import DefinitionError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_MAX_CONCURRENCY = 10
"""The default number of items that are in flight at once."""


@dataclass(frozen=True)
class ParallelModifier:
    """The modifier that ``@parallel`` makes."""

    max_concurrency: int
    decorator_name: str = "@parallel"

    def apply_to(self, step: Step[..., Any], /) -> Step[..., Any]:
        """The same step, as a fan-out."""
        if step.declaration is None:
            raise DefinitionError(
                f"@parallel is for the numbered steps of a class workflow: give {step.name!r} a number, as in "
                f"@step(2, depends_on=1), or in a workflow function write `await holdfast.map({step.name}, items)`"
            )
        return Step(step.definition, replace(step.declaration, max_concurrency=self.max_concurrency))


@overload
def parallel(method: F, /) -> F: ...
@overload
def parallel(*, max_concurrency: int = DEFAULT_MAX_CONCURRENCY) -> Callable[[F], F]: ...
def parallel(method: Any = None, /, *, max_concurrency: int = DEFAULT_MAX_CONCURRENCY) -> Any:
    """Call a step of a class workflow once for each item of a list; its output is the list of the outputs, in order.

    Each item has its own record. The items are the output of the only dependency, or the value of the parameter named
    by ``@step(..., each="parameter")``. May be above or below ``@step``.

    Args:
        method: the method, when there are no options.
        max_concurrency: how many items may be in flight at once.
    """
    if isinstance(max_concurrency, bool) or not isinstance(max_concurrency, int) or max_concurrency < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"@parallel: max_concurrency={max_concurrency!r} must be a whole number, 1 or more")
    decorate = partial(apply_modifier, ParallelModifier(max_concurrency))
    return decorate if method is None else decorate(method)
