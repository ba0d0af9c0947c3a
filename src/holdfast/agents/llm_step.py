"""``@llm_step``: one question to a model as a step of a workflow.

The function returns the prompt, and the caller of the step gets the model's answer. In a run, the step's own function
is the user's function followed by one model call, and the step records the answer (see ``llm_answers``). An answer that
does not fit is recorded like any other. The workflow then issues the step again, under the same name, with the prompt
from the record and the feedback for the answer; it does not call the user's function again. So the journal contains
every paid call, and a crash between two of them repeats neither.

Exceptions of the user's function are retried as its ``@step`` says; failures of a model call, as ``models.errors``
says.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload
from weakref import WeakKeyDictionary

from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.llm_answers import AnswerCodec, InvalidAnswer, PromptedReply, build_correction_messages, read_usage
from holdfast.agents.models.chain import ModelChain
from holdfast.agents.models.errors import TransientModelError
from holdfast.agents.models.model_call import ModelCall, ask_model, issue_within_budget
from holdfast.agents.models.model_options import ModelOptions, make_model_chain
from holdfast.agents.models.model_resolution import PriorCalls, load_library, prior_calls
from holdfast.agents.output import OutputSpec, make_correction
from holdfast.authoring.introspection import format_location, is_async, resolve_hints
from holdfast.authoring.keyword_hints import reject_unknown_keywords
from holdfast.authoring.step import Step, define_step, get_modifiers, get_wrapped_function
from holdfast.core.commands import Outcome
from holdfast.core.execution import Execution
from holdfast.core.failure_origin import mark_origin
from holdfast.core.states import Effect
from holdfast.engine import step_context
from holdfast.engine.definitions import Compensation, StepCall, StepDefinition
from holdfast.errors import BudgetExceeded, DefinitionError, ModelError, TurnLimitReached, UsageError
from holdfast.reports.recorded_reply import ANSWER_TOOL

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_MAX_TURNS = 3
"""Maximum number of model calls until the answer fits."""


_call_counts: WeakKeyDictionary[Execution, Counter[int]] = WeakKeyDictionary()
"""The questions of a run so far, by model."""


class _LlmStepDecorator(Protocol):
    """The type of ``@llm_step(...)``; only for type checkers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class _TypedDecorator(Protocol, Generic[T]):
    """The type of ``@llm_step(..., output_type=...)``."""

    def __call__(self, function: Callable[P, Any], /) -> Step[P, T]: ...


_KEYWORD_HINTS = {
    "system_prompt": "write instructions=",
    "prompt": "the function returns the prompt",
    "result_type": "write output_type=, or annotate what the function returns",
    "response_format": "write output_type=, or annotate what the function returns",
    "settings": "write model_options=ModelOptions(settings={'temperature': ...})",
    "model_settings": "write model_options=ModelOptions(settings={'temperature': ...})",
    "temperature": "write model_options=ModelOptions(settings={'temperature': ...})",
    "timeout": "write model_options=ModelOptions(timeout=...) for one model call, or @step(timeout=...) for the step",
    "retry": "write model_options=ModelOptions(retry=...) for model calls, or @step(retry=...) for the function",
    "stream": "write model_options=ModelOptions(stream=...)",
    "retries": "write it at @step(retries=...), for the function; model calls have their own",
    "max_retries": "write max_turns=, how often the model is asked until its answer fits",
    "tools": "an @llm_step is one question; give tools to an Agent",
}
"""By the names that other frameworks use for an argument."""


