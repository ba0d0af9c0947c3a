"""The library's durable operations as steps of the run that an agent is called in.

The library asks ``OperationBackend`` once for each kind of operation how to execute it, and gets a callable for
workflow code. A call is one command of the run. The step that it issues runs on the process's own loop, as every step
does, and only there does the library have effects.

The order of commands follows from recorded outcomes alone, because the library's loop is workflow code like any other.
So tool calls that a model makes at the same time are recorded in the order in which they end, and replay in it.

A failed model request is retried as in Holdfast's own agents (``agents.models.errors``). When it is given up, the
library's own exception is recorded, since the library's fallbacks and users look for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from pydantic_ai._utils import _disable_threads  # pyright: ignore[reportPrivateUsage]
from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    CapabilityOperationId,
    DurableOperation,
    DurableOperationBackend,
    DynamicToolsetCallToolParams,
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelCompactMessagesParams,
    ModelRequestId,
    ModelRequestParams,
    ToolsetCallToolId,
    ToolsetCallToolParams,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    durable_unit_scope,
)
from pydantic_ai.exceptions import ModelRetry, ToolFailed, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.conversation import COMPACTION_STEP_NAME
from holdfast.agents.models.chain import ModelChain
from holdfast.agents.models.decoder_warmup import warm_up_decoder
from holdfast.agents.models.errors import TransientModelError, classify_error, compute_next_delay_s
from holdfast.agents.models.finish_reasons import UNFINISHED_MESSAGE, is_incomplete
from holdfast.agents.models.model_call import ModelCall, issue_within_budget, make_model_call_step
from holdfast.agents.models.model_resolution import attach_to_loop, get_model_name, model_override
from holdfast.agents.models.prices import estimate_usage, usage_from_response
from holdfast.agents.models.reply import Reply
from holdfast.authoring.step import invoke
from holdfast.codec import encode_error
from holdfast.codec.redaction import redact_secrets
from holdfast.core.execution import Execution, get_current_execution
from holdfast.engine.definitions import StepCall, StepDefinition
from holdfast.engine.step_context import current_context, get_step_executor
from holdfast.errors import HoldfastError, StepOutcomeUnknown, StepTimedOut
from holdfast.integrations.pydantic_ai.live_run import LivePosition, get_position, relayed_position
from holdfast.integrations.pydantic_ai.operation_codec import OPERATION_CODEC
from holdfast.integrations.pydantic_ai.tool_settings import ToolSettings
from holdfast.reports.observations import describe_tool_failure
from holdfast.reports.recorded_reply import MODEL_CALL_STEP


@dataclass(frozen=True)
class OperationBackend(DurableOperationBackend[StepDefinition]):
    """Executes the operations of one agent."""

    agent: str
    models: Collection[Model]
    """The models that were passed as objects. For a model name, each step makes a new model."""
    tools: ToolSettings
    model_timeout_s: float
    retry: RetryPolicy

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> BoundDurableOperation[Any, Any, Any]:
        """A callable for workflow code."""
        if isinstance(operation.operation_id, ModelRequestId | ModelCompactMessagesId):
            return _ModelRequestOperation(self, operation)
        if isinstance(operation.operation_id, ToolsetCallToolId):
            return _ToolCallOperation(self, operation)
        return _OtherOperation(self, operation)

    def config_for_tool(
        self, operation: DurableOperation[Any, Any, Any], *, tool: object | None, tool_name: str
    ) -> StepDefinition | Literal[False]:
        """The step of one tool; ``False``: workflow code calls the tool, and nothing is recorded."""
        return self.tools.get_step(tool_name, getattr(getattr(tool, "tool_def", None), "metadata", None))

    def registrations(self) -> Sequence[Callable[..., object]]:
        """None: a worker needs no registration before it begins."""
        return ()

    def qualify_name(self, execution: Execution, name: str) -> str:
        """The name of a step in the journal. In a workflow that is not the agent's own, it includes the agent."""
        return name if execution.workflow == self.agent else f"{self.agent}: {name}"


