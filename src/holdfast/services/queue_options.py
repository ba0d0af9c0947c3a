"""Options of a start about its queue: the queue itself, the key of the run in it, and the key to join a run by.

A ``Queue`` that is used anywhere in a process is *declared*: an opened runtime announces it, and a client announces it
before its first start with it. There is one set of limits for each name, so the limits in effect do not depend on
which process came last.
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
"""The limits of all queues that this process declared, by name."""
_declared_queues: dict[str, Queue] = {}

_DEDUP_SEPARATOR = "\x1f"
"""Between the workflow and the dedup key: starts of different workflows do not join each other."""


def declare_queue(queue: str | Queue) -> str:
    """The name of a queue; a ``Queue`` is declared. Raises ``UsageError``."""
    if not isinstance(queue, Queue):
        return validate_queue_name(queue)
    known = _declared_queues.get(queue.name)
    if known is not None and known.limits != queue.limits and not _is_same_location(known, queue):
        raise UsageError(
            f"two queues are named {queue.name!r}, with different limits: {known.source_location} "
            f"({known.limits.describe()}) and {queue.source_location} ({queue.limits.describe()}). Make one Queue, and "
            "name that in both places; or give one of them another name"
        )
    _declared_queues[queue.name] = queue
    declared_limits[queue.name] = queue.limits
    return queue.name


def clear_declarations() -> None:
    """Forget all declared queues, for tests."""
    _declared_queues.clear()
    declared_limits.clear()


def _is_same_location(one: Queue, other: Queue) -> bool:
    """Whether it is the same declaration, which may have changed: a reloaded module, or a notebook cell."""
    return (
        one.source_location == other.source_location
        or other.source_location.startswith("<")
        or "ipykernel" in other.source_location
    )


def get_key_template(queue: Queue, spec: WorkflowSpec, defaults: Mapping[str, object]) -> str | None:
    """The template for the keys of a workflow's runs in a queue. Raises ``InputError`` if it is invalid for it."""
    if queue.key is None:
        return None
    takes_any = any(name.startswith("**") for name in spec.parameters)
    return prepare_key_template(queue.key, spec.parameters, defaults, accepts_any=takes_any)


def resolve_queue_key(
    queue: str | Queue | None, key: str | None, spec: WorkflowSpec, inputs: bytes, defaults: Mapping[str, Any]
) -> str:
    """The key of a run in its queue; empty if it has none."""
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
    """The stored form of a dedup key."""
    return "" if dedup is None else f"{workflow}{_DEDUP_SEPARATOR}{dedup}"


def validate_start_key(value: str | int | None, option: str, subject: str) -> str | None:
    """The value of ``key`` or ``dedup`` as text. Raises ``UsageError``."""
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
    """How long a start delays its run, and how long all starts together may, in seconds. Raises ``UsageError``."""
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
            f"that a run is put off altogether"
        )
    return seconds, longest
