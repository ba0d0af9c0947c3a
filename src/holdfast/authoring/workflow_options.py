"""The options of ``@workflow``, which an agent takes as ``WorkflowOptions``."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from holdfast.admission.durations import Duration, declared_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.codec import prepare_key_template
from holdfast.errors import DefinitionError, InputError, UsageError
from holdfast.services.queue_options import declare_queue
from holdfast.services.run_start import validate_max_deliveries
from holdfast.stores.operations import MAX_DELIVERIES
from holdfast.stores.served_versions import explain_invalid_version


@dataclass(frozen=True, kw_only=True)
class WorkflowOptions:
    """How the runs of an agent are queued and executed; the same options as those of ``@workflow``.

    ``agent.options(...)`` has the options of a single start.
    """

    queue: str | Queue | None = None
    """The queue that runs wait in: its name, or a ``Queue`` with limits. Default: a queue with the agent's name."""
    timeout: Duration | None = None
    """How long after its start a run that has not ended fails with ``RunTimedOut``."""
    tags: Collection[str] = ()
    """Labels to list its runs by."""
    max_deliveries: int = MAX_DELIVERIES
    """How often the worker of a run may die while it holds nothing else, with nothing new recorded, before the run is
    ``dead``."""
    version: str = ""
    """The version of this code, such as ``"2"``. Only workers that have this version execute its runs. A conversation
    continues across versions."""
    serves: Collection[str] = ()
    """Other versions whose runs this code executes; ``""`` means runs without a version."""

    def __post_init__(self) -> None:
        subject = "WorkflowOptions"
        declared_seconds(self.timeout, f"{subject}: timeout")
        validate_tags(self.tags, subject)
        resolve_max_deliveries(self.max_deliveries, subject)
        validate_served_versions(self.serves, validate_version(self.version, subject), subject)


def resolve_queue_name(queue: str | Queue, subject: str) -> str:
    """The name of the queue of a definition; declares one with limits."""
    try:
        return declare_queue(queue)
    except UsageError as error:
        raise DefinitionError(f"{subject}: {error}") from None


def make_queue_key(
    queue: str | Queue, signature: inspect.Signature, defaults: Mapping[str, object], subject: str
) -> str | None:
    """The template for the queue keys of its runs, as it is announced."""
    if not isinstance(queue, Queue) or queue.key is None:
        return None
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    try:
        return prepare_key_template(queue.key, signature.parameters, defaults, accepts_any=takes_any)
    except InputError as error:
        raise DefinitionError(f"{subject}: {queue!r}: {error}") from None


def validate_tags(tags: Collection[str], subject: str) -> tuple[str, ...]:
    """The ``tags`` of a definition."""
    if isinstance(tags, str):
        raise DefinitionError(f"{subject}: tags is a collection of words, not one string: tags=[{tags!r}]")
    return tuple(tags)


def resolve_max_deliveries(value: int, subject: str) -> int:
    """The ``max_deliveries`` of a definition."""
    try:
        return validate_max_deliveries(value, f"{subject}: ") or MAX_DELIVERIES
    except UsageError as error:
        raise DefinitionError(str(error)) from None


def validate_version(version: str, subject: str) -> str:
    """The ``version`` of a definition."""
    if (refused := explain_invalid_version(version)) is not None:
        raise DefinitionError(f"{subject}: {refused}")
    return version


def validate_served_versions(serves: Collection[str], version: str, subject: str) -> tuple[str, ...]:
    """The ``serves`` of a definition, without its own version."""
    if isinstance(serves, str):
        raise DefinitionError(f"{subject}: serves is a collection of versions, not one string: serves=[{serves!r}]")
    return tuple(dict.fromkeys(validate_version(one, subject) for one in serves if one != version))
