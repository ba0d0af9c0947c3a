"""What an engine must know of workflows and steps to execute them. ``authoring`` makes these."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.admission.retry_policy import NO_RETRIES, RetryPolicy
from holdfast.admission.usage import Budget, Usage
from holdfast.codec import InputsCodec, ValueCodec, validate_size
from holdfast.core.execution import Execution
from holdfast.core.records import make_constructor
from holdfast.core.states import Effect
from holdfast.stores.contract import WorkflowSpec
from holdfast.stores.operations import MAX_DELIVERIES, NewRun, Run, StartResult
from holdfast.stores.schedules import ScheduleDefinition
from holdfast.stores.served_versions import make_served_name


class ModelUsage(NamedTuple):
    """The usage of one call."""

    usage: Usage
    model: str
    """The model, as it was requested: ``openai:gpt-4o``; ``""``: unknown."""


@dataclass(frozen=True, slots=True)
class StepDefinition:
    """A function whose calls are recorded."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    output_codec: ValueCodec
    parameters: tuple[str, ...]
    namespace: Mapping[str, object]
    """Where the classes of recorded exceptions are looked up, in addition to the loaded modules."""
    retry: RetryPolicy = NO_RETRIES
    timeout_s: float | None = None
    effect: Effect = Effect.IDEMPOTENT
    is_tool: bool = False
    """A model may call it."""
    is_transactional: bool = False
    """Its changes in the store's own database are committed together with its outcome."""
    compensation: Compensation | None = None
    read_usage: Callable[[Any], ModelUsage | None] | None = None
    """Reads the usage of a call from the returned value; ``None`` for steps without usage."""
    invoke: Callable[[Execution, StepDefinition, tuple[Any, ...], dict[str, Any]], Coroutine[Any, Any, Any]] | None = (
        None
    )
    """How workflow code calls it, if not with one command."""
    call_outside_run: Callable[..., Coroutine[Any, Any, Any]] | None = None
    """What a call outside a run calls instead of the function."""
    output_subject: str = field(init=False, default="")
    """What error messages call its output."""
    is_noted: bool = field(init=False, default=False)
    """Whether the run notes its outcomes, to compensate them, or because they are ``once``."""
    is_plain_async: bool = field(init=False, default=False)
    """Whether an attempt is just a call of the async function, without a timeout or a transaction."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "output_subject", f"the output of step {self.name!r}")
        object.__setattr__(self, "is_noted", self.compensation is not None or self.effect is Effect.ONCE)
        is_plain = self.is_async and self.timeout_s is None and not self.is_transactional
        object.__setattr__(self, "is_plain_async", is_plain)


@dataclass(frozen=True, slots=True)
class Compensation:
    """Undoes a recorded step when its run fails or is cancelled."""

    step: StepDefinition
    """Executed and recorded like any step."""
    bind_arguments: Callable[[Any, tuple[Any, ...], dict[str, Any]], dict[str, Any] | None]
    """Its arguments, from the output and the arguments of the step that it undoes; ``None``: there is nothing to
    undo."""


class StepCall(NamedTuple):
    """A step with the arguments of one call."""

    step: StepDefinition
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_noted(self) -> bool:
        """Whether it is ``once``, or has a compensation."""
        return self.step.is_noted

    @property
    def is_once(self) -> bool:
        """Whether it must never run a second time."""
        return self.step.effect is Effect.ONCE

    @property
    def has_compensation(self) -> bool:
        """Whether it has a compensation."""
        return self.step.compensation is not None

    def build_compensation(self, payload: bytes) -> tuple[str, StepCall] | None:
        """The name and call of the compensation, from the recorded output; ``None``: there is nothing to undo."""
        compensation = self.step.compensation
        assert compensation is not None
        output = self.step.output_codec.decode(payload, f"the output of step {self.step.name!r}")
        arguments = compensation.bind_arguments(output, self.args, self.kwargs)
        return None if arguments is None else (compensation.step.name, StepCall(compensation.step, (), arguments))


make_step_call = make_constructor(StepCall)


@dataclass(frozen=True, slots=True)
class ChildCall:
    """A run that workflow code starts, or waits for."""

    run_id: str
    check_started: Callable[[StartResult], None]
    """Raises a ``HoldfastError``, to be recorded, if the existing run is not the one that was meant."""
    make_run: Callable[[float], NewRun] | None = None
    """Makes the run, to be started at the given time; ``None``: it was started before."""
    seed: bytes | None = None
    """The run's seed, if the run belongs to the call: then cancelling the call cancels the run."""


@dataclass(frozen=True, slots=True)
class WorkflowDefinition:
    """A durable async function, also for a class workflow."""

    name: str
    function: Callable[..., Any]
    """An async function; for a program, any function."""
    inputs_codec: InputsCodec
    output_codec: ValueCodec
    namespace: Mapping[str, object]
    id_template: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queue: str = "default"
    queue_key: str | None = None
    """A template for the queue keys of its runs: see ``codec.queue_keys``."""
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    step_numbers: Mapping[str, int] = field(default_factory=dict[str, int])
    """For a class workflow: the numbers of its steps, by name."""
    budget: Budget | None = None
    """The default budget of its runs."""
    is_agent: bool = False
    is_program: bool = False
    """Its code runs outside the run's loop: see ``core.program_execution``."""
    is_async: bool = True
    """Whether its function is async; that of a program may be a plain one."""
    max_deliveries: int = MAX_DELIVERIES
    """How many deaths of workers that held only this run, without a new record, make a run ``dead``."""
    version: str = ""
    """The version that its runs are started with."""
    also_served_versions: tuple[str, ...] = ()
    """Other versions that it executes runs of."""
    load_imports: Callable[[], None] | None = None
    """Slow imports of its code: called in a thread, before its first run in a process starts."""
    prepare_run: Callable[[Run], Coroutine[Any, Any, None]] | None = None
    """Awaited each time one of its runs comes into memory, before its code starts or replays."""
    schedules: dict[str, ScheduleDefinition] = field(default_factory=dict[str, ScheduleDefinition], compare=False)
    """The schedules declared in code, by name; more may be declared later."""
    result_label: str = field(init=False, default="")
    """Names its result in error messages."""
    _spec: WorkflowSpec | None = field(init=False, default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "result_label", f"the result of workflow {self.name!r}")

    async def execute(self, args: tuple[Any, ...], kwargs: dict[str, Any], max_value: int) -> bytes:
        """Run its code, and encode the result.

        A result that cannot be recorded must fail here, as a failure of the code, so that the run is compensated.
        """
        return self.encode_result(await self.function(*args, **kwargs), max_value)

    def encode_result(self, value: Any, max_value: int) -> bytes:
        """The encoded result of its code."""
        return validate_size(self.output_codec.encode(value, self.result_label), self.result_label, max_value)

    def to_spec(self) -> WorkflowSpec:
        """The announcement for clients without the code. Made once: each start of a run needs it."""
        if self._spec is None:
            object.__setattr__(self, "_spec", self._make_spec())
        assert self._spec is not None
        return self._spec

    def _make_spec(self) -> WorkflowSpec:
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
        """The names that a worker with it serves, its own version first: see ``stores.served_versions``."""
        return tuple(make_served_name(self.name, version) for version in (self.version, *self.also_served_versions))
