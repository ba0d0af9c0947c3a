"""What can be told of a run without its code."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from holdfast.client.agent_result import AgentResult, plain_result
from holdfast.client.stalls import Surroundings, look_around, why_stalled
from holdfast.codec import describe_error, shown_if_sealed, shown_text, to_plain
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.operations import Cancel, Run


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What can be told of a run without its code. For what is sealed with a key that is not here, words stand."""

    id: str
    workflow: str
    state: RunState
    queue: str
    queue_key: str
    """Whose it is among the runs of its queue; empty if it has no key."""
    created_at: datetime
    finished_at: datetime | None
    inputs: Any
    output: Any
    error: str | None
    """Type and message of the exception that a failed or dead run ended with."""
    waits_for: str
    tags: tuple[str, ...]
    paused: bool
    """Somebody has paused it."""
    cancelling: bool
    """Somebody has asked for it to be cancelled, and it has not ended yet."""
    parent: str | None
    """The id of the run that started it."""
    forked_from: str | None
    """The id of the run whose beginning it shares."""
    version: str
    """The version of its workflow, whose code takes it up; empty if it has none."""
    stalled: str | None
    """Why it does not go on, in a sentence that says what to do about it: it is paused, its workflow is switched off,
    no live worker serves its workflow, its version or its queue, or the limits of its queue keep it waiting. ``None``
    if nothing keeps it from going on."""

    @classmethod
    def of(cls, run: Run, around: Surroundings | None) -> RunInfo:
        """From a run's row, and what is around it if it has not ended."""
        error = None
        if run.error is not None and (error := shown_if_sealed(run.error)) is None:
            fault = describe_error(run.error)
            error = f"{fault.type}: {fault.message}"
        return cls(
            id=run.id,
            workflow=run.workflow,
            state=run.state,
            queue=run.queue,
            queue_key=run.queue_key,
            created_at=datetime.fromtimestamp(run.created_at, UTC),
            finished_at=None if run.finished_at is None else datetime.fromtimestamp(run.finished_at, UTC),
            inputs=shown_if_sealed(run.inputs) or to_plain(run.inputs),
            output=None if run.output is None else _output(run.output),
            error=error,
            waits_for=shown_text(run.waits_for) if run.state is RunState.WAITING else "",
            tags=run.tags,
            paused=run.paused_at is not None,
            cancelling=run.cancel is not Cancel.NO and not run.state.is_terminal,
            parent=run.parent or None,
            forked_from=run.forked_from or None,
            version=run.version,
            stalled=None if around is None else why_stalled(run, around),
        )


class Readable(Protocol):
    """Who can read a run, and what is around it."""

    async def store(self) -> Store:
        """The store, open."""
        ...

    async def read(self, run_id: str) -> Run:
        """The run's row now; ``RunNotFound`` if there is none."""
        ...


async def info_of(reach: Readable, run_id: str) -> RunInfo:
    """What can be told of a run now."""
    run = await reach.read(run_id)
    return RunInfo.of(run, None if run.state.is_terminal else await look_around(await reach.store(), [run]))


def _output(payload: bytes) -> Any:
    """The output of a run as plain data: of an agent, its answer."""
    if (words := shown_if_sealed(payload)) is not None:
        return words
    result = plain_result(payload)
    return result.output if isinstance(result, AgentResult) else result  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
