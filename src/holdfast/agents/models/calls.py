"""One model call as a recorded step.

In workflow code, ``call_model`` issues the step ``model call`` and returns its ``Reply``. When a budget does not allow
the call, that is recorded as the step's failure; the run then waits, parked, for somebody to raise the budget, and the
call is issued again. When the context is full, that is recorded likewise, for the loop to see (``context``).

In the step, ``ask`` reserves what the call may use, asks the first model of the chain that has not failed for good, and
returns the reply. A fault that may pass makes the engine repeat the step after a while (``faults.RETRIES``): what has
failed so far is kept as the step's progress, so that neither a crash nor a retry begins the chain anew. The provider
SDK's own retries are off.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from holdfast.agents.models.choosing import load_model, model_for, name_of, own_retries_off
from holdfast.agents.models.faults import Fault, PassingFault, failure, fault_of, next_wait, wait_of
from holdfast.agents.models.prices import expected, used_by
from holdfast.agents.models.reply import REPLIES, Reply
from holdfast.agents.models.request import Looked, request, sendable
from holdfast.authoring.step import read_outcome
from holdfast.client.recorded_reply import MODEL_CALL as STEP
from holdfast.client.recorded_reply import FailedModel
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution
from holdfast.core.records import Kind
from holdfast.core.retry import RetryPolicy
from holdfast.core.usage import BUDGET_SIGNAL, Usage
from holdfast.engine.definitions import StepCall, StepDefinition, Used
from holdfast.engine.step_context import StepContext, current
from holdfast.errors import BudgetExceeded, HoldfastError, ModelRefused, UsageError

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

    from holdfast.agents.models.context import Room

TIMEOUT = 300.0
"""Seconds that one attempt may take, unless somebody says otherwise."""


@dataclass(frozen=True, slots=True)
class ModelChain:
    """A model, its fallbacks in order, and how they are asked."""

    models: tuple[str | Model, ...]
    settings: Mapping[str, Any] | None = None
    """The model library's ``ModelSettings``."""
    timeout: float = TIMEOUT
    """Seconds that one attempt may take."""
    stream: bool = True
    """Whether answers are asked for as streams, so that whoever follows the run reads them while they come."""


class Ask:
    """What a model is asked. Made in workflow code, and read by the step: it is never recorded."""

    __slots__ = ("chain", "check", "looked", "messages", "most_output", "parameters", "room", "told", "turn", "whole")

    def __init__(
        self,
        chain: ModelChain,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        *,
        turn: int = 1,
        check: Callable[[ModelResponse], str | None] | None = None,
        told: Usage | None = None,
        most_output: int = 0,
        whole: Callable[[Sequence[ModelMessage]], Awaitable[list[ModelMessage]]] | None = None,
        looked: Looked | None = None,
        room: Room | None = None,
    ) -> None:
        self.chain = chain
        self.messages = messages
        """All of the conversation so far: the list itself, which nobody changes while the call is in flight."""
        self.parameters = parameters
        self.turn = turn
        self.check = check
        """Tells, in words for the model, why an answer cannot be used; ``None``: it can."""
        self.told = told
        """The usage of the call before this one in the same conversation, from which the next input is estimated."""
        self.most_output = most_output
        """The most output tokens that a call of this conversation had so far."""
        self.whole = whole
        """Puts before these messages what was said in earlier runs, which only the step can read."""
        self.looked = looked or Looked()
        """What is known of the conversation's older messages, so that they are not looked at in each turn."""
        self.room = room
        """Tells when the context is full; ``None``: it is the provider who refuses it, and that is a failure."""

    def __repr__(self) -> str:
        return str(self.turn)


async def call_model(execution: Execution, ask: Ask) -> Reply:
    """Ask a model from workflow code, as a recorded step."""
    reply, _ = await within_budget(execution, StepCall(MODEL_CALL, (ask,), {}))
    return reply


async def within_budget(execution: Execution, call: StepCall) -> tuple[Any, Outcome]:
    """Call a step that asks a model, once the budgets allow it: the value that it returned, and its outcome."""
    while True:
        outcome = await execution.issue(Kind.STEP, call.step.name, call)
        try:
            return read_outcome(execution, call.step, outcome), outcome
        except BudgetExceeded:
            pass
        await execution.issue(Kind.SIGNAL, BUDGET_SIGNAL, "a higher budget")


