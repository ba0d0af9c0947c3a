"""The model calls of CrewAI as recorded steps: ``call`` and ``acall`` of every model class.

CrewAI's own code reads what a call does besides returning its answer: events, token counts, the id of the last answer.
``Answer`` has all of it. It is taken down while the call is executed, and repeated when the answer comes from the
record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from crewai.events.event_bus import CrewAIEventsBus, crewai_event_bus
from crewai.events.types.llm_events import (
    LLMCallCompletedEvent,
    LLMCallStartedEvent,
    LLMStreamChunkEvent,
    LLMThinkingChunkEvent,
)
from crewai.llms.base_llm import BaseLLM, get_current_call_id, llm_call_context
from crewai.tools.base_tool import BaseTool
from crewai.tools.structured_tool import CrewStructuredTool
from crewai.utilities.agent_utils import extract_tool_call_info
from crewai.utilities.message_utils import message_content_text
from pydantic import BaseModel
from pydantic_core import from_json

from holdfast.core.execution import get_current_execution
from holdfast.engine.program_context import find_program
from holdfast.engine.step_context import current_context
from holdfast.errors import UsageError
from holdfast.integrations.crewai.answers import Answer, AnswerOfModel, parse_call_type
from holdfast.integrations.crewai.executor_threads import in_starter_thread
from holdfast.integrations.crewai.method_wrappers import Method, is_outermost, wrap_in_subclasses, wrap_method
from holdfast.integrations.crewai.requests import make_model_input
from holdfast.integrations.model_call import record_model_call, record_model_call_sync

_PARAMETERS = (
    "messages",
    "tools",
    "callbacks",
    "available_functions",
    "from_task",
    "from_agent",
    "response_model",
)
"""The parameters of ``BaseLLM.call``, in order."""
_CHARS_PER_TOKEN = 4

_current_answer: ContextVar[Answer | None] = ContextVar("holdfast_crewai_answer", default=None)
"""Of the call that is being executed."""


def replace_methods() -> None:
    """Record the calls of all models, also of classes that are defined later."""
    wrap_in_subclasses(BaseLLM, {"call": _wrap_call, "acall": _wrap_acall, "get_input_tokens_count": _wrap_token_count})
    wrap_method(BaseLLM, "_track_token_usage_internal", _wrap_usage)
    wrap_method(CrewAIEventsBus, "emit", _wrap_emit)


def _wrap_call(original: Method) -> Method:
    def call(llm: BaseLLM, *args: Any, **kwargs: Any) -> Any:
        if not (_is_recorded() and is_outermost(llm, "call", original)):
            return original(llm, *args, **kwargs)
        request = _Request(llm, args, kwargs)

        def execute() -> Answer:
            with _observing(llm) as answer:
                answer.value = original(llm, **request.arguments)
            return answer

        with in_starter_thread():
            answer = record_model_call_sync(
                make_model_input(llm, request.arguments), request.codec, request.note_execution(execute)
            )
        return request.finish(answer)

    return call


def _wrap_acall(original: Method) -> Method:
    async def acall(llm: BaseLLM, *args: Any, **kwargs: Any) -> Any:
        if not (_is_recorded() and is_outermost(llm, "acall", original)):
            return await original(llm, *args, **kwargs)
        request = _Request(llm, args, kwargs)

        async def execute() -> Answer:
            with _observing(llm) as answer:
                answer.value = await original(llm, **request.arguments)
            return answer

        recorded: Callable[[], Awaitable[Answer]] = request.note_execution(execute)
        with in_starter_thread():
            answer = await record_model_call(make_model_input(llm, request.arguments), request.codec, recorded)
        return request.finish(answer)

    return acall


def _is_recorded() -> bool:
    """Whether the calling code belongs to a program, or to a workflow, which refuses the call."""
    return find_program() is not None or get_current_execution() is not None


class _Request:
    """One call of a model in a program."""

    def __init__(self, llm: BaseLLM, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.llm = llm
        self.arguments: dict[str, Any] = {**dict(zip(_PARAMETERS, args, strict=False)), **kwargs}
        if getattr(llm, "parse_tool_outputs", False):
            raise UsageError(
                f"model {llm.model!r}: the answers of parse_tool_outputs=True cannot be recorded. Leave it out: the "
                "text of the answer is recorded"
            )
        self._functions = self._take_tools()
        self.codec = AnswerOfModel(self._get_response_model())
        self._is_executed = False

    def note_execution(self, execute: Callable[[], Any]) -> Callable[[], Any]:
        """The function that executes the call, which is not called if the answer is recorded."""

        def executed() -> Any:
            self._is_executed = True
            return execute()

        return executed

    def finish(self, answer: Answer) -> Any:
        """The value to return, after what a recorded call does besides."""
        if not self._is_executed:
            _repeat(self.llm, answer, self.arguments)
        value: Any = answer.value
        return self._call_tools(cast("list[Any]", value)) if self._functions and isinstance(value, list) else value

    def _get_response_model(self) -> type[BaseModel] | None:
        for model in (self.arguments.get("response_model"), getattr(self.llm, "response_format", None)):
            if isinstance(model, type) and issubclass(model, BaseModel):
                return model
        return None

    # CrewAI can call tools within a model call. They are steps of their own, so they are called after it.

    def _take_tools(self) -> Mapping[str, Callable[..., Any]]:
        functions: Mapping[str, Callable[..., Any]] = self.arguments.get("available_functions") or {}
        if any(isinstance(getattr(one, "__self__", None), BaseTool | CrewStructuredTool) for one in functions.values()):
            self.arguments["available_functions"] = None
            return functions
        return {}

    def _call_tools(self, calls: Sequence[Any]) -> Any:
        for call in calls:
            found = extract_tool_call_info(call)
            if found is None or found[1] not in self._functions:
                continue
            arguments = from_json(found[2]) if isinstance(found[2], str) else found[2]
            result = self.llm._handle_tool_execution(  # pyright: ignore[reportPrivateUsage]
                found[1],
                arguments,
                dict(self._functions),
                self.arguments.get("from_task"),
                self.arguments.get("from_agent"),
            )
            if result is not None:
                return result
        return ""


# What a call does besides


@contextmanager
def _observing(llm: BaseLLM) -> Generator[Answer]:
    answer = Answer()
    token = _current_answer.set(answer)
    try:
        yield answer
    finally:
        _current_answer.reset(token)
    answer.take_state(llm)


def _wrap_usage(original: Method) -> Method:
    def track(llm: BaseLLM, usage_data: dict[str, Any]) -> Any:
        if (answer := _current_answer.get()) is not None:
            answer.usages.append(usage_data)
        return original(llm, usage_data)

    return track


def _wrap_emit(original: Method) -> Method:
    def emit(bus: CrewAIEventsBus, source: Any, event: Any) -> Any:
        if (answer := _current_answer.get()) is not None:
            _note_event(answer, event)
        return original(bus, source, event)

    return emit


def _note_event(answer: Answer, event: Any) -> None:
    if isinstance(event, LLMCallStartedEvent):
        answer.started = True
    elif isinstance(event, LLMStreamChunkEvent):
        tool_call = None if event.tool_call is None else event.tool_call.model_dump(mode="json")
        call_type = None if event.call_type is None else event.call_type.value
        answer.chunks.append([event.chunk, tool_call, call_type, False])
        if tool_call is None and event.chunk:
            current_context.get().publish_text(event.chunk)
    elif isinstance(event, LLMThinkingChunkEvent):
        answer.chunks.append([event.chunk, None, None, True])
    elif isinstance(event, LLMCallCompletedEvent):
        answer.completed.append(
            {
                "call_type": event.call_type.value,
                "usage": event.usage,
                "finish_reason": event.finish_reason,
                "response_id": event.response_id,
            }
        )


def _repeat(llm: BaseLLM, answer: Answer, arguments: Mapping[str, Any]) -> None:
    """Do again what the call did besides returning its answer."""
    for usage in answer.usages:
        llm._track_token_usage_internal(usage)  # pyright: ignore[reportPrivateUsage]
    answer.restore_state(llm)
    if not answer.started:
        return
    origin: dict[str, Any] = {"from_task": arguments.get("from_task"), "from_agent": arguments.get("from_agent")}
    messages = arguments["messages"]
    with llm_call_context():
        llm._emit_call_started_event(messages, tools=arguments.get("tools"), **origin)  # pyright: ignore[reportPrivateUsage]
        for chunk, tool_call, call_type, is_thinking in answer.chunks:
            if is_thinking:
                llm._emit_thinking_chunk_event(chunk, **origin)  # pyright: ignore[reportPrivateUsage]
            else:
                event = cast(Any, LLMStreamChunkEvent)(
                    chunk=chunk,
                    tool_call=tool_call,
                    call_type=parse_call_type(call_type),
                    call_id=get_current_call_id(),
                    model=llm.model,
                    **origin,
                )
                crewai_event_bus.emit(llm, event=event)
        for end in answer.completed:
            llm._emit_call_completed_event(  # pyright: ignore[reportPrivateUsage]
                answer.value,
                cast(Any, parse_call_type(end["call_type"])),
                messages=messages,
                usage=end["usage"],
                finish_reason=end["finish_reason"],
                response_id=end["response_id"],
                **origin,
            )


def _wrap_token_count(original: Method) -> Method:
    def get_input_tokens_count(llm: BaseLLM, messages: Any, *args: Any, **kwargs: Any) -> int:
        # CrewAI decides by this number whether to shorten a conversation. Some providers are asked for it over the
        # network, which may give another number, or none, when the program runs again.
        if find_program() is None:
            return original(llm, messages, *args, **kwargs)
        texts = [messages] if isinstance(messages, str) else [message_content_text(message) for message in messages]
        return -(-sum(map(len, texts)) // _CHARS_PER_TOKEN)

    return get_input_tokens_count
