"""Queues as a start names them: which one, whose run it is among its runs, and which run it joins there.

A ``Queue`` that is named anywhere in a process is *declared*: whoever opens a runtime announces it, and a client that
is handed one does so before its first start. There is one set of limits for each name, so that what counts does not
depend on who comes last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.admission.durations import MAX_DURATION_S, Duration, duration_to_seconds
from holdfast.admission.queue_limits import Queue, QueueLimits, validate_queue_name
from holdfast.codec import prepare_key_template, render_key, validate_key
from holdfast.errors import InputError, UsageError
from holdfast.stores.contract import WorkflowSpec

declared_limits: dict[str, QueueLimits] = {}
"""Of all queues that this process has declared."""
_declared_queues: dict[str, Queue] = {}

_DEDUP_SEPARATOR = "\x1f"
"""Between the workflow and the key of a start that joins: those of different workflows do not join each other."""


def declare_queue(queue: str | Queue) -> str:
    """The name of a queue. One with limits is known from now on. Raises ``UsageError``."""
    if not isinstance(queue, Queue):
        return validate_queue_name(queue)
    known = _declared_queues.get(queue.name)
    if known is not None and known.limits != queue.limits and not _is_same_location(known, queue):
        raise UsageError(
            f"two queues are named {queue.name!r}, with different limits: {known.source_location} "
            f"({known.limits.describe()}) "
            f"and {queue.source_location} ({queue.limits.describe()}). Make one Queue, and name that in both places; "
            "or give "
            f"one of them another name"
        )
    _declared_queues[queue.name] = queue
    declared_limits[queue.name] = queue.limits
    return queue.name


def clear_declarations() -> None:
    """For tests: as in a process that has declared none."""
    _declared_queues.clear()
    declared_limits.clear()


def _is_same_location(one: Queue, other: Queue) -> bool:
    """A module that is loaded again, or a cell of a notebook, may have been changed."""
    return (
        one.source_location == other.source_location
        or other.source_location.startswith("<")
        or "ipykernel" in other.source_location
    )


def get_key_template(queue: Queue, spec: WorkflowSpec, defaults: Mapping[str, object]) -> str | None:
    """A queue's own template for the keys of a workflow's runs. Raises ``InputError`` if it does not fit."""
    if queue.key is None:
        return None
    takes_any = any(name.startswith("**") for name in spec.parameters)
    return prepare_key_template(queue.key, spec.parameters, defaults, accepts_any=takes_any)


def resolve_queue_key(
    queue: str | Queue | None, key: str | None, spec: WorkflowSpec, inputs: bytes, defaults: Mapping[str, Any]
) -> str:
    """The key of a run in the queue that it is started into; ``""``: it has none."""
    if key is not None:
        return key
    if isinstance(queue, Queue):
        try:
            template = get_key_template(queue, spec, defaults)
        except InputError as error:
            raise InputError(f"workflow {spec.name!r} in {queue!r}: {error}. Or give its start a key=") from None
    else:
        template = spec.queue_key_template if queue in (None, spec.queue) else None
    return "" if template is None else render_key(template, inputs, spec.name)


def make_dedup_key(workflow: str, dedup: str | None) -> str:
    """The key by which a start joins a run, as the store has it."""
    return "" if dedup is None else f"{workflow}{_DEDUP_SEPARATOR}{dedup}"


def validate_start_key(value: str | int | None, option: str, subject: str) -> str | None:
    """A ``key`` or ``dedup`` as it was given. Raises ``UsageError``."""
    if value is None:
        return None
    try:
        text = validate_key(value, subject, option)
    except InputError as error:
        raise UsageError(str(error)) from None
    if not text and option == "dedup":
        raise UsageError(f"{subject}dedup={value!r} is empty: starts join the run that has the same, so give a text")
    return text


def validate_debounce(
    debounce: Duration | None, max_debounce: Duration | None, *, dedup: str | None, delay: float, subject: str
) -> tuple[float | None, float | None]:
    """For how long a start puts its run off, and for how long all of them may, in seconds. Raises ``UsageError``."""
    if debounce is None:
        if max_debounce is not None:
            raise UsageError(
                f"{subject}max_debounce={max_debounce!r} says how long debounce= may put a run off: give that, too"
            )
        return None, None
    if dedup is None:
        raise UsageError(
            f"{subject}debounce={debounce!r} puts off the run that has the same dedup= key, and none is given: "
            f".options(dedup='customer-7', debounce={debounce!r})"
        )
    if delay:
        raise UsageError(f"{subject}delay= and debounce= both say when the run begins: give one of them")
    seconds = duration_to_seconds(debounce, f"{subject}debounce")
    longest = MAX_DURATION_S if max_debounce is None else duration_to_seconds(max_debounce, f"{subject}max_debounce")
    if longest < seconds:
        raise UsageError(
            f"{subject}max_debounce={max_debounce!r} is shorter than debounce={debounce!r}: it is the longest time "
            "that a run "
            f"is put off altogether"
        )
    return seconds, longest
