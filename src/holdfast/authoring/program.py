"""``@program``: a function that may use threads, sockets, and any library, and that runs again after a crash."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, overload

from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.authoring.keyword_hints import reject_unknown_keywords
from holdfast.authoring.workflow import Workflow, define_workflow
from holdfast.errors import DefinitionError
from holdfast.stores.operations import MAX_DELIVERIES

P = ParamSpec("P")
R = TypeVar("R")


@overload
def program(function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def program(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def program(
    *,
    id: str | None = None,
    name: str | None = None,
    queue: str | Queue = "default",
    timeout: Duration | None = None,
    tags: Collection[str] = (),
    max_deliveries: int = MAX_DELIVERIES,
    version: str = "",
    serves: Collection[str] = (),
) -> _ProgramDecorator: ...
@reject_unknown_keywords("@program")
def program(
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
) -> Any:
    """Make a function a program: each run of it survives the process, whatever libraries it uses.

    After a crash, the function runs again from its beginning. Its recorded calls return what they returned before:
    steps, tools, workflows, approvals, and the model calls of clients and frameworks for which Holdfast has an adapter.
    Everything else is executed again. A program must make the same calls with the same content when it runs again, but
    calls in different tasks and threads may come in any order.

    A program differs from a ``@workflow`` in that its code may do anything. In return, a run that waits stays in
    memory, and its waits are not recorded.

    Args:
        function: an async function, which runs on the event loop of its process, or a plain one, which gets a thread.
        id: a template for the run's id, such as ``"research-{topic}"``; its fields are the program's inputs. If a run
            with this id exists, starting it again joins that run.
        name: the program's name in the store (default: the name of the function).
        queue: the queue its runs wait in: its name, or a ``Queue`` with limits, as in ``Queue("llm", concurrency=10)``.
        timeout: seconds after its start at which a run that has not ended fails with ``RunTimedOut``.
        tags: labels to list its runs by.
        max_deliveries: the number of worker deaths that make a run ``dead`` (see ``holdfast dead``); a death counts if
            the worker held only this run and the run recorded nothing new.
        version: the version of this code, such as ``"2"``. Only workers that have this version execute its runs.
        serves: other versions that this code executes runs of; ``""`` means runs without a version.
    """

    def decorate(function: Callable[..., Any]) -> Workflow[..., Any]:
        if isinstance(function, type):
            raise DefinitionError(f"@program goes on a function, and {function.__name__!r} is a class: use @workflow")
        return define_workflow(
            function, id, name, queue, timeout, tags, max_deliveries, version, serves, is_program=True
        )

    return decorate if function is None else decorate(function)


class _ProgramDecorator(Protocol):
    """The type of ``@program(...)``; only for type checkers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any: ...
