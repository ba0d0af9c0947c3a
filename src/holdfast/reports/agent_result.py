"""The result of an agent's run: the answer, and the usage.

The recorded form is ``{"$agent": 1, "run_id": ..., "usage": {...}, "output": ...}``, with the output in the form of its
own codec. ``finish_reason`` and ``refusal`` are added if the answer did not end normally. A client without the agent's
code reads the same record, with the output as plain data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from holdfast.admission.usage import Usage
from holdfast.codec import ValueCodec, decode_plain
from holdfast.codec.formatting import capitalize_first
from holdfast.errors import UnreadableRecord, UnrecordableValue, UsageError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

T = TypeVar("T")

FINISH_STOP = "stop"
"""The finish reason of a complete answer."""

AGENT_RESULT_PREFIX = b'{"$agent":1,'
"""The beginning of every recorded result."""
_OUTPUT_KEY = b',"output":'


@dataclass(frozen=True, slots=True)
class AgentResult(Generic[T]):
    """The result of an agent's run."""

    output: T
    """The answer, of the agent's ``output_type``."""
    usage: Usage
    """What its model calls used, with those of its sub-agents."""
    run_id: str
    finish_reason: str = FINISH_STOP
    """Why the model stopped: ``stop``; ``length``, if the answer was cut off at the token limit; or
    ``content_filter``, if the provider's filter, or the model itself, cut it off."""
    refusal: str = ""
    """The words in which the model refuses to answer, or to continue."""
    loaded_messages: Sequence[ModelMessage] | None = field(default=None, repr=False, compare=False)
    history_count: int = field(default=0, repr=False, compare=False)
    """Number of messages from before this run."""

    @property
    def cost(self) -> Decimal | None:
        """The cost in dollars; ``None`` if the price is unknown (``usage.unpriced`` counts these calls)."""
        return self.usage.cost

    @property
    def messages(self) -> list[ModelMessage]:
        """The whole conversation, to read, or to pass to another run as ``message_history``."""
        if self.loaded_messages is None:
            raise UsageError(
                f"the messages of run {self.run_id!r} were not loaded with its result: they are after `await "
                f"agent.run(...)` and `await handle.result()` outside workflow code"
            )
        return list(self.loaded_messages)

    @property
    def new_messages(self) -> list[ModelMessage]:
        """The messages of this run only."""
        return self.messages[self.history_count :]


class AgentResultCodec(ValueCodec):
    """Records the result of an agent; the answer has a codec of its own."""

    __slots__ = ("_output_codec",)

    def __init__(self, output_codec: ValueCodec) -> None:
        self.annotation = AgentResult
        self._output_codec = output_codec

    def round_trip(self, value: object, subject: str) -> tuple[bytes, object]:
        """The bytes to record, and the result decoded from them."""
        if not isinstance(value, AgentResult):
            raise UnrecordableValue(f"{capitalize_first(subject)} is not the result of an agent, but {type(value)}.")
        result = cast("AgentResult[Any]", value)
        inner = self._output_codec.encode(result.output, subject)
        used = {name: amount for name, amount in asdict(result.usage).items() if amount}
        fields: dict[str, Any] = {"run_id": result.run_id, "usage": used}
        if result.finish_reason != FINISH_STOP:
            fields["finish_reason"] = result.finish_reason
        if result.refusal:
            fields["refusal"] = result.refusal
        head = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
        data = AGENT_RESULT_PREFIX + head[1:-1].encode() + _OUTPUT_KEY
        try:
            json.loads(inner)
        except ValueError:  # not every codec writes JSON
            inner = json.dumps({"$bytes": inner.decode()}).encode()
        data += inner + b"}"
        return data, self.decode(data, subject)

    def decode(self, data: bytes, subject: str) -> AgentResult[Any]:
        """The result, with the answer in its declared type."""
        result = _decode_agent_result(data, lambda inner: self._output_codec.decode(inner, subject))
        if result is None:
            raise UnreadableRecord(f"{capitalize_first(subject)} is not the result of an agent.")
        return result


def is_agent_result(payload: bytes) -> bool:
    """Whether this is the recorded result of an agent."""
    return payload.startswith(AGENT_RESULT_PREFIX)


def decode_plain_result(payload: bytes) -> Any:
    """The result of any run, without its code: plain data, or an ``AgentResult`` with plain data in it."""
    result = _decode_agent_result(payload, decode_plain)
    return decode_plain(payload) if result is None else result


def decode_plain_output(payload: bytes) -> Any:
    """The output of any run as plain data; for an agent, its answer."""
    result = _decode_agent_result(payload, decode_plain)
    return decode_plain(payload) if result is None else result.output


def _decode_agent_result(payload: bytes, decode_output: Callable[[bytes], Any]) -> AgentResult[Any] | None:
    if not is_agent_result(payload):
        return None
    # Only numbers and texts come before it, and quotes in texts are escaped, so the first match is the key.
    head, _, inner = payload[:-1].partition(_OUTPUT_KEY)
    fields: dict[str, Any] = json.loads(head + b"}")
    if inner.startswith(b'{"$bytes":'):
        inner = json.loads(inner)["$bytes"].encode()
    usage = Usage(**{name: amount for name, amount in fields["usage"].items() if name in Usage.__dataclass_fields__})
    finish_reason, refusal = fields.get("finish_reason", FINISH_STOP), fields.get("refusal", "")
    return AgentResult(decode_output(inner), usage, fields["run_id"], finish_reason, refusal)
