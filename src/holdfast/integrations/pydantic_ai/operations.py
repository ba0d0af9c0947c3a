"""The library's durable operations as steps of the run that an agent is called in.

``Operations`` is what the library calls a backend: it is asked once for each kind of operation how to carry it out, and
answers with something to be called from workflow code. A call is one command of the run. The step that it issues runs
on the process's own loop, as every step does, and only there does the library touch the world.

The order in which commands are issued follows from recorded outcomes alone, because the library's loop is workflow code
like any other. So calls that a model makes side by side are recorded in whatever order they end, and replay in it.

What befalls a model request is retried as in our own agents (``agents.models.errors``). When it is given up, the
library's own exception is recorded, since that is what its fallbacks, and its users, look for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
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

from holdfast.agents.conversation import COMPACTION
from holdfast.agents.models.chain import ModelChain
from holdfast.agents.models.decoder_warmup import load_decoding
from holdfast.agents.models.errors import PassingFault, fault_of, next_wait
from holdfast.agents.models.finish_reasons import UNFINISHED, is_cut_short
from holdfast.agents.models.model_call import RETRY, Ask, within_budget
from holdfast.agents.models.model_resolution import instead, name_of, of_this_loop
from holdfast.agents.models.prices import expected, used_by
from holdfast.agents.models.reply import REPLIES, Reply
from holdfast.authoring.step import invoke
from holdfast.codec import encode_error
from holdfast.codec.redaction import without_secrets
from holdfast.core.execution import Execution, current_execution
from holdfast.core.retry_policy import RetryPolicy
from holdfast.engine import step_context
from holdfast.engine.definitions import StepCall, StepDefinition, Used
from holdfast.errors import HoldfastError, StepOutcomeUnknown, StepTimedOut
from holdfast.integrations.pydantic_ai.live_run import LivePosition, position_of, relayed
from holdfast.integrations.pydantic_ai.operation_codec import OPERATIONS
from holdfast.integrations.pydantic_ai.tool_settings import ToolSettings
from holdfast.reports.observations import observation_of_failure
from holdfast.reports.recorded_reply import MODEL_CALL


class Operations(DurableOperationBackend[StepDefinition]):
    """How the operations of one agent are carried out."""

    def __init__(
        self, agent: str, models: Collection[Model], tools: ToolSettings, model_timeout: float, retry: RetryPolicy
    ) -> None:
        self.agent = agent
        self.models = models
        """Those that were given as objects; what a name stands for is made anew in each step."""
        self.tools = tools
        self.model_timeout = model_timeout
        self.retry = retry

    def bind(self, operation: DurableOperation[Any, Any, Any]) -> BoundDurableOperation[Any, Any, Any]:
        """Something to be called from workflow code."""
        if isinstance(operation.operation_id, ModelRequestId | ModelCompactMessagesId):
            return _ModelRequest(self, operation)
        if isinstance(operation.operation_id, ToolsetCallToolId):
            return _ToolCall(self, operation)
        return _Other(self, operation)

    def config_for_tool(
        self, operation: DurableOperation[Any, Any, Any], *, tool: object | None, tool_name: str
    ) -> StepDefinition | Literal[False]:
        """The step of one tool; ``False``: it is called in workflow code, and not recorded."""
        return self.tools.step_for(tool_name, getattr(getattr(tool, "tool_def", None), "metadata", None))

    def registrations(self) -> Sequence[Callable[..., object]]:
        """Nothing has to be known before a worker begins."""
        return ()

    def named(self, execution: Execution, name: str) -> str:
        """What the journal calls a step; in a workflow that is not the agent's own, with whose it is."""
        return name if execution.workflow == self.agent else f"{self.agent}: {name}"


class _Bound(BoundDurableOperation[Any, Any, Any]):
    """An operation that workflow code calls."""

    def __init__(self, backend: Operations, operation: DurableOperation[Any, Any, Any]) -> None:
        self._backend = backend
        self._operation = operation

    @property
    def operation(self) -> DurableOperation[Any, Any, Any]:
        """As the library has declared it."""
        return self._operation

    async def __call__(self, params: Any, *, config: object | None = None) -> Any:
        """One command of the run."""
        execution = current_execution()
        if execution is None:
            return await self._operation.handler(params)
        payload = await self._issue(execution, params, cast("StepDefinition | None", config))
        return self._operation.result_codec.load(payload)

    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        raise NotImplementedError

    async def _carry_out(self, params: Any) -> Any:
        """In the step: what the library does, as plain data."""
        # Workflow code has no threads, and this was begun by it; here a plain function gets one.
        _disable_threads.set(False)
        with durable_unit_scope():
            return self._operation.result_codec.dump(await self._operation.handler(params))


class _ModelRequest(_Bound):
    """A request to a model, or for a summary of the conversation by the provider."""

    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        is_request = isinstance(params, ModelRequestParams)
        request = params if is_request else cast("ModelCompactMessagesParams", params).request_context
        id = self._operation.operation_id
        question = _Question(
            request.messages,
            request.model_settings or {},
            request.model_request_parameters,
            params.run_context.model,
            isinstance(id, ModelRequestId) and id.streaming,
        )
        live = position_of(params.run_context.run_id)
        wait_for_caller = _caller_waiter(live)

        async def ask(_: _Question) -> Reply:
            await wait_for_caller()
            relayed.set(live)
            for model in (*self._backend.models, question.model):
                of_this_loop(model)
            return await _ask(question, lambda: self._response(params), self._backend)

        step = StepDefinition(
            self._backend.named(execution, MODEL_CALL if is_request else COMPACTION),
            ask,
            is_async=True,
            output=REPLIES,
            parameters=("turn",),
            namespace={},
            retry=RETRY,
            used=lambda reply: Used(reply.usage, reply.model),
        )
        if live is not None and is_request:
            live.request(request.model_request_parameters)
        reply, _ = await within_budget(execution, StepCall(step, (question,), {}))
        response = cast(Reply, reply).response
        if live is not None and is_request:
            live.respond(response)
        return response

    async def _response(self, params: Any) -> ModelResponse:
        stand_in = instead.get()
        if stand_in is None or not isinstance(params, ModelRequestParams):
            return await self._carry_out(params)
        return await stand_in.request(params.messages, params.model_settings, params.model_request_parameters)


