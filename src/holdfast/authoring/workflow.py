"""``@workflow``: an async function, or a class of numbered steps, whose runs survive the process."""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, Protocol, Self, TypeVar, overload

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.authoring import program_calls
from holdfast.authoring.children import call_child, start_child
from holdfast.authoring.introspection import find_class_location, format_location, is_async, resolve_hints
from holdfast.authoring.keyword_hints import reject_unknown_keywords
from holdfast.authoring.registry import register
from holdfast.authoring.workflow_options import (
    make_queue_key,
    resolve_max_deliveries,
    resolve_queue_name,
    validate_served_versions,
    validate_tags,
    validate_version,
)
from holdfast.client.handle import Handle
from holdfast.client.run_operations import RunOperations
from holdfast.codec import InputsCodec, codec_for, parse_template_fields
from holdfast.core.execution import get_current_execution
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.engine.program_context import find_program
from holdfast.errors import DefinitionError, InputError, UsageError
from holdfast.services.queue_options import get_key_template
from holdfast.services.run_start import StartOptions, make_start_options
from holdfast.services.store_provider import StoreProvider
from holdfast.stores.operations import MAX_DELIVERIES
from holdfast.sync_methods import run_sync

if TYPE_CHECKING:
    from holdfast.authoring.classes.graph import Graph
    from holdfast.authoring.schedules import Schedule

P = ParamSpec("P")
R = TypeVar("R")


class PreparedStart(NamedTuple):
    """The arguments of a start, as they will be recorded."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    bind_run: Callable[[str], None] | None = None
    """Called with the run's id before the run starts in this process, for values that are never recorded."""
    unbind_run: Callable[[str], None] | None = None
    """Called with the same id if that run does not exist after all, because another one was joined."""

    def rebind_run(self, new_id: str, joined_id: str) -> None:
        """Bind the run that the start joined in place of the new one, unless they are the same."""
        if self.bind_run is None or joined_id == new_id:
            return
        self.bind_run(joined_id)
        if self.unbind_run is not None:
            self.unbind_run(new_id)


_QUEUE_HINT = "write queue=, the name of the queue"
_KEYWORD_HINTS = {
    "task_queue": _QUEUE_HINT,
    "queue_name": _QUEUE_HINT,
    "workflow_id": "write id=, a template for the ids of its runs",
    "run_id": "write id=, a template for the ids of its runs",
    "retries": "steps are retried, with @step(retries=...); `holdfast retry` continues a failed run",
    "max_retries": "steps are retried, with @step(retries=...); `holdfast retry` continues a failed run",
    "timeout_seconds": "write timeout=, in seconds",
    "execution_timeout": "write timeout=, in seconds",
    "cron": "write schedule=Schedule(...)",
}
"""What to write instead of arguments that other frameworks have."""
_OPTION_HINTS = {
    "task_queue": _QUEUE_HINT,
    "queue_name": _QUEUE_HINT,
    "workflow_id": "write id=",
    "run_id": "write id=",
    "idempotency_key": "write id=, which makes starting it twice the same run",
    "deduplication_id": "write dedup=",
    "start_delay": "write delay=",
}


