"""One model call as a recorded step.

In workflow code, ``issue_within_budget`` issues the step ``model call`` and returns its ``Reply``. When a budget does
not allow the call, the step records that as its failure. The run then waits, parked, until the budget is raised, and
issues the call again. A full context is recorded in the same way, for the agent loop to handle (``context_limit``).

In the step, ``ask_model`` reserves what the call may use, calls the first model of the chain that has not failed for
good, and returns the reply. After a transient failure, the engine repeats the step. The state of the models is the
step's progress (``chain``). The retries of the provider's SDK are off.
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
"""How long a call outside a run is repeated at most: its caller waits, and a crash loses everything."""


class ModelCall:
    """The input of a model call. Workflow code makes it, the step reads it, and the journal never contains it.

    Not a dataclass: the journal shows the arguments of a step, and would show its fields instead of the turn.
    """

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
        continue_if_truncated: bool = False,
    ) -> None:
        self.model_chain = model_chain
        self.messages = messages
        """The whole conversation so far: the list itself, which does not change while the call is in flight."""
        self.parameters = parameters
        self.turn = turn
        self.get_feedback = get_feedback
        """Returns why an answer cannot be used, in words for the model, or ``None`` if it can."""
        self.last_usage = last_usage
        """The usage of the previous call in the same conversation, from which the next input is estimated."""
        self.peak_output_tokens = peak_output_tokens
        """The most output tokens of a call of this conversation so far."""
        self.seen_parts = seen_parts or SeenParts()
        """Which messages were already scanned, so that a turn scans only the new ones."""
        self.context_limit = context_limit
        """Detects a full context; ``None``: if the provider rejects the conversation as too long, the call fails."""
        self.continue_if_truncated = continue_if_truncated
        """Whether the model continues a text that was cut off at the token limit."""
        self._add_earlier_messages = add_earlier_messages

    def __repr__(self) -> str:
        return str(self.turn)

    async def get_all_messages(self) -> Sequence[ModelMessage]:
        """The messages to send, with those of earlier runs of the session. Only a step can read these."""
        return self.messages if self._add_earlier_messages is None else await self._add_earlier_messages(self.messages)


async def issue_within_budget(execution: Execution, call: StepCall) -> tuple[Any, Outcome]:
    """Issue a step that calls a model, as soon as the budgets allow it. Returns its value and its outcome."""
    while True:
        outcome = await execution.issue(RecordKind.STEP, call.step.name, call)
        try:
            return read_outcome(execution, call.step, outcome), outcome
        except BudgetExceeded:
            pass
        await execution.issue(RecordKind.SIGNAL, BUDGET_SIGNAL, "a higher budget")


async def ask_model(model_call: ModelCall) -> Reply:
    """The step: reserve, call, and check the answer. Outside a run, it reserves nothing and waits by itself."""
    step = current_context.get(None)
    chain = model_call.model_chain
    state = ChainState.from_progress(None if step is None else step.progress, chain)
    messages = await model_call.get_all_messages()
    for number in itertools.count():
        index = state.choose_index(_get_time())
        model = chain.models[index]
        try:
            response, usage = await _ask_once(model_call, model, messages, number)
        except Exception as error:
            if isinstance(error, HoldfastError) and not isinstance(error, ModelRequestRejected | UsageError):
                raise  # an exceeded budget or an unavailable store is not the model's failure
            failure = classify_error(error)
            if failure.is_too_long and (limit := model_call.context_limit) is not None:
                if (full := limit.interpret_rejection(model_call, model, messages, failure)) is not None:
                    raise full from error
                failure = failure._replace(hint=limit.make_hint())
            wait = _note_failure(state, index, chain.get_retry_policy(model), failure, error)
        else:
            feedback = None if model_call.get_feedback is None else model_call.get_feedback(response)
            is_continued = model_call.continue_if_truncated and feedback is None and is_truncated_text(response)
            return Reply(
                response,
                get_model_name(model),
                usage,
                tuple(state.list_failed(except_index=index)),
                CONTINUE_PROMPT if is_continued else feedback,
                is_continued=is_continued,
            )
        if wait is None:
            attempts, others = state.models[index].attempts, state.list_failed(except_index=index)
            raise make_model_error(
                get_model_name(model), failure, attempts, others, "" if step is None else step.run_id
            )
        if step is not None:
            step.heartbeat(state.to_progress())
            if wait:
                raise TransientModelError(state.describe_failures(), wait)
        await asyncio.sleep(wait)
    raise AssertionError("the loop ends with a reply or an error")


def _note_failure(
    state: ChainState, index: int, policy: RetryPolicy, failure: ModelFailure, error: Exception
) -> float | None:
    """Note that a model gave no answer. Returns the seconds until the next request; ``None``: there is none."""
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
    """Call one model once. ``request_number`` counts the requests of this attempt."""
    executor = find_step_executor()
    should_stream = executor is not None and model_call.model_chain.should_stream
    await load_model(model)
    loaded = get_model(model)
    await warm_up_decoder(loaded, stream=should_stream)
    if model_call.context_limit is not None:
        model_call.context_limit.check(model_call, loaded, messages)
    if executor is not None and executor.run.has_budget:
        await executor.reserve(estimate_usage(model_call, loaded, messages))
    settings = disable_sdk_retries(loaded, model_call.model_chain.settings)
    scope = asyncio.timeout(model_call.model_chain.timeout_s)
    try:
        async with scope:
            prepared = prepare_messages(loaded, messages, model_call.parameters, model_call.seen_parts)
            on_text = None
            if executor is not None and should_stream:
                on_text = executor.get_text_appender(current_context.get(), request_number)
            response = await request(loaded, prepared, settings, model_call.parameters, on_text)
    except TimeoutError:
        if scope.expired():
            raise TimeoutError(f"no answer within {model_call.model_chain.timeout_s:g} s") from None
        raise
    return response, usage_from_response(response)


_MODEL_CALL_RETRY = RetryPolicy(
    backoff=0.0, give_up_after=None, retry_on=(TransientModelError,), read_retry_after=read_retry_after
)
"""Without limits of its own: the step counts the attempts for each model, and says when to repeat it."""


def make_model_call_step(name: str, function: Callable[[Any], Awaitable[Reply]]) -> StepDefinition:
    """A step that calls a model: it records a ``Reply`` with its usage. The journal shows the call's turn."""
    return StepDefinition(
        name,
        function,
        is_async=True,
        output_codec=REPLY_CODEC,
        parameters=("turn",),
        namespace={},
        retry=_MODEL_CALL_RETRY,
        read_usage=lambda reply: ModelUsage(reply.usage, reply.model),
    )


MODEL_CALL_STEP = make_model_call_step(STEP, ask_model)
