"""An agent of the library that is called outside of workflow code: each call is a run of its own.

The workflow has the agent's name, and its function calls the agent once more, now as workflow code. Whoever has called
the agent waits for that run, and is handed a result that is read from the store; so a program that was killed and is
started again joins the run that it has left, and a third time it gets what is recorded.

Beside the answer, the messages of the run are recorded when it ends, as the last step: requests are not recorded one by
one, because they follow from the answers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, cast

import pydantic_ai
from pydantic import TypeAdapter
from pydantic_ai import Agent, AgentRunResult
from pydantic_ai.messages import ModelMessage, ModelResponse

import holdfast
from holdfast.admission.queue_limits import Queue
from holdfast.admission.usage import Budget, Usage
from holdfast.agents.models.finish_reasons import ending_of
from holdfast.agents.models.messages import dump_messages, load_messages
from holdfast.agents.models.prices import used_by
from holdfast.authoring.introspection import stands_for
from holdfast.authoring.step import invoke
from holdfast.authoring.workflow import Prepared, Workflow, queue_key, queue_name
from holdfast.client.handle import Handle
from holdfast.client.store_runs import Link, StoreRuns
from holdfast.codec import InputsCodec, codec_for, to_plain
from holdfast.core.execution import Execution, current_execution
from holdfast.engine.definitions import StepDefinition, WorkflowDefinition
from holdfast.errors import UsageError
from holdfast.integrations.pydantic_ai.agent_call import Call, recorded, restored
from holdfast.integrations.pydantic_ai.bindings import Bindings
from holdfast.integrations.pydantic_ai.live_run import LivePosition, position
from holdfast.integrations.pydantic_ai.output_codecs import RunResultCodec, TypedOutput, output_codec
from holdfast.reports.agent_result import FINISHED, AgentResult, AgentResultCodec

if TYPE_CHECKING:
    from holdfast.integrations.pydantic_ai.capability import Durable

MESSAGES = "new messages"
"""What the journal calls the step that records them. No tool can have this name, because of the space."""

_result = TypeAdapter(AgentRunResult[Any])
_REST = {"output", "messages"}
"""What of a result is recorded in our own form."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the runs of an agent are carried out, as its ``Durable`` says."""

    queue: str | Queue | None = None
    timeout: float | None = None
    tags: tuple[str, ...] = ()
    budget: Budget | None = None