class Workflow(Generic[P, R]):
    """A workflow, or a workflow with options. Calling it starts a run, or joins the existing one, and waits."""

    def __init__(self, definition: WorkflowDefinition, options: StartOptions | None = None) -> None:
        self.definition = definition
        self.name = definition.name
        self._options = options or StartOptions()
        functools.update_wrapper(self, definition.function)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it durably, and return its result. In workflow code, it is a child of the calling run."""
        execution = get_current_execution()
        if execution is not None:
            return await call_child(execution, self, args, kwargs)
        if (program := find_program()) is not None and not program.run.owns_process:
            return await program_calls.call_workflow(program, self, args, kwargs)
        return await (await self.start(*args, **kwargs)).result()

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run, or join the existing one, and return a handle to it; also from workflow code."""
        from holdfast.authoring.runtime import Runtime

        execution = get_current_execution()
        if execution is not None:
            return await start_child(execution, self, args, kwargs)
        if (program := find_program()) is not None and not program.run.owns_process:
            run_id = await program_calls.start_workflow(program, self, args, kwargs)
            return self.get_handle((await Runtime.current()).store_provider, run_id)
        return await (await Runtime.current()).start(self, *args, **kwargs)

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it from code without an event loop."""
        return run_sync(self(*args, **kwargs))

    @reject_unknown_keywords("options(...)", **_OPTION_HINTS)
    def options(
        self,
        *,
        id: str | None = None,
        queue: str | Queue | None = None,
        key: str | int | None = None,
        dedup: str | int | None = None,
        debounce: Duration | None = None,
        max_debounce: Duration | None = None,
        delay: Duration = 0.0,
        priority: int = 0,
        tags: Collection[str] = (),
        new: bool = False,
        budget: Budget | None = None,
        max_deliveries: int | None = None,
    ) -> Self:
        """The same workflow with options for the runs that are started through it.

        Args:
            id: the run's id; starting it again joins that run.
            queue: the queue it waits in, instead of the workflow's own: its name, or a ``Queue`` with limits.
            key: its key in the queue, such as a customer (default: from the queue's key template).
            dedup: while there is an unfinished run of this workflow and queue with the same ``dedup`` key, join
                that one, whatever its inputs, and start none. Not for runs that workflow code starts.
            debounce: with ``dedup``, how long to wait for another start: until the run begins, each start replaces its
                inputs and restarts the wait. Seconds, a ``timedelta``, or text such as ``5 s``.
            max_debounce: the longest total delay of a debounced run (default: no limit).
            delay: how long before it may begin: seconds, a ``timedelta``, or text such as ``15 min``.
            priority: among the runs that are due, those with a higher priority go first.
            tags: labels to list it by, in addition to the workflow's own.
            new: always start a new run, even if there is an orphaned one with equal inputs.
            budget: what its model calls may use, including those of all runs that it starts.
            max_deliveries: how often its worker may die before the run is ``dead`` (default: the workflow's).
        """
        subject = f"workflow {self.name!r}: "
        options = make_start_options(
            subject,
            id=id,
            queue=queue,
            key=key,
            dedup=dedup,
            debounce=debounce,
            max_debounce=max_debounce,
            delay=delay,
            priority=priority,
            tags=tags,
            new=new,
            budget=budget,
            max_deliveries=max_deliveries,
        )
        if isinstance(queue, Queue) and key is None:
            try:
                get_key_template(queue, self.definition.to_spec(), self.definition.defaults)
            except InputError as error:
                raise UsageError(f"{subject}{queue!r}: {error}. Or give its starts a key: .options(key=...)") from None
        view = copy.copy(self)
        view._options = options
        return view

    def prepare_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedStart:
        """The arguments of a start, as they will be recorded."""
        return PreparedStart(args, kwargs)

    def get_handle(self, provider: StoreProvider, run_id: str) -> Handle[R]:
        """A handle to one of its runs."""
        decode = partial(self.definition.output_codec.decode, subject=self.definition.result_label)
        return Handle(RunOperations(provider, decode, [self.definition.namespace]), run_id)

    @property
    def start_options(self) -> StartOptions:
        """The options of this view of the workflow."""
        return self._options

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type[Any], ...]:
        """``class Other(ThisWorkflow)`` inherits from the class of this workflow."""
        cls = getattr(self.definition.function, "holdfast_class", None)
        if cls is None:
            raise DefinitionError(f"workflow {self.name!r} is a function: only a class workflow can be a base class")
        return (cls,)

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}>"


@overload
def workflow(function: type[Any], /) -> Workflow[..., Any]: ...
@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    id: str | None = None,
    name: str | None = None,
    queue: str | Queue = "default",
    timeout: Duration | None = None,
    tags: Collection[str] = (),
    max_deliveries: int = MAX_DELIVERIES,
    version: str = "",
    serves: Collection[str] = (),
    schedule: Schedule | None = None,
) -> _WorkflowDecorator: ...
@reject_unknown_keywords("@workflow", **_KEYWORD_HINTS)
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    id: str | None = None,
    name: str | None = None,
    queue: str | Queue = "default",
    timeout: Duration | None = None,
    tags: Collection[str] = (),
    max_deliveries: int = MAX_DELIVERIES,
    version: str = "",
    serves: Collection[str] = (),
    schedule: Schedule | None = None,
) -> Any:
    """Make an async function, or a class of numbered steps, a workflow: every run of it survives the process.

    Args:
        function: an ``async def``. Its steps are recorded; the rest of it must do the same thing every time. Or a class
            whose methods have ``@step(1)``, ``@step(2, depends_on=1)`` and so on.
        id: a template for the run's id, such as ``"etl-{customer}"``; its fields are the workflow's inputs. If a run
            with this id exists, starting it again joins that run.
        name: the workflow's name in the store (default: the name of the function or class).
        queue: the queue its runs wait in: its name, or a ``Queue`` with limits, as in ``Queue("llm", concurrency=10)``.
        timeout: seconds after its start at which a run that has not ended fails with ``RunTimedOut``.
        tags: labels to list its runs by.
        max_deliveries: the number of worker deaths that make a run ``dead`` (see ``holdfast dead``); a death counts if
            the worker held only this run and the run recorded nothing new.
        version: the version of this code, such as ``"2"``. Only workers that have this version execute its runs.
        serves: other versions that this code executes runs of; ``""`` means runs without a version.
        schedule: starts runs at set times, as in ``Schedule(cron="0 2 * * *", zone="Europe/Berlin")``.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        defined = define_workflow(function, id, name, queue, timeout, tags, max_deliveries, version, serves)
        if schedule is not None:
            schedule.declare(defined)
        return defined

    return decorate if function is None else decorate(function)


class _WorkflowDecorator(Protocol):
    """The type of ``@workflow(...)``; only for type checkers."""

    @overload
    def __call__(self, function: type[Any], /) -> Workflow[..., Any]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


def define_workflow(
    function: Callable[..., Any],
    id_template: str | None,
    name: str | None,
    queue: str | Queue,
    timeout: Duration | None,
    tags: Collection[str],
    max_deliveries: int,
    version: str,
    serves: Collection[str],
    *,
    is_program: bool = False,
) -> Workflow[..., Any]:
    """A function or class as a workflow, with the options of the decorator."""
    workflow_name = name or function.__name__
    numbers: dict[str, int] = {}
    if isinstance(function, type):
        function, graph, subject = _build_class_runner(function, workflow_name, id_template, queue)
        signature, hints = graph.build_signature()
        hints["return"], numbers = graph.build_result_type(function.__name__), graph.step_numbers
        namespace = getattr(sys.modules.get(function.__module__), "__dict__", {})
    else:
        subject = f"{'program' if is_program else 'workflow'} {workflow_name!r} ({format_location(function)})"
        _check_async(function, subject, is_program)
        signature, hints = inspect.signature(function), resolve_hints(function)
        namespace = getattr(function, "__globals__", {})
    defaults = {
        parameter.name: parameter.default
        for parameter in signature.parameters.values()
        if parameter.default is not inspect.Parameter.empty
    }
    definition = WorkflowDefinition(
        name=workflow_name,
        function=function,
        inputs_codec=InputsCodec(workflow_name, signature, hints),
        output_codec=codec_for(hints.get("return", inspect.Signature.empty)),
        namespace=namespace,
        id_template=_validate_template(id_template, signature, subject),
        defaults=defaults,
        queue_key=make_queue_key(queue, signature, defaults, subject),
        queue=resolve_queue_name(queue, subject),
        timeout_s=declared_seconds(timeout, f"{subject}: timeout"),
        tags=validate_tags(tags, subject),
        step_numbers=numbers,
        is_program=is_program,
        is_async=not is_program or is_async(function),
        max_deliveries=resolve_max_deliveries(max_deliveries, subject),
        version=validate_version(version, subject),
        also_served_versions=validate_served_versions(serves, version, subject),
    )
    register(definition)
    return Workflow(definition)


def _build_class_runner(
    cls: type[Any], workflow_name: str, id_template: str | None, queue: str | Queue
) -> tuple[Callable[..., Any], Graph, str]:
    """The function that runs a class workflow, its graph, and the subject for error messages."""
    from holdfast.authoring.classes.graph import build_graph
    from holdfast.authoring.classes.graph_run import make_runner
    from holdfast.authoring.classes.members import read_members

    location = find_class_location(cls)
    subject = f"workflow {workflow_name!r} ({location.file}:{location.line})"
    key = queue.key if isinstance(queue, Queue) else None
    fields = [
        field
        for template in (id_template, key)
        if template is not None
        for field in _parse_template_fields(template, subject)
    ]
    graph = build_graph(read_members(cls, subject), fields, subject)
    function: Any = make_runner(graph)
    for attribute in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(function, attribute, getattr(cls, attribute))
    function.holdfast_defined_at, function.holdfast_class, function.holdfast_graph = location, cls, graph
    return function, graph, subject


def _check_async(function: Callable[..., Any], subject: str, is_program: bool) -> None:
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        kind = "an async generator" if inspect.isasyncgenfunction(function) else "a generator"
        raise DefinitionError(f"{subject} is {kind}; a run has one result: return it instead of yielding")
    if not is_program and not is_async(function):
        raise DefinitionError(
            f"{subject} is a plain function. A workflow waits for its steps, so it must be async:\n\n"
            f"    @workflow\n    async def {function.__name__}{_format_signature(inspect.signature(function))}:\n"
            f"        ... = await some_step(...)\n"
        )


def _parse_template_fields(template: str, subject: str) -> tuple[str, ...]:
    try:
        return parse_template_fields(template)
    except InputError as error:
        raise DefinitionError(f"{subject}: {error}") from None


def _validate_template(template: str | None, signature: inspect.Signature, subject: str) -> str | None:
    """The template. Fields that are not inputs are an error now, not at the first start."""
    if template is None:
        return None
    fields = _parse_template_fields(template, subject)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for field in fields:
        if field not in signature.parameters and not takes_any:
            inputs = ", ".join(signature.parameters) or "none"
            raise DefinitionError(
                f"{subject}: id={template!r} names {field!r}, which is no input of the workflow (inputs: {inputs})"
            )
    return template


def _format_signature(signature: inspect.Signature) -> str:
    """A signature as written in code, without the quotes of postponed annotations."""
    return str(signature).replace("'", "")
