"""An agent of the library that is called outside workflow code: each call is a run of its own.

The workflow has the agent's name, and its function calls the agent again, now in workflow code. The caller waits for
that run, and gets a result that is read from the store. So a program that was killed and is started again joins its
run, and after the run has ended, it gets the recorded result.

Besides the answer, the last step of the run records its messages. Requests are not recorded one by one, because they
follow from the answers.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pydantic_ai
from pydantic import TypeAdapter
from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.messages import ModelMessage, ModelResponse

import holdfast
from holdfast.admission.durations import Duration
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget, Usage
from holdfast.agents.models.finish_reasons import get_ending
from holdfast.agents.models.messages import dump_messages, load_messages
from holdfast.agents.models.prices import usage_from_response
from holdfast.authoring.introspection import attribute_to_caller, resolve_hints
from holdfast.authoring.step import invoke
from holdfast.authoring.workflow import PreparedStart, Workflow
from holdfast.authoring.workflow_options import make_queue_key, resolve_queue_name
from holdfast.client.handle import Handle
from holdfast.client.run_operations import RunOperations
from holdfast.codec import InputsCodec, codec_for, decode_plain
from holdfast.core.execution import Execution, get_current_execution
from holdfast.engine.definitions import StepDefinition, WorkflowDefinition
from holdfast.errors import UsageError
from holdfast.integrations.pydantic_ai.agent_call import AgentCall, call_arguments_from_inputs, call_to_inputs
from holdfast.integrations.pydantic_ai.bindings import Bindings
from holdfast.integrations.pydantic_ai.live_run import LivePosition, current_position
from holdfast.integrations.pydantic_ai.output_codecs import RunResultCodec, TypedOutput, make_output_codec
from holdfast.reports.agent_result import FINISH_STOP, AgentResult, AgentResultCodec
from holdfast.services.store_provider import StoreProvider

if TYPE_CHECKING:
    from holdfast.integrations.pydantic_ai.capability import Durable

MESSAGES_STEP = "new messages"
"""The step that records the messages. No tool can have this name, because of the space."""

_result_adapter = TypeAdapter(AgentRunResult[Any])
_EXCLUDED_FIELDS = {"output", "messages"}
"""Fields of a result that are recorded in Holdfast's own form."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of ``Durable`` for an agent's runs."""

    queue: str | Queue | None = None
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()
    budget: Budget | None = None


class AgentWorkflow(Workflow[..., Any]):
    """The workflow of an agent: ``Durable.from_agent(agent).workflow``. Its inputs are the arguments of ``agent.run``.

    ``await agent.run(...)`` is the same as ``await workflow(...)``; ``workflow.start(...)`` returns a handle, and
    ``workflow.options(...)`` sets an id, tags, or a budget.
    """

    def __init__(self, durable: Durable[Any], agent: Agent[Any, Any], options: RunOptions) -> None:
        self.durable = durable
        self.agent = agent
        self.bindings = Bindings(durable)
        super().__init__(self._define(options))

    # Overrides of Workflow

    def prepare_start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> PreparedStart:
        """The recorded form of the arguments. Those that cannot be recorded are bound to the run in this process."""
        if len(args) > 1:
            raise UsageError(f"agent {self.name!r} takes its prompt, and all else by name, as `agent.run` does")
        if args and isinstance(args[0], AgentCall):
            call = args[0]
        else:
            given = dict(kwargs)
            call = AgentCall(self.agent, args[0] if args else given.pop("user_prompt", None), given)
        inputs, bound = call_to_inputs(call, self.name, self.durable.models)

        def bind(run_id: str) -> None:
            self.bindings.add(run_id, bound)

        return PreparedStart((), inputs, bind, self.bindings.remove)

    def get_handle(self, provider: StoreProvider, run_id: str) -> AgentRunHandle:
        """A handle to one of its runs."""
        return AgentRunHandle(provider, run_id, self.definition, self.bindings)

    # The run

    async def _run(self, prompt: Any, message_history: list[Any] | None, settings: dict[str, Any] | None) -> Any:
        execution = get_current_execution()
        assert execution is not None
        try:
            return await self._execute_run(execution, prompt, message_history, settings or {})
        finally:
            # Not when the run only leaves memory. The library replaces the exception for that by its own.
            if not execution.loop.is_closing:
                self.bindings.remove(execution.run_id)

    async def _execute_run(
        self, execution: Execution, prompt: Any, message_history: list[Any] | None, settings: dict[str, Any]
    ) -> AgentResult[Any]:
        try:
            bound = self.bindings.get(execution.run_id, settings)
        except UsageError as missing:
            # Not drift, although the journal may have more records.
            execution.fatal_error = execution.fatal_error or missing
            raise
        arguments = call_arguments_from_inputs(prompt, message_history, settings) | dict(bound.arguments)
        arguments |= {"deps": bound.deps, "run_id": execution.run_id}
        token = current_position.set(None if bound.live_run is None else LivePosition(bound.live_run, execution.run_id))
        try:
            with bound.overrides.apply():
                result = await (self._run_stream(arguments) if settings.get("stream") else self.agent.run(**arguments))
        finally:
            current_position.reset(token)

        async def dump() -> dict[str, Any]:
            return _dump_result(result, arguments.get("message_history", ()))

        await invoke(execution, StepDefinition(MESSAGES_STEP, dump, True, _MESSAGES_CODEC, (), {}), (), {})
        answers = [message for message in result.new_messages() if isinstance(message, ModelResponse)]
        usage = sum((usage_from_response(answer) for answer in answers), Usage())
        ending = get_ending(answers[-1]) if answers else (FINISH_STOP, "")
        own_type = bound.arguments.get("output_type")
        output = result.output if own_type is None else TypedOutput(result.output, make_output_codec(own_type))
        return AgentResult(output, usage, execution.run_id, *ending)

    async def _run_stream(self, arguments: dict[str, Any]) -> AgentRunResult[Any]:
        """A run of ``run_stream``, which ends with the first answer that is a final result."""
        async with self.agent.run_stream(**arguments) as stream:
            await stream.get_output()
            return stream.result

    def _define(self, options: RunOptions) -> WorkflowDefinition:
        name = self.durable.name

        async def run(
            prompt: str | list[Any] | None = None,
            message_history: list[Any] | None = None,
            settings: dict[str, Any] | None = None,
        ) -> AgentResult[Any]:
            return await self._run(prompt, message_history, settings)

        signature, hints = inspect.signature(run), resolve_hints(run)
        defaults = dict.fromkeys(signature.parameters)
        skipped_paths = (os.path.dirname(cast(str, package.__file__)) + os.sep for package in (holdfast, pydantic_ai))
        namespace = attribute_to_caller(run, name, *skipped_paths, "<")
        return WorkflowDefinition(
            name=name,
            function=run,
            inputs_codec=InputsCodec(name, signature, hints),
            output_codec=RunResultCodec(make_output_codec(self.agent.output_type)),
            namespace=namespace,
            defaults=defaults,
            queue_key=make_queue_key(options.queue or name, signature, defaults, f"agent {name!r}"),
            queue=resolve_queue_name(options.queue or name, f"agent {name!r}"),
            timeout_s=options.timeout_s,
            tags=options.tags,
            budget=options.budget,
            is_agent=True,
            prepare_run=self.bindings.wait_for,
        )


def _dump_result(result: AgentRunResult[Any], history: Sequence[ModelMessage]) -> dict[str, Any]:
    """The recorded form of a result without the answer, and without messages that are inputs of the run."""
    messages = result.all_messages()
    known = len(history) if messages[: len(history)] == list(history) else 0
    rest = _result_adapter.dump_python(result, mode="json", exclude=_EXCLUDED_FIELDS)
    return {"known": known, "messages": dump_messages(messages[known:]), "result": rest}


class AgentRunHandle(Handle[Any]):
    """A started run of an agent of the library; its result is the library's ``AgentRunResult``."""

    __slots__ = ("_binding", "_bindings", "_provider")

    def __init__(
        self, provider: StoreProvider, run_id: str, definition: WorkflowDefinition, bindings: Bindings
    ) -> None:
        bound = bindings.get_referenced(run_id)
        own_type = None if bound is None else bound.arguments.get("output_type")
        codec = definition.output_codec if own_type is None else AgentResultCodec(make_output_codec(own_type))
        decode = partial(codec.decode, subject=f"the result of run {run_id!r}")
        super().__init__(RunOperations(provider, decode, [definition.namespace]), run_id)
        self._provider = provider
        self._bindings = bindings
        self._binding = bound  # keeps it alive for other handles to the same run

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait for the run's result. Raises the same errors as ``Handle.result``."""
        result: AgentResult[Any] = await super().result(timeout)
        # If the run had ended before the call, nothing else removes it. A failed run keeps it, for a retry.
        self._bindings.remove(self.run_id)
        record = await (await self._provider.store()).get_last_record(self.run_id, MESSAGES_STEP)
        if record is None:
            raise UsageError(f"run {self.run_id!r} has no record of its messages: it is not a run of this agent")
        recorded = cast("dict[str, Any]", _MESSAGES_CODEC.decode(record.payload or b"null", "the messages of a run"))
        messages = load_messages(recorded["messages"])
        if recorded["known"]:
            inputs: Any = decode_plain((await self._provider.read(self.run_id)).inputs)
            messages = load_messages(inputs["message_history"])[: recorded["known"]] + messages
        return _result_adapter.validate_python({**recorded["result"], "messages": messages, "output": result.output})


_MESSAGES_CODEC = codec_for(inspect.Signature.empty)
