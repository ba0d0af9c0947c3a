"""One model call as a recorded step.

In workflow code, ``call_model`` issues the step ``model call`` and returns its ``Reply``. When a budget does not allow
the call, that is recorded as the step's failure; the run then waits, parked, for somebody to raise the budget, and the
call is issued again. When the context is full, that is recorded likewise, for the loop to see (``context_limit``).

In the step, ``ask`` reserves what the call may use, asks the first model of the chain that has not failed for good, and
returns the reply. A fault that may pass makes the engine repeat the step after a while: what is known of the models so
far is kept as the step's progress (``chain``). The provider SDK's own retries are off.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.admission.usage import BUDGET_SIGNAL, Usage
from holdfast.agents.models.chain import ChainState, ModelChain
from holdfast.agents.models.decoder_warmup import load_decoding
from holdfast.agents.models.errors import Fault, PassingFault, failure, fault_of, next_wait, wait_of
from holdfast.agents.models.finish_reasons import CONTINUE, is_cut_text
from holdfast.agents.models.model_resolution import load_model, model_for, name_of, own_retries_off
from holdfast.agents.models.prices import expected, used_by
from holdfast.agents.models.reply import REPLIES, Reply
from holdfast.agents.models.request import Looked, request, sendable
from holdfast.authoring.step import read_outcome
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution
from holdfast.core.records import Kind
from holdfast.core.retry_policy import RetryPolicy
from holdfast.engine.definitions import StepCall, StepDefinition, Used
from holdfast.engine.step_context import StepContext, current
from holdfast.errors import BudgetExceeded, HoldfastError, ModelRefused, UsageError
from holdfast.reports.recorded_reply import MODEL_CALL as STEP

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

    from holdfast.agents.models.context_limit import Room

OUTSIDE_RUNS = 60.0
"""Seconds for which a call outside of a run is repeated at most: it holds up its caller, and nothing of it is kept."""


class Ask:
    """What a model is asked. Made in workflow code, and read by the step: it is never recorded."""

    __slots__ = (
        *("chain", "check", "continues", "looked", "messages", "most_output"),
        *("parameters", "room", "told", "turn", "whole"),
    )

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
        continues: bool = False,
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
        self.continues = continues
        """Whether the model is to continue a text that was cut off at the limit of tokens."""

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
    chain = question.chain
    state = ChainState.of(None if step is None else step.progress, chain)
    messages = question.messages
    if question.whole is not None:
        messages = await question.whole(messages)
    place = state.first(_now(step))
    for number in itertools.count():
        model = chain.models[place]
        try:
            response, usage = await _ask_once(question, model, messages, step, number)
        except Exception as error:
            if isinstance(error, HoldfastError) and not isinstance(error, ModelRefused | UsageError):
                raise  # a budget that would be passed, a store that cannot be written: no matter of the model's
            fault = fault_of(error)
            if fault.too_long and question.room is not None:
                if (full := question.room.refused(question, model, messages, fault)) is not None:
                    raise full from error
                fault = fault._replace(advice=question.room.advice())
            wait = _note_failure(state, place, chain.policy_of(model), fault, error, step)
        else:
            complaint = None if question.check is None else question.check(response)
            continues = question.continues and complaint is None and is_cut_text(response)
            return Reply(
                response,
                name_of(model),
                usage,
                tuple(state.failed(but=place)),
                CONTINUE if continues else complaint,
                continues=continues,
            )
        if wait is None:
            run_id = "" if step is None else step.run_id
            raise failure(name_of(model), fault, state.models[place].attempts, state.failed(but=place), run_id)
        if step is not None:
            step.heartbeat(state.plain())
            if wait:
                raise PassingFault(state.told(), wait)
        await asyncio.sleep(wait)
        place = state.first(_now(step))
    raise AssertionError("somebody has answered, or the last one has failed")


def _note_failure(
    state: ChainState, place: int, policy: RetryPolicy, fault: Fault, error: Exception, step: StepContext | None
) -> float | None:
    """Note that a model gave no answer, and return the seconds until the next request; ``None``: there is none."""
    now, model = _now(step), state.models[place]
    model.attempts += 1
    if model.failing_since is None:
        model.failing_since = now
    draw = random.random() if step is None else step.engine.clock.draw()
    failing_for = now - model.failing_since
    wait = next_wait(policy, fault, error, model.attempts, draw, failing_for)
    if step is None and wait is not None and failing_for + wait > OUTSIDE_RUNS:
        wait = None
    return state.fail(place, fault, wait, now)


def _now(step: StepContext | None) -> float:
    return time.time() if step is None else step.engine.clock.now()


async def _ask_once(
    question: Ask,
    model: str | Model,
    messages: Sequence[ModelMessage],
    step: StepContext | None,
    number: int,
) -> tuple[ModelResponse, Usage]:
    """Ask one model one time: the request of this number in this attempt."""
    await load_model(model)
    asked = model_for(model)
    await load_decoding(asked, stream=step is not None and question.chain.stream)
    if question.room is not None:
        question.room.check(question, asked, messages)
    if step is not None and step.run.has_budget:
        await step.reserve(expected(question, asked, messages))
    settings = own_retries_off(asked, question.chain.settings)
    scope = asyncio.timeout(question.chain.timeout)
    try:
        async with scope:
            whole = sendable(asked, messages, question.parameters, question.looked)
            hear = None if step is None or not question.chain.stream else step.listener(number)
            response = await request(asked, whole, settings, question.parameters, hear)
    except TimeoutError:
        if scope.expired():
            raise TimeoutError(f"no answer within {question.chain.timeout:g} s") from None
        raise
    return response, used_by(response)


RETRY = RetryPolicy(backoff=0.0, give_up_after=None, retry_on=(PassingFault,), wait_of=wait_of)
"""As often and as long as the step that asks says so: it counts its attempts for each model."""

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
