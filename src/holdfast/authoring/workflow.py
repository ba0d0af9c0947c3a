"""``@workflow``: an async function whose runs survive the process."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar, overload

from holdfast.authoring.durations import Duration, seconds
from holdfast.authoring.functions import hints_of, is_async, place_of
from holdfast.authoring.registry import register
from holdfast.client.client import run_sync
from holdfast.client.handle import Handle
from holdfast.client.starting import StartOptions
from holdfast.codec import InputsCodec, codec_for, template_fields
from holdfast.core.execution import current_execution
from holdfast.engine.definitions import WorkflowDefinition
from holdfast.errors import DefinitionError, InputError

P = ParamSpec("P")
R = TypeVar("R")


class Workflow(Generic[P, R]):
    """A workflow, or a workflow with options. Calling it starts a run, or joins the one that is there, and waits."""

    def __init__(self, definition: WorkflowDefinition, options: StartOptions | None = None) -> None:
        self.definition = definition
        self.name = definition.name
        self._options = options or StartOptions()
        functools.update_wrapper(self, definition.function)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it durably, and return its result."""
        return await (await self.start(*args, **kwargs)).result()

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Start a run (or join the one that is there) and return a handle to it."""
        from holdfast.authoring.runtime import current_runtime

        execution = current_execution()
        if execution is not None:
            execution.loop.refuse(
                f"workflow {self.name!r} was called inside another workflow",
                f"await its steps directly, or the plain coroutine of `{self.name}.definition.function(...)`",
            )
        return await (await current_runtime()).start(self, *args, **kwargs)

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it from code without an event loop."""
        return run_sync(self(*args, **kwargs))

    def options(
        self,
        *,
        id: str | None = None,
        queue: str | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        tags: Collection[str] = (),
        new: bool = False,
    ) -> Workflow[P, R]:
        """The same workflow with options for the runs that are started through it.

        Args:
            id: the run's id; starting it again is the same run.
            queue: the queue it waits in, instead of the workflow's own.
            delay: seconds before it may begin.
            priority: higher goes first among the runs that are due.
            tags: words to find it by, in addition to the workflow's own.
            new: never join an orphaned run with equal inputs, but start another.
        """
        options = StartOptions(
            id=id, queue=queue, delay=seconds(delay, "delay") or 0.0, priority=priority, tags=tuple(tags), new=new
        )
        return Workflow(self.definition, options)

    @property
    def start_options(self) -> StartOptions:
        """The options of this view of the workflow."""
        return self._options

    def __repr__(self) -> str:
        return f"<workflow {self.name!r}>"


@overload
def workflow(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    id: str | None = None,
    name: str | None = None,
    queue: str = "default",
    timeout: Duration | None = None,
    tags: Collection[str] = (),
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(
    function: Callable[..., Any] | None = None,
    /,
    *,
    id: str | None = None,
    name: str | None = None,
    queue: str = "default",
    timeout: Duration | None = None,
    tags: Collection[str] = (),
) -> Any:
    """Make an async function a workflow: every run of it survives the process.

    Args:
        function: an ``async def``. Its steps are recorded; the rest of it must do the same thing every time.
        id: a template for the run's id, such as ``"etl-{customer}"``; its fields are the workflow's inputs. Starting a
            workflow twice with the same id is the same run.
        name: what the store calls it; the function's name unless given.
        queue: the queue its runs wait in.
        timeout: seconds after its start at which a run that has not ended fails with ``RunTimedOut``.
        tags: words to find its runs by.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        return _define(function, id, name, queue, timeout, tags)

    return decorate if function is None else decorate(function)


def _define(
    function: Callable[..., Any],
    id_template: str | None,
    name: str | None,
    queue: str,
    timeout: Duration | None,
    tags: Collection[str],
) -> Workflow[..., Any]:
    label = name or function.__name__
    where = f"workflow {label!r} ({place_of(function)})"
    if inspect.isasyncgenfunction(function):
        raise DefinitionError(
            f"{where} is an async generator; a workflow returns one result: return it instead of yielding"
        )
    if not is_async(function):
        raise DefinitionError(
            f"{where} is a plain function. A workflow waits for its steps, so it must be async:\n\n"
            f"    @workflow\n    async def {function.__name__}{_plain(inspect.signature(function))}:\n"
            f"        ... = await some_step(...)\n"
        )
    if isinstance(tags, str):
        raise DefinitionError(f"{where}: tags is a collection of words, not one string: tags=[{tags!r}]")
    signature = inspect.signature(function)
    hints = hints_of(function)
    definition = WorkflowDefinition(
        name=label,
        function=function,
        inputs=InputsCodec(label, signature, hints),
        output=codec_for(hints.get("return", inspect.Signature.empty)),
        namespace=getattr(function, "__globals__", {}),
        id_template=_checked_template(id_template, signature, where),
        defaults={
            parameter.name: parameter.default
            for parameter in signature.parameters.values()
            if parameter.default is not inspect.Parameter.empty
        },
        queue=queue,
        timeout=seconds(timeout, f"{where}: timeout"),
        tags=tuple(tags),
    )
    register(definition)
    return Workflow(definition)


def _checked_template(template: str | None, signature: inspect.Signature, where: str) -> str | None:
    """A template whose fields are all inputs; anything else is an error now, not at the first start."""
    if template is None:
        return None
    try:
        fields = template_fields(template)
    except InputError as error:
        raise DefinitionError(f"{where}: {error}") from None
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for field in fields:
        if field not in signature.parameters and not takes_any:
            inputs = ", ".join(signature.parameters) or "none"
            raise DefinitionError(
                f"{where}: id={template!r} names {field!r}, which is no input of the workflow (inputs: {inputs})"
            )
    return template


def _plain(signature: inspect.Signature) -> str:
    """A signature as it is written, without the quotes of postponed annotations."""
    return str(signature).replace("'", "")
