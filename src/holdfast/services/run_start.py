"""What it means to start a run: its identity, and what happens when a run of that identity is there already.

With an id (given, or made from the workflow's template): an unfinished run is joined, a completed one returns its
recorded result, a failed, cancelled or dead one is an error that names ``retry``, and other inputs under the same id
are an error. Without an id, a run whose starter process is dead is joined if it is of the same workflow with equal
inputs: a script that is killed and run again pays once. With a ``dedup`` key, an unfinished run of the same workflow,
queue and key is joined, whatever its inputs.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.admission.durations import Duration, duration_to_seconds
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget
from holdfast.codec import LARGEST, check_size, digest, render_id, to_plain
from holdfast.codec.run_ids import LONGEST_ID
from holdfast.core.states import RunState
from holdfast.errors import InputError, RunConflict, UnknownWorkflow, UsageError
from holdfast.services.lookup import alike
from holdfast.services.queue_options import checked_debounce, checked_text, declare, dedup_in_store, key_in
from holdfast.services.run_outcome import unsuccessful
from holdfast.stores.contract import Store, WorkflowSpec
from holdfast.stores.operations import Answer, NewRun, Run, Started, Verdict
from holdfast.stores.rules import switched_off
from holdfast.stores.served_versions import announced, spec_to_start

HIGHEST_PRIORITY = 2**31 - 1
"""And the lowest has as many below zero: every store can order these."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """How a run is started, beside its inputs."""

    id: str | None = None
    queue: str | Queue | None = None
    key: str | None = None
    """Its key in the queue, if not what a template says."""
    delay: float = 0.0
    priority: int = 0
    tags: tuple[str, ...] = ()
    new: bool = False
    budget: Budget | None = None
    max_deliveries: int | None = None
    version: str | None = None
    """For those who start by name: which version, if not the newest that is served."""
    dedup: str | None = None
    debounce: float | None = None
    debounce_most: float | None = None

    @property
    def queue_name(self) -> str | None:
        """The name of the queue; ``None``: the workflow's own."""
        return self.queue.name if isinstance(self.queue, Queue) else self.queue


def start_options(
    where: str,
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
    debounce_most: Duration | None = None,
) -> StartOptions:
    """Options as they were given. Raises ``UsageError``, which begins with ``where``."""
    if isinstance(tags, str):
        raise UsageError(f"{where}tags is a collection of words, not one string: tags=[{tags!r}]")
    if queue is not None:
        declare(queue)
    joins = checked_text(dedup, "dedup", where)
    if joins is not None and id is not None:
        raise UsageError(
            f"{where}id={id!r} and dedup={dedup!r} name two runs to join: an id stands for one run, also after its "
            f"end, and dedup for whichever is unfinished. Give one of them"
        )
    if joins is not None and new:
        raise UsageError(f"{where}new=True starts another run, and dedup={dedup!r} joins the one that is there: choose")
    delay_s = duration_to_seconds(delay, f"{where}delay", may_be_zero=True)
    puts_off, most = checked_debounce(debounce, debounce_most, dedup=joins, delay=delay_s, where=where)
    return StartOptions(
        id=id,
        queue=queue,
        key=checked_text(key, "key", where),
        delay=delay_s,
        priority=checked_priority(priority, where),
        tags=tuple(tags),
        new=new,
        budget=budget,
        max_deliveries=checked_deliveries(max_deliveries, where),
        version=version,
        dedup=joins,
        debounce=puts_off,
        debounce_most=most,
    )


async def find_spec(store: Store, workflow: str, version: str | None = None) -> WorkflowSpec:
    """What was announced of a workflow, in the version that a start by name means. Raises ``UnknownWorkflow``."""
    spec = await spec_to_start(store, workflow, version)
    if spec is not None:
        return spec
    specs = await store.specs()
    if versions := announced(workflow, specs):
        known = ", ".join(repr(one.version) for one in versions)
        raise UnknownWorkflow(
            f"no worker has announced version {version!r} of workflow {workflow!r} to {store.url} (known: {known}). "
            f"A version is announced when a worker that has it starts: `holdfast worker module:{workflow}`."
        )
    names = sorted({one.name for one in specs.values()})
    raise UnknownWorkflow(
        f"no worker has announced a workflow {workflow!r} to {store.url}: {alike(workflow, names)} "
        f"A workflow is announced when a worker that knows it starts: `holdfast worker module:{workflow}`."
    )