class _Question:
    """What a model is asked. Never recorded: it follows from what came before."""

    __slots__ = ("is_streamed", "messages", "model", "parameters", "settings")

    def __init__(
        self,
        messages: Sequence[ModelMessage],
        settings: Mapping[str, Any],
        parameters: ModelRequestParameters,
        model: Model,
        is_streamed: bool,
    ) -> None:
        self.is_streamed = is_streamed
        """Whether the library asks for a stream."""
        self.messages = messages
        self.settings = settings
        self.parameters = parameters
        self.model = model

    def expected(self) -> Ask:
        """As our own calls of models have it, to tell what it may use."""
        answers = [one for one in self.messages if isinstance(one, ModelResponse)]
        return Ask(
            ModelChain((self.model,), self.settings),
            self.messages,
            self.parameters,
            told=used_by(answers[-1]) if answers else None,
            most_output=max((one.usage.output_tokens for one in answers), default=0),
        )

    def __repr__(self) -> str:
        return str(1 + sum(isinstance(one, ModelResponse) for one in self.messages))


async def _ask(question: _Question, request: Callable[[], Awaitable[ModelResponse]], backend: Operations) -> Reply:
    """The step: reserve, ask once, and tell the engine whether to ask again."""
    step, timeout = step_context.current.get(), backend.model_timeout
    is_streamed = question.is_streamed and instead.get() is None  # a test's model is not asked for a stream
    if step.run.has_budget:
        await step.reserve(expected(question.expected(), question.model, question.messages))
    await load_decoding(question.model, stream=is_streamed)
    scope = asyncio.timeout(timeout)
    try:
        async with scope:
            response = await request()
        if is_cut_short(question.model, response, is_streamed=is_streamed):
            raise UnexpectedModelBehavior(UNFINISHED)
    except HoldfastError:
        raise
    except Exception as error:
        if isinstance(error, TimeoutError) and scope.expired():
            error = TimeoutError(f"no answer within {timeout:g} s")
        fault = fault_of(error)
        clock = step.engine.clock
        failing_for = 0.0 if step.failing_since is None else clock.now() - step.failing_since
        wait = next_wait(backend.retry, fault, error, step.attempt, clock.draw(), failing_for)
        if wait is None:
            raise _without_secrets(error) from None
        raise PassingFault(f"{name_of(question.model)}: {fault.told}", wait) from None
    return Reply(response, name_of(question.model), used_by(response))


def _without_secrets(error: Exception) -> Exception:
    """What is recorded of an error must not quote a key."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return without_secrets(value)
        if isinstance(value, dict):
            return {key: clean(item) for key, item in cast("dict[Any, Any]", value).items()}
        if isinstance(value, list | tuple):
            items = [clean(item) for item in cast("Sequence[Any]", value)]
            return items if isinstance(value, list) else tuple(items)
        return value

    error.args = clean(error.args)
    vars(error).update(clean(vars(error)))
    return error


def _caller_waiter(live: LivePosition | None) -> Callable[[], Awaitable[None]]:
    """For a step: wait until a caller who iterates the run here has asked for the node that the step belongs to."""
    index = -1 if live is None else live.index

    async def wait_for_caller() -> None:
        if live is not None:
            await live.live.wait_for_caller(index)

    return wait_for_caller


class _ToolCall(_Bound):
    """A tool that the model has called."""

    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        call = cast("ToolsetCallToolParams | DynamicToolsetCallToolParams", params)
        made = config or cast(StepDefinition, self._backend.tools.step_for(call.name, None))
        wait_for_caller = _caller_waiter(position_of(call.ctx.run_id))

        async def act(*_: Any, **__: Any) -> Any:
            await wait_for_caller()
            return await self._carry_out(params)

        step = replace(
            made, name=self._backend.named(execution, call.name), function=act, is_async=True, output=OPERATIONS
        )
        try:
            return await invoke(execution, step, (), dict(call.tool_args))
        except StepOutcomeUnknown as error:
            # Said to the model, as our own agents do: it can look whether it has happened.
            raise ToolFailed(observation_of_failure(encode_error(error), call.name)) from error
        except StepTimedOut as error:
            raise ModelRetry(observation_of_failure(encode_error(error), call.name)) from error


class _Other(_Bound):
    """Whatever else the library does outside of workflow code: looks for tools, tells a handler of an event."""

    async def _issue(self, execution: Execution, params: Any, config: StepDefinition | None) -> Any:
        async def act() -> Any:
            return await self._carry_out(params)

        name = self._backend.named(execution, _name_of(self._operation, params))
        return await invoke(execution, StepDefinition(name, act, True, OPERATIONS, (), {}), (), {})


def _name_of(operation: DurableOperation[Any, Any, Any], params: Any) -> str:
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
        case other:  # of a later version of the library
            return type(other).__name__
