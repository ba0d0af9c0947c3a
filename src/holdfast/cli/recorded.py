"""Recorded bytes as people and programs can read them. What cannot be read is said so, and stops nothing."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from holdfast.cli.wording import jsonable
from holdfast.client.agent_result import AgentResult, plain_result
from holdfast.codec import describe_error, preview, to_plain
from holdfast.core.records import Kind, Record
from holdfast.core.states import RunState
from holdfast.errors import CodecError

LARGE = 16 * 1024
"""Values above this size, in bytes, are not printed for people."""

_INTERNAL = re.compile(r"[/\\](holdfast[/\\](core|engine|authoring|agents|codec)|concurrent[/\\]futures)[/\\]")
"""What stands between the user's lines in a traceback: this package, and the pool that plain steps run in."""


@dataclass(frozen=True, slots=True)
class RecordedError:
    """A recorded exception."""

    type: str
    message: str
    traceback: str

    @property
    def in_short(self) -> str:
        """``ValueError: no``, without the class's module."""
        name = self.type.rpartition(".")[2]
        return f"{name}: {self.message}" if self.message else name


def error_of(data: bytes | None) -> RecordedError | None:
    """The recorded error, if there is one."""
    if data is None:
        return None
    try:
        info = describe_error(data)
    except CodecError as error:
        return RecordedError("holdfast.errors.UnreadableRecord", str(error), "")
    return RecordedError(info.type, info.message, info.traceback)


def failure_of(record: Record) -> RecordedError | None:
    """What a record failed with, if it did. Of another run, that is the error which that one ended with."""
    if record.ok:
        return None
    if record.kind is not Kind.CHILD or record.payload is None:
        return error_of(record.payload)
    try:
        told: Any = json.loads(record.payload)
        run_id, state, error = told["child"], RunState(told["state"]), told["error"]
    except (ValueError, TypeError, KeyError):
        return error_of(record.payload)  # it was not the run that failed, but its start
    if error not in (None, "null") and (fault := error_of(error.encode())) is not None:
        return fault
    name = "RunDead" if state is RunState.DEAD else "RunCancelled" if state is RunState.CANCELLED else "RunFailed"
    return RecordedError(f"holdfast.errors.{name}", f"run {run_id!r} ended {state}", "")


def own_frames(traceback: str) -> list[str]:
    """The places in a recorded traceback, with their lines of code, without those in Holdfast itself."""
    kept: list[str] = []
    keeping = False
    for line in traceback.splitlines():
        if line.startswith('  File "'):
            keeping = _INTERNAL.search(line) is None
        elif not line.startswith("    ") or not line.strip(" ^~"):
            continue
        if keeping:
            kept.append(line[2:])
    return kept


def plain_value(data: bytes) -> Any:
    """The recorded value as plain data; of an agent's result, its answer. Raises ``CodecError``."""
    value = plain_result(data)
    return cast("AgentResult[Any]", value).output if isinstance(value, AgentResult) else value


def value_of(data: bytes | None) -> Any:
    """The recorded value as JSON can say it; ``None`` for none."""
    if data is None:
        return None
    try:
        return jsonable(plain_value(data))
    except CodecError as error:
        return f"<{error}>"


def brief(data: bytes | None) -> str:
    """The recorded value in a few words; nothing for none."""
    if data is None:
        return ""
    try:
        value = plain_value(data)
    except CodecError as error:
        return f"<{error}>"
    return preview((), (value,), {})


def brief_inputs(data: bytes) -> str:
    """A run's inputs as ``customer='acme', n=3``; what looks like a credential is not shown."""
    try:
        value = to_plain(data)
    except CodecError as error:
        return f"<{error}>"
    return preview((), (), cast("dict[str, Any]", value)) if isinstance(value, dict) else brief(data)


def is_large(data: bytes | None) -> bool:
    """Whether a value is better told by its size."""
    return data is not None and len(data) > LARGE


def pretty(data: bytes) -> str:
    """The recorded value as indented JSON; the answer of an agent that is a text, as it is."""
    value = value_of(data)
    if isinstance(value, str) and is_agents(data):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False)


def is_agents(data: bytes) -> bool:
    """Whether this is the recorded result of an agent."""
    try:
        return isinstance(plain_result(data), AgentResult)
    except CodecError:
        return False