@overload
def llm_step(
    *,
    model: str | Model,
    fallback: str | Model | Sequence[str | Model] = (),
    instructions: str | None = None,
    model_options: ModelOptions | None = None,
    max_turns: int = DEFAULT_MAX_TURNS,
) -> _LlmStepDecorator: ...
@overload
def llm_step(
    *,
    model: str | Model,
    fallback: str | Model | Sequence[str | Model] = (),
    output_type: type[T],
    instructions: str | None = None,
    model_options: ModelOptions | None = None,
    max_turns: int = DEFAULT_MAX_TURNS,
) -> _TypedDecorator[T]: ...
@reject_unknown_keywords("@llm_step", **_KEYWORD_HINTS)
def llm_step(
    bare: Any = None,
    /,
    *,
    model: Any = None,
    fallback: str | Model | Sequence[str | Model] = (),
    output_type: Any = None,
    instructions: str | None = None,
    model_options: ModelOptions | None = None,
    max_turns: int = DEFAULT_MAX_TURNS,
) -> Any:
    """Make a function a question to a model: it returns the prompt, and the step's output is the model's answer.

    The prompt is a text, a list of texts, images, and documents, or messages of the pydantic-ai library. Use it above
    or below ``@step``, whose ``retries`` are for the function itself, and whose ``timeout`` is for an attempt as a
    whole; or, for steps of workflow functions, alone. The function is called once for each attempt to reach a model.

    Args:
        model: ``"provider:name"``, or a model of the pydantic-ai library.
        fallback: one model or several, called in order when the previous one gives no answer.
        output_type: the type of the answer. Default: the function's return annotation.
        instructions: instructions for the model, before the prompt.
        model_options: how the models are called: settings, timeout, retries, streaming. Outside a run, a call without
            an answer is repeated for at most a minute.
        max_turns: maximum number of model calls until the answer fits. Each repeats the conversation with feedback.
    """
    if bare is not None or model is None:
        raise DefinitionError("@llm_step needs a model: write @llm_step(model='openai:gpt-4o')")
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"@llm_step: max_turns={max_turns!r} must be a whole number, 1 or more")
    chain = make_model_chain(model, fallback, model_options, "@llm_step")
    modifier = _LlmModifier(chain, output_type, instructions, max_turns)

    def decorate(target: Any) -> Any:
        function = get_wrapped_function(target)
        if isinstance(function, Step):
            return modifier.apply_to(cast("Step[..., Any]", function))
        if not inspect.isfunction(function):
            raise DefinitionError(f"@llm_step goes on a function or a step, not on {function!r}")
        modifiers = get_modifiers(target)
        if any(isinstance(existing, _LlmModifier) for existing in modifiers):
            raise _make_duplicate_error(f"{function.__name__!r} ({format_location(function)})")
        alone: Any = modifier.apply_to(Step(define_step(function)))
        # For an `@step` above, if there is one.
        alone.holdfast_below, alone.holdfast_modifiers = function, [*modifiers, modifier]
        return alone

    return decorate


@dataclass(frozen=True)
class _LlmModifier:
    """Makes a step call a model. ``@llm_step`` creates it."""

    model_chain: ModelChain
    output_type: Any
    instructions: str | None
    max_turns: int
    decorator_name: str = "@llm_step"

    def apply_to(self, step: Step[..., Any], /) -> Step[..., Any]:
        plain = step.definition
        where = f"step {plain.name!r} ({format_location(plain.function)})"
        if plain.invoke is not None:
            raise _make_duplicate_error(where)
        if plain.effect is Effect.ONCE:
            raise DefinitionError(
                f"{where} has effect='once', but a model call that fails on its way is made again: drop the effect, "
                f"and do what may happen only once in a step of its own"
            )
        answer_type = self.output_type
        if answer_type is None:
            answer_type = resolve_hints(plain.function).get("return", str)
            if answer_type is type(None):
                raise DefinitionError(
                    f"{where} is declared as `-> None`: the return annotation of an @llm_step says what the model's "
                    f"answer is, as in `-> str`"
                )
        caller = _LlmStepCaller(self, plain.function, OutputSpec(answer_type), plain.name)
        definition = replace(
            plain,
            function=_make_prompt_function(plain.function, answer_type),
            is_async=True,
            output_codec=AnswerCodec(caller.output_spec),
            retry=_wrap_retry_policy(plain.retry),
            read_usage=read_usage,
            invoke=caller.invoke,
            call_outside_run=caller.call_unrecorded,
        )
        return Step(definition, step.declaration)


def _make_duplicate_error(subject: str) -> DefinitionError:
    return DefinitionError(f"{subject} has @llm_step twice: one question is one step")