def new_run(
    spec: WorkflowSpec,
    inputs: bytes,
    options: StartOptions,
    *,
    now: float,
    starter: int | None = None,
    defaults: Mapping[str, Any] | None = None,
    max_value: int = LARGEST,
) -> NewRun:
    """All that is to be written of a new run."""
    check_size(inputs, f"the inputs of workflow {spec.name!r}", max_value)
    run_id = options.id
    if options.dedup is not None and spec.id_template is not None:
        raise UsageError(
            f"workflow {spec.name!r} has the id template {spec.id_template!r}, so that a start joins the run with the "
            f"same inputs, also after its end; dedup={options.dedup!r} would join one with others. Leave dedup= "
            f"out, or let the workflow have no id="
        )
    if run_id is None and spec.id_template is not None:
        run_id = render_id(spec.id_template, inputs, spec.name, defaults or {})
    generated = run_id is None
    if run_id is None:
        # Begins with the time, so that ids made one after the other lie side by side in an index.
        run_id = f"{spec.name}-{int(now * 1000):x}-{secrets.token_hex(5)}"
    else:
        checked_id(run_id)
    delay = max(0.0, options.delay if options.debounce is None else options.debounce)
    return NewRun(
        id=run_id,
        workflow=spec.name,
        inputs=inputs,
        digest=digest(inputs),
        seed=secrets.token_bytes(16),
        created_at=now,
        queue=options.queue_name or spec.queue,
        available_at=now + delay if delay else 0.0,
        priority=options.priority,
        deadline=None if spec.timeout is None else now + delay + spec.timeout,
        max_deliveries=spec.max_deliveries if options.max_deliveries is None else options.max_deliveries,
        tags=tuple(dict.fromkeys((*spec.tags, *options.tags))),
        generated_id=generated,
        starter=starter,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        budget=spec.budget if options.budget is None else options.budget.limits(),
        session=session_of(spec, inputs),
        version=spec.version,
        queue_key=key_in(options.queue, options.key, spec, inputs, defaults or {}),
        dedup=dedup_in_store(spec.name, options.dedup),
        put_off_most=options.debounce_most,
        by_delivery=spec.by_delivery,
    )


def checked_id(run_id: str) -> str:
    """An id that a run may have. Raises ``UsageError``."""
    if not run_id or len(run_id) > LONGEST_ID or not run_id.isprintable():
        raise UsageError(f"a run's id has 1 to {LONGEST_ID} printable characters, not {run_id[:50]!r}")
    return run_id


def checked_deliveries(given: int | None, where: str) -> int | None:
    """How many deaths make a run dead, if that is said: a whole number, 1 or more. Raises ``UsageError``."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{where}max_deliveries={given!r} must be a whole number, 1 or more")
    return given


def checked_priority(given: int, where: str) -> int:
    """Which goes first: a whole number that every store can keep. Raises ``UsageError``."""
    if isinstance(given, bool) or not isinstance(given, int) or abs(given) > HIGHEST_PRIORITY:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"{where}priority={given!r} must be a whole number, from {-HIGHEST_PRIORITY:,} to {HIGHEST_PRIORITY:,}: "
            f"the higher goes first"
        )
    return given


def session_of(spec: WorkflowSpec, inputs: bytes) -> str:
    """The conversation that a run of an agent continues: one of its inputs."""
    if not spec.is_agent:
        return ""
    given = to_plain(inputs)
    session = given.get("session") or "" if isinstance(given, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(session, str) or len(session) > LONGEST_ID:
        raise InputError(f"session={session!r:.60} of agent {spec.name!r}: a text of at most {LONGEST_ID} characters")
    return session


def accept(answer: Answer, new: NewRun, *, unsuccessful_too: bool = False) -> Run:
    """The run that the caller gets: the new one, or the one that was there and may be joined.

    ``unsuccessful_too``: also one that has ended without a result.
    """
    if answer is Verdict.SWITCHED_OFF:
        raise switched_off(new.workflow, f"run {new.id!r} was not started")
    assert isinstance(answer, Started)
    run = answer.run
    if answer.created or answer.deduplicated:
        return run
    check_same(run, new)
    if run.state.is_terminal and run.state is not RunState.COMPLETED and not unsuccessful_too:
        raise unsuccessful(run)
    return run


def check_same(run: Run, new: NewRun) -> None:
    """Refuse a run that was there under the id, and is another one than was meant."""
    if run.workflow != new.workflow:
        raise RunConflict(
            f"the id {run.id!r} belongs to a run of workflow {run.workflow!r}, not {new.workflow!r}", run.id
        )
    if run.digest != new.digest:
        raise RunConflict(
            f"run {run.id!r} of workflow {run.workflow!r} was started with other inputs. An id stands for one set of "
            f"inputs: "
            f"use another id (an `id=` template that names every input that matters, or `.options(id=...)`).",
            run.id,
        )
