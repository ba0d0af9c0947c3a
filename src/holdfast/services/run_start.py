"""Starting a run: its identity, and what happens if a run with this identity exists already.

With an id, given or from the workflow's template, a start joins an unfinished run, and returns the recorded result of a
completed one. If that run failed, was cancelled, or is dead, the start raises an error that points to ``retry``; it
also raises if the inputs differ. Without an id, a start joins a run of the same workflow with equal inputs if the
process that started it is dead: a script that is killed and run again pays once. With a ``dedup`` key, a start joins an
unfinished run of the same workflow, queue, and key, whatever its inputs.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection, Mapping
from typing import Any

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.codec import DEFAULT_MAX_VALUE_BYTES, compute_digest, decode_plain, render_run_id, validate_size
from holdfast.codec.run_ids import MAX_ID_LENGTH
from holdfast.core.immutable import immutable
from holdfast.core.seeded_random import SEED_BYTES
from holdfast.core.states import RunState
from holdfast.errors import InputError, RunConflict, UnknownWorkflow, UsageError
from holdfast.services.lookup import suggest_name
from holdfast.services.queue_options import (
    declare_queue,
    make_dedup_key,
    resolve_queue_key,
    validate_debounce,
    validate_start_key,
)
from holdfast.services.run_outcome import make_unsuccessful_error
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.erasure import is_erased
from holdfast.stores.operations import NewRun, OpResult, OpStatus, Run, StartResult
from holdfast.stores.run_errors import make_disabled_error, make_erased_error
from holdfast.stores.served_versions import find_spec_to_start, list_announced_specs
from holdfast.trace_context import get_current_trace_parent

MAX_PRIORITY = 2**31 - 1
"""The lowest priority is the negative of this. Every store can order these numbers."""


@immutable
class StartOptions:
    """How a run is started, apart from its inputs."""

    id: str | None = None
    queue: str | Queue | None = None
    key: str | None = None
    """Its key in the queue. Default: from a template, if there is one."""
    delay_s: float = 0.0
    priority: int = 0
    tags: tuple[str, ...] = ()
    new: bool = False
    budget: Budget | None = None
    max_deliveries: int | None = None
    version: str | None = None
    """For a start by name. Default: the newest version that is served."""
    dedup: str | None = None
    debounce_s: float | None = None
    max_debounce_s: float | None = None

    @property
    def queue_name(self) -> str | None:
        """The name of the queue; ``None``: that of the workflow."""
        return self.queue.name if isinstance(self.queue, Queue) else self.queue


def make_start_options(
    subject: str,
    *,
    id: str | None = None,
    queue: str | Queue | None = None,
    key: str | int | None = None,
    delay: Duration = 0.0,
    priority: int = 0,
    tags: Collection[str] = (),
    new: bool = False,
    budget: Budget | None = None,
    max_deliveries: int | None = None,
    version: str | None = None,
    dedup: str | int | None = None,
    debounce: Duration | None = None,
    max_debounce: Duration | None = None,
) -> StartOptions:
    """Options with checked values. Raises ``UsageError``, whose message begins with ``subject``."""
    if isinstance(tags, str):
        raise UsageError(f"{subject}tags is a collection of words, not one string: tags=[{tags!r}]")
    if queue is not None:
        declare_queue(queue)
    dedup_text = validate_start_key(dedup, "dedup", subject)
    if dedup_text is not None and id is not None:
        raise UsageError(
            f"{subject}id={id!r} and dedup={dedup!r} name two runs to join: an id stands for one run, also after its "
            f"end, and dedup for whichever is unfinished. Give one of them"
        )
    if dedup_text is not None and new:
        raise UsageError(
            f"{subject}new=True starts another run, and dedup={dedup!r} joins the one that is there: choose"
        )
    delay_s = duration_to_seconds(delay, f"{subject}delay", may_be_zero=True)
    debounce_s, max_debounce_s = validate_debounce(
        debounce, max_debounce, dedup=dedup_text, delay=delay_s, subject=subject
    )
    return StartOptions(
        id=id,
        queue=queue,
        key=validate_start_key(key, "key", subject),
        delay_s=delay_s,
        priority=validate_priority(priority, subject),
        tags=tuple(tags),
        new=new,
        budget=budget,
        max_deliveries=validate_max_deliveries(max_deliveries, subject),
        version=version,
        dedup=dedup_text,
        debounce_s=debounce_s,
        max_debounce_s=max_debounce_s,
    )


async def find_spec(store: Store, workflow: str, version: str | None = None) -> WorkflowSpec:
    """The announced version of a workflow that a start by name uses. Raises ``UnknownWorkflow``."""
    spec = await find_spec_to_start(store, workflow, version)
    if spec is not None:
        return spec
    specs = await store.get_workflow_specs()
    if versions := list_announced_specs(workflow, specs):
        known = ", ".join(repr(one.version) for one in versions)
        raise UnknownWorkflow(
            f"no worker has announced version {version!r} of workflow {workflow!r} to {store.url} (known: {known}). "
            f"A version is announced when a worker that has it starts: `holdfast worker MODULE`."
        )
    names = sorted({one.name for one in specs.values()})
    raise UnknownWorkflow(
        f"no worker has announced a workflow {workflow!r} to {store.url}: {suggest_name(workflow, names)} "
        f"A workflow is announced when a worker that knows it starts: `holdfast worker MODULE`."
    )


def build_new_run(
    spec: WorkflowSpec,
    inputs: bytes,
    options: StartOptions,
    *,
    now: float,
    starter: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    max_value: int = DEFAULT_MAX_VALUE_BYTES,
) -> NewRun:
    """The new run to write. Raises ``UsageError`` or ``InputError``."""
    validate_size(inputs, f"the inputs of workflow {spec.name!r}", max_value)
    run_id = options.id
    if options.dedup is not None and spec.id_template is not None:
        raise UsageError(
            f"workflow {spec.name!r} has the id template {spec.id_template!r}, so that a start joins the run with the "
            f"same inputs, also after its end; dedup={options.dedup!r} would join one with others. Leave dedup= "
            f"out, or let the workflow have no id="
        )
    if run_id is None and spec.id_template is not None:
        run_id = render_run_id(spec.id_template, inputs, spec.name, defaults or {})
    generated = run_id is None
    if run_id is None:
        run_id = f"{spec.name}-{generate_id_suffix(now)}"
    else:
        validate_run_id(run_id)
    delay = max(0.0, options.delay_s if options.debounce_s is None else options.debounce_s)
    return NewRun(
        id=run_id,
        workflow=spec.name,
        inputs=inputs,
        digest=compute_digest(inputs),
        seed=secrets.token_bytes(SEED_BYTES),
        created_at=now,
        queue=options.queue_name or spec.queue,
        available_at=now + delay if delay else 0.0,
        priority=options.priority,
        deadline=None if spec.timeout_s is None else now + delay + spec.timeout_s,
        max_deliveries=spec.max_deliveries if options.max_deliveries is None else options.max_deliveries,
        tags=tuple(dict.fromkeys((*spec.tags, *options.tags))),
        has_generated_id=generated,
        starter=starter,
        python_version=f"{sys.version_info.major}.{sys.version_info.minor}",
        budget=spec.budget if options.budget is None else options.budget.to_limits(),
        session=get_session(spec, inputs),
        version=spec.version,
        queue_key=resolve_queue_key(options.queue, options.key, spec, inputs, defaults or {}),
        dedup_key=make_dedup_key(spec.name, options.dedup),
        max_debounce_s=options.max_debounce_s,
        is_delivery=spec.is_address,
        trace_parent=get_current_trace_parent(),
    )


def generate_id_suffix(now: float) -> str:
    """The end of a generated id. It begins with the time, so that successive ids are neighbors in an index."""
    return f"{int(now * 1000):x}-{secrets.token_hex(5)}"


def validate_run_id(run_id: str) -> str:
    """The id, if a run may have it. Raises ``UsageError``."""
    if not run_id or len(run_id) > MAX_ID_LENGTH or not run_id.isprintable():
        raise UsageError(f"a run's id has 1 to {MAX_ID_LENGTH} printable characters, not {run_id[:50]!r}")
    return run_id


def validate_max_deliveries(value: int | None, subject: str) -> int | None:
    """The number of worker deaths that make a run dead, if given. Raises ``UsageError`` unless it is 1 or more."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{subject}max_deliveries={value!r} must be a whole number, 1 or more")
    return value