def _make_prompt_function(body: Callable[..., Any], answer_type: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The user's function as an async function whose annotation is the type of the answer."""

    @functools.wraps(body)
    async def make_prompt(*args: Any, **kwargs: Any) -> Any:
        if is_async(body):
            return await body(*args, **kwargs)
        prompt = await asyncio.to_thread(body, *args, **kwargs)
        return await prompt if inspect.isawaitable(prompt) else prompt

    make_prompt.__annotations__ = {**make_prompt.__annotations__, "return": answer_type}
    return make_prompt


class _LlmStepCaller:
    """Makes the model calls of one ``@llm_step``."""

    def __init__(self, modifier: _LlmModifier, body: Callable[..., Any], output_spec: OutputSpec, name: str) -> None:
        self._modifier = modifier
        self._make_prompt = _make_prompt_function(body, Any)
        self.output_spec = output_spec
        self._name = name
        self._definitions_by_function: dict[Callable[..., Any], tuple[StepDefinition, StepDefinition]] = {}
        """The steps of the first and of later calls, by the prompt function: in a class, it is a bound method."""

    # In workflow code

    async def invoke(
        self, execution: Execution, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the model until its answer fits. Each call is one command."""
        first, again = self._get_definitions(step)
        call = StepCall(first, args, kwargs)
        invalid: tuple[InvalidAnswer, ...] = ()
        while True:
            answer, outcome = await self._issue_call(execution, call, len(invalid))
            if not isinstance(answer, InvalidAnswer):
                return answer
            invalid = (*invalid, answer)
            if len(invalid) >= self._modifier.max_turns:
                times = _format_times(len(invalid))
                error = TurnLimitReached(
                    f"step {step.name!r} of run {execution.run_id!r} has asked the model {times}, and no answer fits. "
                    f"What was wrong with the last one: {answer.feedback}\n"
                    f"`holdfast retry {execution.run_id}` asks once more; max_turns= of @llm_step allows more at once."
                )
                mark_origin(error, outcome.origin)
                raise error
            call = StepCall(again, (Correction(invalid, args, kwargs),), {})

    async def _issue_call(self, execution: Execution, call: StepCall, answer_count: int) -> tuple[Any, Outcome]:
        """Call the model once, and pass the number of the run's earlier questions to the step."""
        model, counts = self._modifier.model_chain.models[0], _call_counts.setdefault(execution, Counter())
        token = prior_calls.set(PriorCalls(model, counts[id(model)] - answer_count, counts.total() - answer_count))
        counts[id(model)] += 1
        try:
            return await issue_within_budget(execution, call)
        finally:
            prior_calls.reset(token)

    def _get_definitions(self, step: StepDefinition) -> tuple[StepDefinition, StepDefinition]:
        definitions = self._definitions_by_function.get(step.function)
        if definitions is None:
            undo = step.compensation
            first = replace(
                step,
                function=self._make_first_call(step.function),
                compensation=undo and replace(undo, bind_arguments=_wrap_bind(undo)),
            )
            again = replace(first, function=self._ask_again, parameters=("correction",))
            definitions = self._definitions_by_function[step.function] = (first, again)
        return definitions

    # In the step

    def _make_first_call(self, make_prompt: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @functools.wraps(make_prompt)
        async def first(*args: Any, **kwargs: Any) -> PromptedReply:
            prompt = await self._prompt_to_messages(await make_prompt(*args, **kwargs))
            return PromptedReply(await ask_model(self._make_model_call(prompt)), prompt)

        first.__annotations__ = make_prompt.__annotations__  # Python 3.14 copies only the function that computes them
        return first

    async def _ask_again(self, correction: Correction) -> PromptedReply:
        await _load_model_library()
        invalid = correction.invalid_answers
        model_call = self._make_model_call(
            build_correction_messages(invalid),
            turn=1 + len(invalid),
            last_usage=invalid[-1].usage,
            peak_output_tokens=max(answer.usage.output_tokens for answer in invalid),
        )
        return PromptedReply(await ask_model(model_call))

    # Outside a run

    async def call_unrecorded(self, *args: Any, **kwargs: Any) -> Any:
        prompt = await self._make_prompt(*args, **kwargs)
        # Within another step of a run, the model call must not look like that step's own.
        context = contextvars.Context()
        for variable, value in contextvars.copy_context().items():
            if variable is not step_context.current_context:
                context.run(variable.set, value)
        return await asyncio.get_running_loop().create_task(self._ask_until_valid(prompt), context=context)

    async def _ask_until_valid(self, prompt: Any) -> Any:
        messages = list(await self._prompt_to_messages(prompt))
        feedback = ""
        for turn in range(1, self._modifier.max_turns + 1):
            reply = await ask_model(self._make_model_call(messages, turn=turn))
            if reply.feedback is None:
                return self.output_spec.read(reply.response)
            feedback = reply.feedback
            messages += [reply.response, make_correction(reply.response, feedback, reply.response.timestamp)]
        raise TurnLimitReached(
            f"step {self._name!r} has asked the model {_format_times(self._modifier.max_turns)}, and no answer fits. "
            f"What was wrong with the last one: {feedback}"
        )

    # Both

    def _make_model_call(self, messages: Sequence[ModelMessage], **options: Any) -> ModelCall:
        parameters = self.output_spec.make_parameters([], self._modifier.instructions)
        return ModelCall(self._modifier.model_chain, messages, parameters, get_feedback=self._get_feedback, **options)

    def _get_feedback(self, response: ModelResponse) -> str | None:
        feedback = self.output_spec.get_feedback(response)
        if feedback is not None or self.output_spec.is_final(response):
            return feedback
        form = "as a text" if self.output_spec.is_text else f"by calling `{ANSWER_TOOL}`"
        return f"There is no tool `{response.tool_calls[0].tool_name}`. Please give your answer {form}."

    async def _prompt_to_messages(self, prompt: Any) -> list[ModelMessage]:
        """The messages for a prompt that the user's function has returned."""
        await _load_model_library()
        from pydantic_ai.messages import ModelRequest, ModelResponse, UserPromptPart

        if isinstance(prompt, ModelRequest | ModelResponse):
            prompt = [prompt]
        if isinstance(prompt, list | tuple) and prompt:
            items = cast("list[Any]", list(prompt))  # pyright: ignore[reportUnknownArgumentType]
            if all(isinstance(item, ModelRequest | ModelResponse) for item in items):
                if isinstance(items[-1], ModelRequest):
                    return items
                raise UsageError(f"the messages that step {self._name!r} returned end with an answer: add a question")
            try:
                return [ModelRequest([UserPromptPart(items)])]
            except ValueError:
                pass  # the library decides what may be in a prompt
        if isinstance(prompt, str) and prompt:
            return [ModelRequest([UserPromptPart(prompt)])]
        raise UsageError(
            f"step {self._name!r} asks a model, so its function returns the prompt: a text, a list of texts and "
            f"images, or messages of pydantic-ai. It returned {prompt!r:.200}."
        )


class Correction:
    """The argument of a repeated call: the invalid answers, and the arguments of the first call."""

    def __init__(self, invalid_answers: Sequence[InvalidAnswer], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.invalid_answers = invalid_answers
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return repr(self.invalid_answers[-1].feedback)


def _wrap_bind(compensation: Compensation) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], dict[str, Any] | None]:
    """An answer that does not fit needs no compensation; one that fits is undone with the first call's arguments."""

    def bind(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        if isinstance(output, InvalidAnswer):
            return None
        if len(args) == 1 and isinstance(args[0], Correction):
            args, kwargs = args[0].args, args[0].kwargs
        return compensation.bind_arguments(output, args, kwargs)

    return bind


class _LlmStepRetryPolicy(RetryPolicy):
    """The step's own policy for exceptions of its function, and the models' policy for failures of model calls."""

    __slots__ = ()

    def compute_next_delay_s(
        self, attempt: int, error: BaseException, random_value: float, failing_for_s: float = 0.0
    ) -> float | None:
        if isinstance(error, TransientModelError):
            return error.retry_after_s
        if isinstance(error, ModelError | BudgetExceeded):
            return None
        return super().compute_next_delay_s(attempt, error, random_value, failing_for_s)


def _wrap_retry_policy(policy: RetryPolicy) -> _LlmStepRetryPolicy:
    return _LlmStepRetryPolicy(**{name: getattr(policy, name) for name in RetryPolicy.__dataclass_fields__})


async def _load_model_library() -> None:
    if "pydantic_ai.models" not in sys.modules:
        await asyncio.to_thread(load_library)


def _format_times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