class _BoundOperation(BoundDurableOperation[Any, Any, Any]):
    """An operation that workflow code calls."""

    def __init__(self, backend: OperationBackend, operation: DurableOperation[Any, Any, Any]) -> None:
        self._backend = backend
        self._operation = operation

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        """One command of the run."""
        execution = get_current_execution()
        if execution is None:
            return await self._operation.handler(params)
        payload = await self._issue(execution, params, cast("StepDefinition | None", config))
        return self._operation.result_codec.load(payload)

    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        raise NotImplementedError

    async def _execute(self, params: Any) -> Any:
        """In the step: let the library execute the operation, and return the result as plain data."""
        # The context comes from workflow code, where threads are off. In a step, a plain function runs in a thread.
        _disable_threads.set(False)
        with durable_unit_scope():
            return self._operation.result_codec.dump(await self._operation.handler(params))


class _ModelRequestOperation(_BoundOperation):
    """A request to a model, or for a summary of the conversation by the provider."""

    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        is_request = isinstance(params, ModelRequestParams)
        request = params if is_request else cast("ModelCompactMessagesParams", params).request_context
        id = self._operation.operation_id
        request_input = _RequestInput(
            request.messages,
            request.model_settings or {},
            request.model_request_parameters,
            params.run_context.model,
            isinstance(id, ModelRequestId) and id.streaming,
        )
        live = get_position(params.run_context.run_id)
        wait_for_caller = _make_caller_waiter(live)

        async def ask(_: _RequestInput) -> Reply:
            await wait_for_caller()
            relayed_position.set(live)
            for model in (*self._backend.models, request_input.model):
                attach_to_loop(model)
            return await _ask_model(request_input, lambda: self._get_response(params), self._backend)

        name = self._backend.qualify_name(execution, MODEL_CALL_STEP if is_request else COMPACTION_STEP_NAME)
        if live is not None and is_request:
            live.note_request(request.model_request_parameters)
        call = StepCall(make_model_call_step(name, ask), (request_input,), {})
        reply, _ = await issue_within_budget(execution, call)
        response = cast(Reply, reply).response
        if live is not None and is_request:
            live.note_response(response)
        return response

    async def _get_response(self, params: Any) -> ModelResponse:
        override = model_override.get()
        if override is None or not isinstance(params, ModelRequestParams):
            return await self._execute(params)
        return await override.request(params.messages, params.model_settings, params.model_request_parameters)


class _RequestInput:
    """The input of a model request. Never recorded: it follows from earlier records."""

    def __init__(
        self,
        messages: Sequence[ModelMessage],
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        model: Model,
        is_streamed: bool,
    ) -> None:
        self.messages = messages
        self.settings = settings
        self.parameters = parameters
        self.model = model
        self.is_streamed = is_streamed
        """Whether the library asks for a stream."""

    def to_model_call(self) -> ModelCall:
        """The same as a call of Holdfast's own agents, to estimate its usage."""
        answers = [one for one in self.messages if isinstance(one, ModelResponse)]
        return ModelCall(
            ModelChain((self.model,), self.settings),
            self.messages,
            self.parameters,
            last_usage=usage_from_response(answers[-1]) if answers else None,
            peak_output_tokens=max((one.usage.output_tokens for one in answers), default=0),
        )

    def __repr__(self) -> str:
        return str(1 + sum(isinstance(one, ModelResponse) for one in self.messages))


