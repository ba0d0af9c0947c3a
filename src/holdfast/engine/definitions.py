"""What the engine must know of a workflow and of a step to execute them. The authoring room makes these."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.admission.retry_policy import NO_RETRIES, RetryPolicy
from holdfast.admission.usage import Budget, Usage
from holdfast.codec import InputsCodec, ValueCodec, validate_size
from holdfast.core.execution import Execution
from holdfast.core.states import Effect
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import MAX_DELIVERIES, NewRun, Run, StartResult
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.stores.served_versions import make_served_name


class ModelUsage(NamedTuple):
    """What a call has used."""

    usage: Usage
    model: str
    """Of which model, as it was asked for: ``openai:gpt-4o``; ``""``: that is not known."""


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """A function whose calls are recorded."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    output_codec: ValueCodec
    parameters: tuple[str, ...]
    namespace: Mapping[str, object]
    """Where the classes of recorded exceptions are looked up, beside the modules that are loaded."""
    retry: RetryPolicy = NO_RETRIES
    timeout_s: float | None = None
    effect: Effect = Effect.IDEMPOTENT
    is_transactional: bool = False
    """What it does in the store's own database is committed together with its outcome."""
    compensation: Compensation | None = None
    read_usage: Callable[[Any], ModelUsage | None] | None = None
    """What a call has used, told by the value that it returned; ``None`` for steps that use nothing of a budget."""
    invoke: Callable[[Execution, StepDefinition, tuple[Any, ...], dict[str, Any]], Coroutine[Any, Any, Any]] | None = (
        None
    )
    """How workflow code calls it, if not by one command."""
    call_outside_run: Callable[..., Coroutine[Any, Any, Any]] | None = None
    """What a call outside a run does, if not the function itself."""


@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a recorded step when its run fails or is cancelled."""

    step: StepDefinition
    """Carried out and recorded like any step."""
    bind_arguments: Callable[[Any, tuple[Any, ...], dict[str, Any]], dict[str, Any] | None]
    """Its arguments, from the output of the step that it undoes and the arguments of that call; ``None``: that output
    leaves nothing to undo."""


class StepCall(NamedTuple):
    """A step with the arguments of one call."""

    step: StepDefinition
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_once(self) -> bool:
        """Whether nobody may run it a second time."""
        return self.step.effect is Effect.ONCE

    @property
    def has_compensation(self) -> bool:
        """Whether it has a compensation."""
        return self.step.compensation is not None

    def build_compensation(self, payload: bytes) -> tuple[str, StepCall] | None:
        """Name and call of the compensation for this call, whose recorded output is ``payload``, if it needs one."""
        compensation = self.step.compensation
        assert compensation is not None
        output = self.step.output_codec.decode(payload, f"the output of step {self.step.name!r}")
        arguments = compensation.bind_arguments(output, self.args, self.kwargs)
        return None if arguments is None else (compensation.step.name, StepCall(compensation.step, (), arguments))


@dataclass(frozen=True, slots=True)
class ChildCall:
    """A run that workflow code starts, or waits for."""

    run_id: str
    check_started: Callable[[StartResult], None]
    """Raises an error of Holdfast, to be recorded, if the run that is there is not the one that was meant."""
    make_run: Callable[[float], NewRun] | None = None
    """The run to be started at this time; ``None``: it was started before."""
    seed: bytes | None = None
    """Its seed, if it belongs to the call: then cancelling the call cancels it."""


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """A durable async function. The class form comes as one, too."""

    name: str
    function: Callable[..., Coroutine[Any, Any, Any]]
    inputs_codec: InputsCodec
    output_codec: ValueCodec
    namespace: Mapping[str, object]
    id_template: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queue: str = "default"
    queue_key: str | None = None
    """A template for the key that its runs have in its queue: see ``codec.queue_keys``."""
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    step_numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    """In the class form: the numbers of its steps, by their names."""
    budget: Budget | None = None
    """What each of its runs may use, unless it is started with another budget."""
    is_agent: bool = False
    max_deliveries: int = MAX_DELIVERIES
    """Deaths of workers that held nothing but a run of it, without a new record, that make the run ``dead``."""
    version: str = ""
    """The version that its runs are started with."""
    also_served_versions: tuple[str, ...] = ()
    """Other versions whose runs it executes, too."""
    load_imports: Callable[[], None] | None = None
    """Imports what its code needs, if that takes long: called in a thread, before its first run in a process begins."""
    prepare_run: Callable[[Run], Coroutine[Any, Any, None]] | None = None
    """Awaited each time that a run of it comes into memory, before its code begins or replays."""
    schedules: dict[str, ScheduleDefinition] = field(default_factory=dict[str, ScheduleDefinition], compare=False)
    """Those that are declared in code, by name; more may be declared later."""

    async def execute(self, args: tuple[Any, ...], kwargs: dict[str, Any], max_value: int) -> bytes:
        """Run its code, and encode the result in the same breath: one that cannot be recorded is the code's failure.

        It must fail here, and not afterwards: what the run has done is undone then.
        """
        value = await self.function(*args, **kwargs)
        return validate_size(self.output_codec.encode(value, self.result_label), self.result_label, max_value)

    @property
    def result_label(self) -> str:
        """What errors call its result."""
        return f"the result of workflow {self.name!r}"

    def to_spec(self) -> WorkflowSpec:
        """What clients without the code may know of it."""
        return WorkflowSpec(
            name=self.name,
            parameters=self.inputs_codec.parameters,
            inputs_schema=self.inputs_codec.schema,
            id_template=self.id_template,
            queue=self.queue,
            queue_key_template=self.queue_key,
            timeout_s=self.timeout_s,
            tags=self.tags,
            budget=None if self.budget is None else self.budget.to_limits(),
            is_agent=self.is_agent,
            max_deliveries=self.max_deliveries,
            version=self.version,
            serves=self.also_served_versions,
        )

    @property
    def served_names(self) -> tuple[str, ...]:
        """What a worker serves that has it, its own version first: see ``stores.served_versions``."""
        return tuple(make_served_name(self.name, version) for version in (self.version, *self.also_served_versions))
