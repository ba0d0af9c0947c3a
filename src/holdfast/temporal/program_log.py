"""The journal of a program's run, for its driver: operations become updates of the run's workflow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from temporalio.client import (
    Client,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import RawValue
from temporalio.service import RPCError, RPCStatusCode

from holdfast.codec import decode_error, validate_size
from holdfast.core.records import Record
from holdfast.errors import StoreUnavailable
from holdfast.stores.operations import AppendRecord, Op, OpResult, OpStatus
from holdfast.stores.temporal import identifiers
from holdfast.stores.temporal.errors import translate_errors
from holdfast.stores.temporal.program_updates import (
    MessagesAnswer,
    ProgramSender,
    encode_operations,
    encode_request,
)
from holdfast.stores.temporal.targets import Target

T = TypeVar("T")

MAX_UPDATE_BYTES = 1_500_000
"""The most bytes of values in one update; a larger value is alone in its update. Temporal accepts 4 MB."""

OPERATION_BYTES = 500
"""The estimated size of an operation without its value."""


class ProgramLog:
    """The updates of one execution of a program.

    Args:
        client: the connection to Temporal.
        target: the server, for error messages.
        run_id: the run.
        execution_id: Temporal's run id of its execution.
        sender: who sends the updates.
        max_value: the largest value that can be recorded, in bytes.
    """

    def __init__(
        self,
        client: Client,
        target: Target,
        run_id: str,
        execution_id: str,
        sender: ProgramSender,
        max_value: int,
    ) -> None:
        self.next: str = ""
        """What the run has to do next because of its long history: see ``LiveProgram``."""
        self._target = target
        self._sender = sender
        self._max_value = max_value
        self._handle: WorkflowHandle[Any, Any] = client.get_workflow_handle(run_id, run_id=execution_id)

    async def send(self, ops: Sequence[Op]) -> list[OpResult | BaseException]:
        """Perform operations of the driver; ``FENCED`` if another worker executes the program, or the run has ended."""
        answers: list[OpResult | BaseException] = []
        for part in _split(ops, self._max_value):
            answer = await self._update(identifiers.RECORD_UPDATE, encode_operations(self._sender, part))
            if answer is None:
                return [*answers, *(OpStatus.FENCED for _ in ops[len(answers) :])]
            self.next = answer["next"]
            answers += map(_decode_answer, answer["answers"])
        return answers

    async def request_messages(self, after: int, *, should_wait: bool) -> MessagesAnswer:
        """The messages after this number; with ``should_wait``, when there are some."""
        args = encode_request(self._sender, after, should_wait=should_wait)
        answer = await self._update(identifiers.MESSAGES_UPDATE, args, RawValue)
        return MessagesAnswer(is_fenced=True) if answer is None else MessagesAnswer.decode(answer.payload)

    async def _update(self, name: str, args: list[RawValue], result_type: type | None = None) -> Any:
        """The answer of the workflow; ``None`` if it has ended."""
        with translate_errors(self._target):
            return await _unless_ended(
                lambda: self._handle.execute_update(name, args=args, result_type=result_type)  # pyright: ignore
            )


async def _unless_ended(call: Callable[[], Awaitable[T]]) -> T | None:
    try:
        return await call()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None
        raise
    except WorkflowUpdateFailedError:
        return None  # the workflow ended before it answered
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise StoreUnavailable(f"Temporal has not answered in time: {error}") from error


def _split(ops: Sequence[Op], max_value: int) -> list[list[Op]]:
    """These operations in parts that fit into a message. Raises ``ValueTooLarge``."""
    parts: list[list[Op]] = []
    size = 0
    for op in ops:
        op_size = OPERATION_BYTES
        if isinstance(op, AppendRecord):
            validate_size(op.record.payload or b"", _describe(op.record), max_value)
            op_size += len(op.record.payload or b"")
        size += op_size
        if not parts or size > MAX_UPDATE_BYTES:
            parts.append([])
            size = op_size
        parts[-1].append(op)
    return parts


def _describe(record: Record) -> str:
    return f"the {record.kind.label} record of {record.name!r}"


def _decode_answer(answer: str | dict[str, str]) -> OpResult | BaseException:
    return decode_error(answer["error"].encode(), ()) if isinstance(answer, dict) else OpStatus(answer)
