"""``compensate=``: the step that undoes another one, and how it gets its arguments.

Arguments are bound by name. The binding is fixed when the step is declared, so that nothing can go wrong when a run has
to be compensated: a parameter that is named like one of the step's takes that argument, and the one other parameter
without a default takes the step's output.
"""

from __future__ import annotations

import inspect
from typing import Any

from holdfast.engine.definitions import Compensation, StepDefinition
from holdfast.errors import DefinitionError

_KEYWORD_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def make_compensation(step: StepDefinition, compensating_step: StepDefinition, subject: str) -> Compensation:
    """The compensation ``compensating_step`` of ``step``; ``subject`` names the step in messages."""
    label = f"{subject}: its compensation {compensating_step.name!r}"
    if compensating_step.invoke is not None:
        raise DefinitionError(f"{label} asks a model, and what undoes a step must do just that: let it be a plain step")
    if compensating_step.compensation is not None:
        raise DefinitionError(
            f"{label} has a compensation itself ({compensating_step.compensation.step.name!r}), and nothing is undone "
            f"twice: drop compensate= from {compensating_step.name!r}"
        )
    signature = inspect.signature(step.function)
    shared: list[str] = []
    others: list[str] = []
    for parameter in inspect.signature(compensating_step.function).parameters.values():
        if parameter.kind not in _KEYWORD_KINDS:
            raise DefinitionError(
                f"{label} has the parameter `{parameter}`; its arguments are given by name, so it takes only ordinary "
                f"parameters: name what it needs"
            )
        if parameter.name in signature.parameters:
            shared.append(parameter.name)
        elif parameter.default is inspect.Parameter.empty:
            others.append(parameter.name)
    if len(others) > 1:
        names = " and ".join([", ".join(map(repr, others[:-1])), repr(others[-1])])
        known = ", ".join(step.parameters) or "none"
        raise DefinitionError(
            f"{label} takes {names}, and only one parameter can take the step's output. Name the others like the "
            f"parameters of the step that they are to take ({known}), or give them defaults."
        )

    def bind(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return {name: given.arguments[name] for name in shared} | dict.fromkeys(others, output)

    return Compensation(compensating_step, bind)
