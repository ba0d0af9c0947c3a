"""An execution that records the commands its workflow code issues.

The journal has no arguments of steps, so production does not notice a step that gets other arguments on replay.
``TracedExecution`` encodes the arguments at the moment of the call, because the objects may change afterwards. For a
child, it records the inputs and the run id.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from holdfast.authoring.introspection import resolve_hints
from holdfast.codec import InputsCodec, codec_for
from holdfast.core.commands import UNDECODED, Command, Outcome
from holdfast.core.execution import Execution
from holdfast.core.program_execution import ProgramExecution
from holdfast.core.records import Record, RecordKind
from holdfast.core.source_location import locate_await, locate_user_code
from holdfast.engine.definitions import ChildCall, StepCall, StepDefinition
from holdfast.engine.run_approvals import ApprovalCall
from holdfast.errors import CodecError, DefinitionError, InputError, RunParked


class IssuedCommand(NamedTuple):
    """A command that workflow code issued."""

    kind: RecordKind
    position: int
    name: str
    arguments: bytes | None
    """The encoded arguments of a step or of a child, or the approval request; ``None`` for other commands."""
    run_id: str = ""
    """The run that the command starts or waits for."""


class SwallowedPark(NamedTuple):
    """Code that caught ``RunParked`` when its run left memory, and did not raise it again."""

    waited_at: str = ""
    """Where the code waited, if it then returned."""
    continued_at: str = ""
    """Where the code issued another command, if it did."""


class TracedExecution(Execution):
    """A run in memory that remembers every command it issues and every record delivered to it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        main = self._main
        self._main = lambda: self._trace_main(main())
        self.issued: list[IssuedCommand] = []
        self.delivered_counts: list[int] = []
        """For each command: the number of records delivered before it."""
        self.swallowed_parks: list[SwallowedPark] = []
        self.step_definitions: dict[int, StepDefinition] = {}
        """The steps that were called, by position; compensations are steps."""
        self.compensated_positions: dict[int, int] = {}
        """The positions of compensated steps, by the positions of their compensations."""
        self._compensated_position = 0
        self._compensations.pop_step = partial(self._note_compensated, self._compensations.pop_step)
        self.delivered: list[Record] = []
        self.replayed_count = 0
        """Number of delivered records that came from the journal."""

    def issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """Remember the command, and issue it."""
        if not self.loop.is_closing:
            self._trace_command(kind, self.next_position, name, call)
        return super().issue(kind, name, call)

    def _trace_command(self, kind: RecordKind, position: int, name: str, call: Any) -> None:
        arguments, run_id = None, ""
        if isinstance(call, StepCall):
            arguments = encode_arguments(call)
            self.step_definitions[position] = call.step
        elif isinstance(call, ChildCall):
            arguments, run_id = None if call.make_run is None else call.make_run(0.0).inputs, call.run_id
        elif isinstance(call, ApprovalCall):
            arguments = repr((call.id, call.request, call.timeout_s)).encode()
        if kind is RecordKind.COMPENSATION:
            self.compensated_positions[position] = self._compensated_position
        self.delivered_counts.append(len(self.delivered))
        self.issued.append(IssuedCommand(kind, position, name, arguments, run_id))

    def _note_compensated(self, pop: Callable[[], tuple[Record, Any]]) -> tuple[Record, Any]:
        record, call = pop()
        self._compensated_position = record.position
        return record, call

    def deliver(self, record: Record, value: Any = UNDECODED) -> None:
        """Remember the record, and deliver it."""
        self.delivered.append(record)
        self.replayed_count += self.loop.is_replaying
        super().deliver(record, value)

    def unload(self) -> None:
        """Leave memory, and notice code that prevents that."""
        locations = {number: locate_await(task.get_coro()) for number, task in self.loop.live_tasks.items()}
        self._main_location = locations.get(next(iter(locations), 0), "")
        self._watch_for_swallowed_park()
        with warnings.catch_warnings():
            # A task that never ends is reported as a violation, so the loop need not warn about it.
            warnings.simplefilter("ignore", ResourceWarning)
            super().unload()
        swallowed = (locations.get(number) for number in self.loop.swallowed_task_numbers)
        self.swallowed_parks += [SwallowedPark(location) for location in swallowed if location]
        self.swallowed_parks = list(dict.fromkeys(self.swallowed_parks))

    async def _trace_main(self, main: Coroutine[Any, Any, Any]) -> Any:
        value = await main
        if self.loop.is_closing:
            self.swallowed_parks.append(SwallowedPark(self._main_location))
        return value

    def _watch_for_swallowed_park(self) -> None:
        """From now on, code that issues a command has caught ``RunParked``, unless the exception is being handled.

        It is being handled in a ``finally`` block and in the ``__aexit__`` of a task group, which may issue commands.
        After the workflow's own code has ended (when another exception replaced ``RunParked``), only the core issues
        commands.
        """
        for name in ("refuse_command", "create_future", "create_task"):
            method = getattr(self.loop, name)
            setattr(self.loop, name, partial(self._call_while_leaving, method))

    def _call_while_leaving(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.loop.is_closing and not self._has_code_ended and not _is_handling_park(sys.exception()):
            location = locate_user_code(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
            self.swallowed_parks.append(SwallowedPark(continued_at=location))
        return method(*args, **kwargs)


class TracedProgramExecution(TracedExecution, ProgramExecution):
    """The same for a program. Its commands are in the order of the program's calls, which may differ each time."""

    def issue(self, kind: RecordKind, name: str, call: Any) -> asyncio.Future[Outcome]:
        """Issue the command, and remember it with the position that its content decides."""
        command = ProgramExecution.issue(self, kind, name, call)
        if isinstance(command, Command):
            self._trace_command(kind, command.position, name, call)
        return command


def _is_handling_park(error: BaseException | None) -> bool:
    """Whether ``RunParked`` is being handled, or was when this error replaced it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, RunParked):
            return True
        seen.add(id(error))
        error = error.__context__
    return False


_codecs: dict[Callable[..., Any], InputsCodec | None] = {}


def encode_arguments(call: StepCall) -> bytes:
    """The arguments of a step's call as bytes that can be compared.

    An argument that cannot be encoded, such as a live client, is represented by its type.
    """
    step, args, kwargs = call
    if isinstance(step.function, partial):  # made for this call, with arguments from a model
        return _encode_each(step, args, kwargs)
    if step.function not in _codecs:
        signature = inspect.signature(step.function)
        try:
            _codecs[step.function] = InputsCodec(step.name, signature, resolve_hints(step.function))
        except DefinitionError:  # a parameter is declared as a live client
            _codecs[step.function] = None
    codec = _codecs[step.function]
    try:
        return _encode_each(step, args, kwargs) if codec is None else codec.encode(args, kwargs)
    except InputError:
        return _encode_each(step, args, kwargs)


def _encode_each(step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    codec = codec_for(Any)
    parts: list[bytes] = []
    for name, value in [*((str(at), value) for at, value in enumerate(args)), *sorted(kwargs.items())]:
        try:
            encoded = codec.encode(value, f"argument {name} of step {step.name!r}")
        except CodecError:
            encoded = f"<{type(value).__qualname__}>".encode()
        parts.append(name.encode() + b"=" + encoded)
    return b", ".join(parts)