def validate_priority(value: int, subject: str) -> int:
    """The priority, if every store can store it. Raises ``UsageError``."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_PRIORITY:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"{subject}priority={value!r} must be a whole number, from {-MAX_PRIORITY:,} to {MAX_PRIORITY:,}: "
            f"the higher goes first"
        )
    return value


def get_session(spec: WorkflowSpec, inputs: bytes) -> str:
    """The session that a run of an agent continues, from its inputs; empty if it has none."""
    if not spec.is_agent:
        return ""
    given = decode_plain(inputs)
    session = given.get("session") or "" if isinstance(given, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(session, str) or len(session) > MAX_ID_LENGTH:
        raise InputError(
            f"session={session!r:.60} of agent {spec.name!r}: a text of at most {MAX_ID_LENGTH} characters"
        )
    return session


def resolve_start(result: OpResult, new: NewRun, *, join_unsuccessful: bool = False) -> Run:
    """The run that the caller gets: the new one, or an existing one that may be joined.

    ``join_unsuccessful``: an existing run may be joined even if it ended without a result.
    """
    if result is OpStatus.WORKFLOW_DISABLED:
        raise make_disabled_error(new.workflow, f"run {new.id!r} was not started")
    assert isinstance(result, StartResult)
    run = result.run
    if result.is_new or result.is_deduplicated:
        return run
    check_same_run(run, new)
    if run.state.is_terminal and run.state is not RunState.COMPLETED and not join_unsuccessful:
        raise make_unsuccessful_error(run)
    return run


def check_same_run(run: Run, new: NewRun) -> None:
    """Raise ``RunConflict`` if the existing run has another workflow or other inputs."""
    if run.workflow != new.workflow:
        raise RunConflict(
            f"the id {run.id!r} belongs to a run of workflow {run.workflow!r}, not {new.workflow!r}", run.id
        )
    if is_erased(run):
        raise make_erased_error(run.id)
    if run.digest != new.digest:
        raise RunConflict(
            f"run {run.id!r} of workflow {run.workflow!r} was started with other inputs. An id stands for one set of "
            f"inputs: "
            f"use another id (an `id=` template that names every input that matters, or `.options(id=...)`).",
            run.id,
        )
