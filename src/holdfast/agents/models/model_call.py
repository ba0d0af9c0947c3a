"""One model call as a recorded step.

In workflow code, ``issue_within_budget`` issues the step ``model call`` and returns its ``Reply``. When a budget does
not allow the call, that is recorded as the step's failure; the run then waits, parked, until the budget is raised, and
the call is issued again. A full context is recorded in the same way, for the loop to see (``context_limit``).

In the step, ``ask_model`` reserves what the call may use, asks the first model of the chain that has not failed for
good, and returns the reply. A fault that may pass makes the engine repeat the step after a while: what is known of the
models so far is kept as the step's progress (``chain``). The provider SDK's own retries are off.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.admission.usage import BUDGET_SIGNAL, Usage
from holdfast.agents.models.chain import ChainState, ModelChain
from holdfast.agents.models.decoder_warmup import warm_up_decoder
from holdfast.agents.models.errors import (
    ModelFailure,
    TransientModelError,
    classify_error,
    compute_next_delay_s,
    make_model_error,
    read_retry_after,
)
from holdfast.agents.models.finish_reasons import CONTINUE_PROMPT, is_truncated_text
from holdfast.agents.models.model_resolution import disable_sdk_retries, get_model, get_model_name, load_model
from holdfast.agents.models.prices import estimate_usage, usage_from_response
from holdfast.agents.models.reply import REPLY_CODEC, Reply
from holdfast.agents.models.request import SeenParts, prepare_messages, request
from holdfast.authoring.step import read_outcome
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution
from holdfast.core.records import RecordKind
from holdfast.engine.definitions import ModelUsage, StepCall, StepDefinition
from holdfast.engine.step_context import current_context, find_step_executor
from holdfast.errors import BudgetExceeded, HoldfastError, ModelRequestRejected, UsageError
from holdfast.reports.recorded_reply import MODEL_CALL_STEP as STEP

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

    from holdfast.agents.models.context_limit import ContextLimit

MAX_UNRECORDED_RETRY_S = 60.0
"""Seconds for which a call outside of a run is repeated at most: it holds up its caller, and nothing of it is kept."""


class ModelCall:
    """What a model is asked. Made in workflow code, and read by the step: it is never recorded."""

    __slots__ = (
        *("model_chain", "get_feedback", "should_continue", "seen_parts", "messages", "peak_output_tokens"),
        *("parameters", "context_limit", "last_usage", "turn", "add_earlier_messages"),
    )

    def __init__(
        self,
        model_chain: ModelChain,
        messages: Sequence[ModelMessage],
        parameters: ModelRequestParameters,
        *,
        turn: int = 1,
        get_feedback: Callable[[ModelResponse], str | None] | None = None,
        last_usage: Usage | None = None,
        peak_output_tokens: int = 0,
        add_earlier_messages: Callable[[Sequence[ModelMessage]], Awaitable[list[ModelMessage]]] | None = None,
        seen_parts: SeenParts | None = None,
        context_limit: ContextLimit | None = None,
        should_continue: bool = False,
    ) -> None:
        self.model_chain = model_chain
        self.messages = messages
        """All of the conversation so far: the list itself, which nobody changes while the call is in flight."""
        self.parameters = parameters
        self.turn = turn
        self.get_feedback = get_feedback
        """Tells, in words for the model, why an answer cannot be used; ``None``: it can."""
        self.last_usage = last_usage
        """The usage of the call before this one in the same conversation, from which the next input is estimated."""
        self.peak_output_tokens = peak_output_tokens
        """The most output tokens that a call of this conversation had so far."""
        self.add_earlier_messages = add_earlier_messages
        """Puts before these messages what was said in earlier runs, which only the step can read."""
        self.seen_parts = seen_parts or SeenParts()
        """What is known of the conversation's older messages, so that they are not looked at in each turn."""
        self.context_limit = context_limit
        """Tells when the context is full; ``None``: it is the provider who refuses it, and that is a failure."""
        self.should_continue = should_continue
        """Whether the model is to continue a text that was cut off at the limit of tokens."""

    def __repr__(self) -> str:
        return str(self.turn)


async def issue_within_budget(execution: Execution, call: StepCall) -> tuple[Any, Outcome]:
    """Call a step that asks a model, once the budgets allow it: the value that it returned, and its outcome."""
    while True:
        outcome = await execution.issue(RecordKind.STEP, call.step.name, call)
        try:
            return read_outcome(execution, call.step, outcome), outcome
        except BudgetExceeded:
            pass
        await execution.issue(RecordKind.SIGNAL, BUDGET_SIGNAL, "a higher budget")


