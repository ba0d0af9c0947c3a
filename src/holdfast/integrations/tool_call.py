"""A tool call of another framework as a recorded step of a program."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from holdfast.authoring.program_calls import open_in_place_call
from holdfast.codec import ValueCodec, codec_for, compute_content_digest, encode_error
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepDefinition
from holdfast.engine.in_place_call import InPlaceCall, StepFunction
from holdfast.engine.program_context import find_program
from holdfast.engine.program_run import CallContent
from holdfast.errors import UsageError
from holdfast.reports.observations import describe_tool_failure

T = TypeVar("T")

_ANY_CODEC = codec_for(Any)


class ToolFailed(Exception):
    """A tool has failed, and its framework has made an output for the model of that.

    A function that is executed as a tool call raises it, so that the call is recorded as failed. The caller of
    ``record_tool_call`` catches it, and passes the output on.

    Args:
        failure: what happened, for people.
        output: what the model gets, as JSON data.
    """

    def __init__(self, failure: str, output: Any) -> None:
        super().__init__(failure)
        self.output = output


async def record_tool_call(
    name: str,
    arguments: Mapping[str, Any],
    call: Callable[[], Awaitable[T]],
    *,
    call_id: str = "",
    effect: Effect | str = Effect.IDEMPOTENT,
    codec: ValueCodec = _ANY_CODEC,
    identity: object = None,
) -> T:
    """The result of a tool: the recorded one, or that of ``call``. Outside of programs, ``call`` is just awaited.

    A failure is recorded, too, and raised again. A ``once`` tool raises ``StepOutcomeUnknown`` if its process died
    while it ran: pass ``describe_failure`` of it to the model.

    Args:
        name: the tool's name.
        arguments: its arguments, as JSON data.
        call: executes the tool. Model calls, steps, and approvals in it are recorded as well.
        call_id: the id that the model gave to this call. Conversations show the result at the call with this id.
        effect: what the tool does to the world: ``read``, ``idempotent``, or ``once``.
        codec: how its result is recorded. The default records JSON data and a few more built-in types.
        identity: JSON data that, with its name, identifies the call (default: its arguments).
    """
    opened = _open_call(name, arguments, call_id, effect, codec, identity)
    return await call() if opened is None else await opened.call(call)


def record_tool_call_sync(
    name: str,
    arguments: Mapping[str, Any],
    call: Callable[[], T],
    *,
    call_id: str = "",
    effect: Effect | str = Effect.IDEMPOTENT,
    codec: ValueCodec = _ANY_CODEC,
    identity: object = None,
) -> T:
    """The same for code that is not async."""
    opened = _open_call(name, arguments, call_id, effect, codec, identity)
    return call() if opened is None else opened.call_sync(call)


def describe_failure(error: BaseException, name: str) -> str:
    """The failure of a tool as text for the model."""
    return describe_tool_failure(encode_error(error), name)


def _open_call(
    name: str, arguments: Mapping[str, Any], call_id: str, effect: Effect | str, codec: ValueCodec, identity: object
) -> InPlaceCall | None:
    program = find_program()
    if program is None:
        return None
    try:
        effect = Effect(effect)
    except ValueError:
        known = ", ".join(repr(one.value) for one in Effect)
        raise UsageError(f"tool {name!r}: effect={effect!r} is not one of {known}") from None
    parameters = tuple(arguments)

    def make_step(function: StepFunction) -> StepDefinition:
        return StepDefinition(name, function, True, codec, parameters, {}, effect=effect, is_tool=True)

    digest = compute_content_digest(dict(arguments) if identity is None else identity)
    content = CallContent(digest, partial(_get_details, call_id))
    return open_in_place_call(program, make_step, (), dict(arguments), content)


def _get_details(call_id: str, position: int) -> str:
    return json.dumps({"tool_call": call_id}) if call_id else ""
