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


class StepCall(NamedTuple):
    """A step with the arguments of one call."""

    step: StepDefinition
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """A durable async function."""

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
