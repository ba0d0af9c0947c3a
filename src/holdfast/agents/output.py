"""The answer of a model: a text, or a value of a declared type.

A text is the answer of a model that calls no tools. For any other type, the model gets one more tool, ``final_result``,
whose arguments are the answer. A type that is not a JSON object is wrapped as ``{"response": value}``. An answer that
does not fit is not a failure: ``get_feedback`` says what is wrong with it, in words for the model.

An answer that contains a valid ``final_result`` is final, whatever else the model calls in the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError
from pydantic_core import from_json, to_json

from holdfast.agents.tool_parameters import RawArguments
from holdfast.codec import codec_for
from holdfast.codec.formatting import format_type, location_to_path
from holdfast.errors import DefinitionError, UnreadableRecord
from holdfast.reports.recorded_reply import ANSWER_ARGUMENT, ANSWER_TOOL

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelRequest, ModelRequestPart, ModelResponse, ToolCallPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    from holdfast.reports.recorded_reply import ModelCallReport

T = TypeVar("T")

_TOOL_DESCRIPTION = "Gives the final answer, which ends the conversation. Call it once you have all of the answer."


_MAX_ERRORS = 20
"""Maximum number of errors in the feedback, which is recorded and sent to the model."""


class _InvalidOutput(Exception):
    """An answer that cannot be used. Its message is for the model."""


@dataclass(frozen=True)
class Output(Generic[T]):
    """An agent's answer, and what happens when an answer does not fit: ``Output(Report, retries=5)``."""

    output_type: type[T]
    """``str``, or a type that pydantic can validate."""
    _: KW_ONLY
    retries: int = 3
    """Consecutive corrections of an answer that does not fit. Then the run fails with ``InvalidOutput``."""
    continue_truncated: bool = False
    """Whether the model continues a text that was cut off at the token limit, until it is complete or the turns are
    used up. Each piece is a turn, and the output is all of them. Without this, and for any other type,
    ``result.finish_reason`` says that an answer was cut off."""

    def __post_init__(self) -> None:
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Output: retries={self.retries!r} must be a whole number, 0 or more")
        if not isinstance(self.continue_truncated, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DefinitionError(f"Output: continue_truncated={self.continue_truncated!r} is True or False")
        if self.continue_truncated and self.output_type is not str:
            raise DefinitionError(f"Output: continue_truncated is for texts, and its type is {self.output_type!r}")


class OutputSpec:
    """The type of an answer: requests, validates, and reads answers.

    Raises ``DefinitionError`` for a type that cannot be recorded, or that no JSON schema can describe.
    """

    def __init__(self, output_type: Any = str) -> None:
        self.codec = codec_for(output_type)
        self.is_text = output_type is str
        self._type = output_type
        self._adapter: TypeAdapter[Any] | None = None
        self._schema: dict[str, Any] = {}
        self._is_wrapped = False
        self._tool: ToolDefinition | None = None
        if not self.is_text:
            try:
                self._get_adapter()
            except PydanticUserError:
                pass  # it names a class that is not defined yet, but will be when a run needs it

    def make_parameters(self, function_tools: list[ToolDefinition], instructions: str | None) -> ModelRequestParameters:
        """The request parameters for the model library."""
        from pydantic_ai.messages import InstructionPart
        from pydantic_ai.models import ModelRequestParameters

        return ModelRequestParameters(
            function_tools=function_tools,
            output_mode="text" if self.is_text else "tool",
            output_tools=[] if self.is_text else [self._get_tool_definition()],
            allow_text_output=self.is_text,
            # `None`: the instructions in the user's own messages apply.
            instruction_parts=[InstructionPart(instructions)] if instructions else None,
        )

    def get_feedback(self, response: ModelResponse) -> str | None:
        """What is wrong with an answer, in words for the model; ``None`` if nothing is.

        Nothing is wrong with an answer that calls other tools: it is only not final.
        """
        problems: list[str] = []
        for call in [] if self.is_text else _find_calls(response, ANSWER_TOOL):
            try:
                self._parse_arguments(call.args)
                return None
            except _InvalidOutput as error:
                problems.append(str(error))
        if problems:
            was_cut = response.finish_reason == "length"
            return (
                f"{'The answer was cut off at the limit of tokens: be shorter. ' if was_cut else ''}{problems[0]}\n"
                f"Please call `{ANSWER_TOOL}` again with all of the answer."
            )
        if response.tool_calls:
            return None
        if self.is_text:
            if (response.text or "").strip():
                return None
            if response.finish_reason == "length":
                return "You reached the limit of tokens before your answer began. Please answer, and be shorter."
            return "Your answer is empty. Please answer."
        return f"Please give your answer by calling the tool `{ANSWER_TOOL}`, not as a text."

    def is_final(self, response: ModelResponse) -> bool:
        """Whether this is a valid final answer, and not a turn with other calls."""
        has_answer = not response.tool_calls if self.is_text else bool(_find_calls(response, ANSWER_TOOL))
        return has_answer and self.get_feedback(response) is None

    def read(self, response: ModelResponse) -> Any:
        """The value of a final answer. Raises ``UnreadableRecord`` if it does not, or no longer, fit the type."""
        return self._decode_answer(response.text or "", [call.args for call in _find_calls(response, ANSWER_TOOL)])

    def read_plain(self, reply: ModelCallReport) -> Any:
        """The same, without the model library."""
        return self._decode_answer(
            reply.text, [call.raw_arguments for call in reply.tool_calls if call.name == ANSWER_TOOL]
        )

    def _decode_answer(self, text: str, calls: Sequence[RawArguments]) -> Any:
        if self.is_text:
            return text
        problem = f"there is no call of `{ANSWER_TOOL}`"
        for arguments in calls:
            try:
                return self._parse_arguments(arguments)
            except _InvalidOutput as error:
                problem = str(error)
        raise UnreadableRecord(
            f"The recorded answer of a model cannot be read as `{format_type(self._type)}`. If the type has changed "
            f"since it was recorded, make it accept the older form too, for example by giving new fields a default. "
            f"What is wrong: {problem}"
        )

    def _parse_arguments(self, raw_arguments: RawArguments) -> Any:
        adapter = self._get_adapter()
        try:
            arguments = (
                from_json(raw_arguments) if isinstance(raw_arguments, str) and raw_arguments else raw_arguments or {}
            )
        except ValueError as error:
            raise _InvalidOutput(f"The arguments of `{ANSWER_TOOL}` are not JSON: {error}") from None
        prefix: list[str] = []
        if self._is_wrapped:
            if not isinstance(arguments, dict) or ANSWER_ARGUMENT not in arguments:
                raise _InvalidOutput(
                    f"`{ANSWER_TOOL}` takes one argument, `{ANSWER_ARGUMENT}`, which is all of the answer"
                )
            arguments = cast("dict[str, Any]", arguments)[ANSWER_ARGUMENT]
            prefix = [f".{ANSWER_ARGUMENT}"]
        try:
            return adapter.validate_json(to_json(arguments), by_alias=True, by_name=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False, include_context=False)
            lines = [
                f"- {''.join([*prefix, *location_to_path(detail['loc'])]).lstrip('.') or 'the answer'}: {detail['msg']}"
                for detail in details[:_MAX_ERRORS]
            ]
            if len(details) > _MAX_ERRORS:
                lines.append(f"- and {len(details) - _MAX_ERRORS} more")
            raise _InvalidOutput("\n".join(["The answer does not fit:", *lines])) from None

    def _get_tool_definition(self) -> ToolDefinition:
        if self._tool is None:
            from pydantic_ai.tools import ToolDefinition

            self._get_adapter()
            own = self._schema.get("description")
            self._tool = ToolDefinition(
                name=ANSWER_TOOL,
                parameters_json_schema=self._schema,
                description=f"{own}\n\n{_TOOL_DESCRIPTION}" if own else _TOOL_DESCRIPTION,
                outer_typed_dict_key=ANSWER_ARGUMENT if self._is_wrapped else None,
                kind="output",
            )
        return self._tool

    def _get_adapter(self) -> TypeAdapter[Any]:
        if self._adapter is None:
            adapter: TypeAdapter[Any] = TypeAdapter(self._type)
            try:
                schema = adapter.json_schema()
            except PydanticInvalidForJsonSchema as error:
                raise DefinitionError(
                    f"A model cannot give an answer of the type `{format_type(self._type)}`: {error.message}. Use "
                    f"plain data, a dataclass or a pydantic model."
                ) from error
            resolved = _resolve_reference(schema)
            # An object without named fields is wrapped as well: providers want named arguments.
            self._is_wrapped = resolved.get("type") != "object" or not resolved.get("properties")
            self._schema = _wrap_schema(schema) if self._is_wrapped else resolved
            self._adapter = adapter
        return self._adapter


def make_correction(response: ModelResponse, feedback: str, timestamp: datetime) -> ModelRequest:
    """The message with the feedback for an answer. Every call in the answer gets a reply."""
    from pydantic_ai.messages import ModelRequest, ToolReturnPart, UserPromptPart

    calls = response.tool_calls
    has_answer = bool(_find_calls(response, ANSWER_TOOL))
    other_reply = f"Not called, because {ANSWER_TOOL} was called beside it." if has_answer else feedback
    parts: list[ModelRequestPart] = [
        ToolReturnPart(
            call.tool_name,
            feedback if call.tool_name == ANSWER_TOOL else other_reply,
            call.tool_call_id,
            timestamp=timestamp,
            outcome="retried",
        )
        for call in calls
    ]
    if not calls:
        parts.append(UserPromptPart(feedback, timestamp=timestamp))
    return ModelRequest(parts, timestamp=timestamp)


def _find_calls(response: ModelResponse, tool: str) -> list[ToolCallPart]:
    return [call for call in response.tool_calls if call.tool_name == tool]


def _resolve_reference(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its outermost reference resolved: the schema of a recursive type begins with one."""
    reference = schema.get("$ref", "")
    if not reference.startswith("#/$defs/"):
        return schema
    return {**schema["$defs"][reference.removeprefix("#/$defs/")], "$defs": schema["$defs"]}


def _wrap_schema(schema: dict[str, Any]) -> dict[str, Any]:
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    outer: dict[str, Any] = {"type": "object", "properties": {ANSWER_ARGUMENT: inner}, "required": [ANSWER_ARGUMENT]}
    return {**outer, "$defs": schema["$defs"]} if "$defs" in schema else outer