async def _ask_model(
    request_input: _RequestInput, send: Callable[[], Awaitable[ModelResponse]], backend: OperationBackend
) -> Reply:
    """The step: reserve, call once, and tell the engine whether to repeat it."""
    executor, timeout = get_step_executor(), backend.model_timeout_s
    is_streamed = request_input.is_streamed and model_override.get() is None  # a test's model answers without one
    if executor.run.has_budget:
        await executor.reserve(
            estimate_usage(request_input.to_model_call(), request_input.model, request_input.messages)
        )
    await warm_up_decoder(request_input.model, stream=is_streamed)
    scope = asyncio.timeout(timeout)
    try:
        async with scope:
            response = await send()
        if is_incomplete(request_input.model, response, is_streamed=is_streamed):
            raise UnexpectedModelBehavior(UNFINISHED_MESSAGE)
    except HoldfastError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and scope.expired():
            error = TimeoutError(f"no answer within {timeout:g} s")
        failure = classify_error(error)
        clock, since = executor.engine.clock, executor.failing_since
        failing_for = 0.0 if since is None else clock.now() - since
        attempt = current_context.get().attempt
        wait = compute_next_delay_s(backend.retry, failure, error, attempt, clock.draw_random(), failing_for)
        if wait is None:
            raise _redact_error(error) from None
        raise TransientModelError(f"{get_model_name(request_input.model)}: {failure.description}", wait) from None
    return Reply(response, get_model_name(request_input.model), usage_from_response(response))


def _redact_error(error: Exception) -> Exception:
    """The error without secrets: a provider's message may quote the API key."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return redact_secrets(value)
        if isinstance(value, dict):
            return {key: clean(item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list | tuple):
            items = [clean(item) for item in cast("Sequence[Any]", value)]
            return items if isinstance(value, list) else tuple(items)
        return value

    error.args = clean(error.args)
    vars(error).update(clean(vars(error)))
    return error


def _make_caller_waiter(position: LivePosition | None) -> Callable[[], Awaitable[None]]:
    """A function for a step that waits until a caller that iterates the run has asked for the step's node."""
    index = -1 if position is None else position.index

    async def wait_for_caller() -> None:
        if position is not None:
            await position.live_run.wait_for_caller(index)

    return wait_for_caller


class _ToolCallOperation(_BoundOperation):
    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        call = cast("ToolsetCallToolParams | DynamicToolsetCallToolParams", params)
        made = config or cast(StepDefinition, self._backend.tools.get_step(call.name, None))
        wait_for_caller = _make_caller_waiter(get_position(call.ctx.run_id))

        async def execute(*_: Any, **__: Any) -> Any:
            await wait_for_caller()
            return await self._execute(params)

        step = replace(
            made,
            name=self._backend.qualify_name(execution, call.name),
            function=execute,
            is_async=True,
            output_codec=OPERATION_CODEC,
        )
        try:
            return await invoke(execution, step, (), dict(call.tool_args))
        except StepOutcomeUnknown as error:
            # Feedback for the model, as in Holdfast's own agents: it can check whether the call happened.
            raise ToolFailed(describe_tool_failure(encode_error(error), call.name)) from error
        except StepTimedOut as error:
            raise ModelRetry(describe_tool_failure(encode_error(error), call.name)) from error


class _OtherOperation(_BoundOperation):
    """Any other operation outside workflow code, such as discovering tools or calling an event handler."""

    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        async def execute() -> Any:
            return await self._execute(params)

        name = self._backend.qualify_name(execution, _make_step_name(self._operation, params))
        return await invoke(execution, StepDefinition(name, execute, True, OPERATION_CODEC, (), {}), (), {})


def _make_step_name(operation: DurableOperation[Any, Any, Any], params: Any) -> str:
    match operation.operation_id:
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"tools of {toolset or 'a toolset'}"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"instructions of {toolset or 'a toolset'}"
        case ToolsetValidateToolArgumentsId():
            return f"check of {params.name}"
        case EventStreamHandlerId():
            return "event"
        case ModelCancelSuspendedResponseId():
            return "cancel model call"
        case CapabilityOperationId(capability_id=capability, operation=name):
            return f"{capability}.{name}"
        case unknown:  # of a later version of the library
            return type(unknown).__name__