async def ask_model(model_call: ModelCall) -> Reply:
    """The step: reserve, ask, and check the answer. Outside of a run nothing is reserved, and it waits by itself."""
    step = current_context.get(None)
    chain = model_call.model_chain
    state = ChainState.from_progress(None if step is None else step.progress, chain)
    messages = model_call.messages
    if model_call.add_earlier_messages is not None:
        messages = await model_call.add_earlier_messages(messages)
    place = state.choose_index(_get_time())
    for number in itertools.count():
        model = chain.models[place]
        try:
            response, usage = await _ask_once(model_call, model, messages, number)
        except Exception as error:
            if isinstance(error, HoldfastError) and not isinstance(error, ModelRequestRejected | UsageError):
                raise  # a budget that would be passed, a store that cannot be written: no matter of the model's
            fault = classify_error(error)
            if fault.is_too_long and model_call.context_limit is not None:
                if (
                    full := model_call.context_limit.interpret_rejection(model_call, model, messages, fault)
                ) is not None:
                    raise full from error
                fault = fault._replace(hint=model_call.context_limit.make_hint())
            wait = _note_failure(state, place, chain.get_retry_policy(model), fault, error)
        else:
            complaint = None if model_call.get_feedback is None else model_call.get_feedback(response)
            continues = model_call.should_continue and complaint is None and is_truncated_text(response)
            return Reply(
                response,
                get_model_name(model),
                usage,
                tuple(state.list_failed(except_index=place)),
                CONTINUE_PROMPT if continues else complaint,
                is_continued=continues,
            )
        if wait is None:
            run_id = "" if step is None else step.run_id
            raise make_model_error(
                get_model_name(model),
                fault,
                state.models[place].attempts,
                state.list_failed(except_index=place),
                run_id,
            )
        if step is not None:
            step.heartbeat(state.to_progress())
            if wait:
                raise TransientModelError(state.describe_failures(), wait)
        await asyncio.sleep(wait)
        place = state.choose_index(_get_time())
    raise AssertionError("somebody has answered, or the last one has failed")


def _note_failure(
    state: ChainState, index: int, policy: RetryPolicy, failure: ModelFailure, error: Exception
) -> float | None:
    """Note that a model gave no answer, and return the seconds until the next request; ``None``: there is none."""
    now, model = _get_time(), state.models[index]
    model.attempts += 1
    if model.failing_since is None:
        model.failing_since = now
    executor = find_step_executor()
    draw = random.random() if executor is None else executor.engine.clock.draw_random()
    failing_for = now - model.failing_since
    wait = compute_next_delay_s(policy, failure, error, model.attempts, draw, failing_for)
    if executor is None and wait is not None and failing_for + wait > MAX_UNRECORDED_RETRY_S:
        wait = None
    return state.record_failure(index, failure, wait, now)


def _get_time() -> float:
    executor = find_step_executor()
    return time.time() if executor is None else executor.engine.clock.now()


async def _ask_once(
    model_call: ModelCall, model: str | Model, messages: Sequence[ModelMessage], request_number: int
) -> tuple[ModelResponse, Usage]:
    """Ask one model one time: the request of this number in this attempt."""
    executor = find_step_executor()
    should_stream = executor is not None and model_call.model_chain.should_stream
    await load_model(model)
    asked = get_model(model)
    await warm_up_decoder(asked, stream=should_stream)
    if model_call.context_limit is not None:
        model_call.context_limit.check(model_call, asked, messages)
    if executor is not None and executor.run.has_budget:
        await executor.reserve(estimate_usage(model_call, asked, messages))
    settings = disable_sdk_retries(asked, model_call.model_chain.settings)
    scope = asyncio.timeout(model_call.model_chain.timeout_s)
    try:
        async with scope:
            whole = prepare_messages(asked, messages, model_call.parameters, model_call.seen_parts)
            append = (
                executor.get_text_appender(current_context.get(), request_number)
                if executor is not None and should_stream
                else None
            )
            response = await request(asked, whole, settings, model_call.parameters, append)
    except TimeoutError:
        if scope.expired():
            raise TimeoutError(f"no answer within {model_call.model_chain.timeout_s:g} s") from None
        raise
    return response, usage_from_response(response)


MODEL_CALL_RETRY = RetryPolicy(
    backoff=0.0, give_up_after=None, retry_on=(TransientModelError,), read_retry_after=read_retry_after
)
"""As often and as long as the step that asks says so: it counts its attempts for each model."""

MODEL_CALL_STEP = StepDefinition(
    STEP,
    ask_model,
    is_async=True,
    output_codec=REPLY_CODEC,
    parameters=("turn",),
    namespace={},
    retry=MODEL_CALL_RETRY,
    read_usage=lambda reply: ModelUsage(reply.usage, reply.model),
)
"""The step."""
