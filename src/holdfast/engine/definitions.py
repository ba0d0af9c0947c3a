"""What the engine must know of a workflow and of a step to execute them. The authoring room makes these."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.codec import InputsCodec, ValueCodec
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import Effect
from holdfast.stores.contract import WorkflowSpec


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """A function whose calls are recorded."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    output: ValueCodec
    parameters: tuple[str, ...]
    namespace: Mapping[str, object]
    """Where the classes of recorded exceptions are looked up, beside the modules that are loaded."""
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    timeout: float | None = None
    effect: Effect = Effect.IDEMPOTENT
    compensation: Compensation | None = None


@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a recorded step when its run fails or is cancelled."""

    step: StepDefinition
    """Carried out and recorded like any step."""
    bind: Callable[[Any, tuple[Any, ...], dict[str, Any]], dict[str, Any]]
    """Its arguments, from the output of the step that it undoes and the arguments of that call."""


class StepCall(NamedTuple):
    """A step with the arguments of one call."""

    step: StepDefinition
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def undo(self, payload: bytes) -> StepCall | None:
        """The call that undoes this one, whose recorded output is ``payload``; nothing if it has no compensation."""
        compensation = self.step.compensation
        if compensation is None:
            return None
        output = self.step.output.decode(payload, f"the output of step {self.step.name!r}")
        return StepCall(compensation.step, (), compensation.bind(output, self.args, self.kwargs))


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """A durable async function. The class form comes as one, too."""

    name: str
    function: Callable[..., Coroutine[Any, Any, Any]]
    inputs: InputsCodec
    output: ValueCodec
    namespace: Mapping[str, object]
    id_template: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queue: str = "default"
    timeout: float | None = None
    tags: tuple[str, ...] = ()
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    """In the class form: the numbers of its steps, by their names."""

    def spec(self) -> WorkflowSpec:
        """What clients without the code may know of it."""
        return WorkflowSpec(
            name=self.name,
            parameters=self.inputs.parameters,
            id_template=self.id_template,
            queue=self.queue,
            timeout=self.timeout,
            tags=self.tags,
        )