async def ask(question: Ask) -> Reply:
    """The step: reserve, ask, and check the answer. Outside of a run nothing is reserved, and it waits by itself."""
    step = current.get(None)
    tried = _Tried.of(step, question.chain)
    messages = question.messages
    if question.whole is not None:
        messages = await question.whole(messages)
    for model in question.chain.models[len(tried.failed) :]:
        while True:
            try:
                response, usage = await _ask_once(question, model, messages, step, len(tried.failed))
            except Exception as error:
                if isinstance(error, HoldfastError) and not isinstance(error, ModelRefused | UsageError):
                    raise  # a budget that would be passed, a store that cannot be written: no matter of the model's
                fault = fault_of(error)
                if fault.too_long and question.room is not None:
                    if (full := question.room.refused(question, model, messages, fault)) is not None:
                        raise full from error
                    fault = fault._replace(advice=question.room.advice())
            else:
                complaint = None if question.check is None else question.check(response)
                return Reply(response, name_of(model), usage, tuple(tried.failed), complaint)
            tried.attempts += 1
            wait = next_wait(fault, tried.attempts, random.random() if step is None else step.engine.clock.draw())
            if wait is None:
                break
            if step is not None:
                step.heartbeat(tried.plain(question.chain))
                raise PassingFault(f"{name_of(model)}: {fault.told}", wait)
            await asyncio.sleep(wait)
        attempts = tried.give_up(name_of(model), fault)
        if len(tried.failed) < len(question.chain.models):
            if step is not None:
                step.heartbeat(tried.plain(question.chain))
            continue
        raise failure(name_of(model), fault, attempts, tried.failed[:-1], "" if step is None else step.run_id)
    raise AssertionError("a chain has at least one model")


@dataclass(slots=True)
class _Tried:
    """How far a chain has been tried: the progress of the step."""

    failed: list[FailedModel] = field(default_factory=list[FailedModel])
    """The models that are not asked any more."""
    attempts: int = 0
    """How often the model after them has been asked in vain."""

    @classmethod
    def of(cls, step: StepContext | None, chain: ModelChain) -> _Tried:
        """What earlier attempts of the step have left; nothing, if the chain is another one now."""
        progress: Any = None if step is None else step.progress
        if not isinstance(progress, dict) or "asked" not in progress:  # an @llm_step may have progress of its own
            return cls()
        progress = cast("dict[str, Any]", progress)
        failed = [FailedModel(one["model"], one["error"], one["attempts"]) for one in progress["failed"]]
        names = [name_of(model) for model in chain.models]
        if [*(one.model for one in failed), progress["asked"]] != names[: len(failed) + 1]:
            return cls()
        return cls(failed, progress["attempts"])

    def plain(self, chain: ModelChain) -> dict[str, Any]:
        """As progress."""
        failed = [{"model": one.model, "error": one.error, "attempts": one.attempts} for one in self.failed]
        return {"failed": failed, "asked": name_of(chain.models[len(failed)]), "attempts": self.attempts}

    def give_up(self, model: str, fault: Fault) -> int:
        """This model is not asked any more; how often it was."""
        attempts, self.attempts = self.attempts, 0
        self.failed.append(FailedModel(model, fault.told, attempts))
        return attempts


async def _ask_once(
    question: Ask,
    model: str | Model,
    messages: Sequence[ModelMessage],
    step: StepContext | None,
    failed: int,
) -> tuple[ModelResponse, Usage]:
    """Ask one model one time, after so many others that have given no answer."""
    await load_model(model)
    asked = model_for(model)
    if question.room is not None:
        question.room.check(question, asked, messages)
    if step is not None and step.run.has_budget:
        await step.reserve(expected(question, asked, messages))
    settings = own_retries_off(asked, question.chain.settings)
    scope = asyncio.timeout(question.chain.timeout)
    try:
        async with scope:
            whole = sendable(asked, messages, question.parameters, question.looked)
            hear = None if step is None or not question.chain.stream else step.listener(failed)
            response = await request(asked, whole, settings, question.parameters, hear)
    except TimeoutError:
        if scope.expired():
            raise TimeoutError(f"no answer within {question.chain.timeout:g} s") from None
        raise
    return response, used_by(response)


RETRY = RetryPolicy(retries=sys.maxsize, retry_on=(PassingFault,), wait_of=wait_of)
"""As often as the step that asks says so: it counts its attempts for each model."""

MODEL_CALL = StepDefinition(
    STEP,
    ask,
    is_async=True,
    output=REPLIES,
    parameters=("turn",),
    namespace={},
    retry=RETRY,
    used=lambda reply: Used(reply.usage, reply.model),
)
"""The step."""