class AgentWorkflow(Workflow[..., Any]):
    """The workflow of an agent: ``Durable.from_agent(agent).workflow``. Its inputs are the arguments of ``agent.run``.

    ``await agent.run(...)`` is ``await workflow(...)`` in other words; ``workflow.start(...)`` gives a handle, and
    ``workflow.options(...)`` an id, tags or a budget.
    """

    def __init__(self, durable: Durable[Any], agent: Agent[Any, Any], options: RunOptions) -> None:
        self.durable = durable
        self.agent = agent
        self.bindings = Bindings(durable)
        super().__init__(self._define(options))

    def options(self, **options: Any) -> AgentWorkflow:
        """The same workflow with options for the runs that are started through it: see ``Workflow.options``."""
        view = object.__new__(AgentWorkflow)
        view.__dict__.update(self.__dict__)
        view._options = super().options(**options).start_options
        return view

    # What the authoring room asks of a workflow

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Prepared:
        """The arguments as they are recorded, and those that are bound to this process."""
        if len(args) > 1:
            raise UsageError(f"agent {self.name!r} takes its prompt, and all else by name, as `agent.run` does")
        if args and isinstance(args[0], Call):
            call = args[0]
        else:
            given = dict(kwargs)
            call = Call(self.agent, args[0] if args else given.pop("user_prompt", None), given)
        inputs, bound = recorded(call, self.name, self.durable.models)

        def bind(run_id: str) -> None:
            self.bindings.add(run_id, bound)

        return Prepared((), inputs, bind, self.bindings.remove)

    def handle(self, link: Link, run_id: str) -> AgentRunHandle:
        """A handle to one of its runs."""
        return AgentRunHandle(link, run_id, self.definition, self.bindings)

    # The run

    async def _run(self, prompt: Any, message_history: list[Any] | None, settings: dict[str, Any] | None) -> Any:
        execution = current_execution()
        assert execution is not None
        try:
            return await self._result(execution, prompt, message_history, settings or {})
        finally:
            # Not when the run only leaves memory. The library turns the exception for that into others of its own.
            if not execution.loop.closing:
                self.bindings.remove(execution.run_id)

    async def _result(
        self, execution: Execution, prompt: Any, message_history: list[Any] | None, settings: dict[str, Any]
    ) -> AgentResult[Any]:
        try:
            bound = self.bindings.get(execution.run_id, settings)
        except UsageError as missing:
            execution.fault = execution.fault or missing  # the code has not changed, whatever the journal has more
            raise
        given: dict[str, Any] = restored(prompt, message_history, settings) | dict(bound.arguments)
        given |= {"deps": bound.deps, "run_id": execution.run_id}
        token = position.set(None if bound.live is None else LivePosition(bound.live, execution.run_id))
        try:
            with bound.overrides.active():
                result = await (self._stream(given) if settings.get("stream") else self.agent.run(**given))
        finally:
            position.reset(token)

        async def tell() -> dict[str, Any]:
            return _told(result, given.get("message_history", ()))

        await invoke(execution, StepDefinition(MESSAGES, tell, True, _MESSAGES, (), {}), (), {})
        answers = [one for one in result.new_messages() if isinstance(one, ModelResponse)]
        used = sum((used_by(one) for one in answers), Usage())
        ended = ending_of(answers[-1]) if answers else (FINISHED, "")
        own_type = bound.arguments.get("output_type")
        output = result.output if own_type is None else TypedOutput(result.output, output_codec(own_type))
        return AgentResult(output, used, execution.run_id, *ended)

    async def _stream(self, given: dict[str, Any]) -> AgentRunResult[Any]:
        """A run of ``run_stream``, which ends with the first answer that is a final result."""
        async with self.agent.run_stream(**given) as stream:
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

        homes = (os.path.dirname(cast(str, one.__file__)) + os.sep for one in (holdfast, pydantic_ai))
        namespace = stands_for(run, name, *homes, "<")
        hints: dict[str, Any] = {
            "prompt": str | list[Any] | None,
            "message_history": list[Any] | None,
            "settings": dict[str, Any] | None,
        }
        signature = Signature([Parameter(one, Parameter.POSITIONAL_OR_KEYWORD, default=None) for one in hints])
        return WorkflowDefinition(
            name=name,
            function=run,
            inputs=InputsCodec(name, signature, hints),
            output=RunResultCodec(output_codec(self.agent.output_type)),
            namespace=namespace,
            defaults=dict.fromkeys(hints),
            queue_key=queue_key(options.queue or name, signature, dict.fromkeys(hints), f"agent {name!r}"),
            queue=queue_name(options.queue or name, f"agent {name!r}"),
            timeout=options.timeout,
            tags=options.tags,
            budget=options.budget,
            is_agent=True,
            ready=self.bindings.wait_for,
        )


def _told(result: AgentRunResult[Any], history: Sequence[ModelMessage]) -> dict[str, Any]:
    """What is recorded of a result beside the answer; of the messages only those that are no inputs."""
    messages = result.all_messages()
    known = len(history) if messages[: len(history)] == list(history) else 0
    rest = _result.dump_python(result, mode="json", exclude=_REST)
    return {"known": known, "messages": dump_messages(messages[known:]), "result": rest}


class AgentRunHandle(Handle[Any]):
    """A started run of an agent of the library; its result is the library's ``AgentRunResult``."""

    __slots__ = ("_bindings", "_bound", "_link")

    def __init__(self, link: Link, run_id: str, definition: WorkflowDefinition, bindings: Bindings) -> None:
        bound = bindings.of_call(run_id)
        own_type = None if bound is None else bound.arguments.get("output_type")
        codec = definition.output if own_type is None else AgentResultCodec(output_codec(own_type))
        decode = partial(codec.decode, what=f"the result of run {run_id!r}")
        super().__init__(StoreRuns(link, decode, [definition.namespace]), run_id)
        self._link = link
        self._bindings = bindings
        self._bound = bound  # held for other handles to the same run

    async def result(self, timeout: float | None = None) -> Any:
        """The run's result, once it has ended. Raises as that of any run does."""
        result: AgentResult[Any] = await super().result(timeout)
        # There is no other occasion if the run had ended before the call. One that failed may be retried.
        self._bindings.remove(self.run_id)
        record = await self._link.last_record(self.run_id, MESSAGES)
        if record is None:
            raise UsageError(f"run {self.run_id!r} has no record of its messages: it is not a run of this agent")
        told = cast("dict[str, Any]", _MESSAGES.decode(record.payload or b"null", "the messages of a run"))
        messages = load_messages(told["messages"])
        if told["known"]:
            inputs: Any = to_plain((await self._link.read(self.run_id)).inputs)
            messages = load_messages(inputs["message_history"])[: told["known"]] + messages
        return _result.validate_python({**told["result"], "messages": messages, "output": result.output})


_MESSAGES = codec_for(Signature.empty)
