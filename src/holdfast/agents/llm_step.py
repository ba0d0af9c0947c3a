"""``@llm_step``: one question to a model as a step of a workflow.

The function returns the prompt, and whoever calls the step gets the model's answer. In a run, the step's own function
is the user's function followed by one model call; what is recorded is the answer (see ``llm_answers``). An answer that
does not fit is recorded like any other, and the workflow then issues the step again, under the same name, with the
prompt from the record and what was wrong with the answer; the user's function is not called again for that. So every
call that was paid for is in the journal, and a crash between two of them repeats neither.

What the user's function raises is retried as its ``@step`` says; what befalls a model call, as ``models.errors`` says.
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
from holdfast.agents.models.model_library import load_library
from holdfast.agents.models.model_options import ModelOptions, make_model_chain
from holdfast.agents.models.model_resolution import PriorCalls, prior_calls
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
    from pydantic_ai.models import Model, ModelRequestParameters

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

DEFAULT_MAX_TURNS = 3
"""How often the model is asked until its answer fits, by default."""


_call_counts: WeakKeyDictionary[Execution, Counter[int]] = WeakKeyDictionary()
"""How many questions a run's code has asked, by the model."""


class _LlmStepDecorator(Protocol):
    """The type of ``@llm_step(...)``; only for type checkers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class _TypedDecorator(Protocol, Generic[T]):
    """The same with an ``output_type``."""

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
"""By what other frameworks call an argument, what to write here."""


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

    The prompt is a text, a list of texts, images and documents, or messages of the pydantic-ai library. Stands above or
    below ``@step``, whose ``retries`` are for the function itself, and whose ``timeout`` is for an attempt as a whole;
    or, in a workflow function, alone. The function is called once for each attempt to reach a model.

    Args:
        model: ``"provider:name"``, or a model of the pydantic-ai library.
        fallback: one model or several, to be asked in order when the one before gives no answer.
        output_type: what the answer must be, if the function's return annotation does not say it.
        instructions: what the model is told before the prompt.
        model_options: how the models are called: settings, timeout, retries, streaming. Outside of a run, a call that
            got no answer is repeated for at most a minute.
        max_turns: how often the model is asked, with what was wrong, until its answer fits.
    """
    if bare is not None or model is None:
        raise DefinitionError("@llm_step needs a model: write @llm_step(model='openai:gpt-4o')")
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(f"@llm_step: max_turns={max_turns!r} must be a whole number, 1 or more")
    chain = make_model_chain(model, fallback, model_options, "@llm_step")
    mark = _LlmModifier(chain, output_type, instructions, max_turns)

    def decorate(target: Any) -> Any:
        function = get_wrapped_function(target)
        if isinstance(function, Step):
            return mark.apply_to(cast("Step[..., Any]", function))
        if not inspect.isfunction(function):
            raise DefinitionError(f"@llm_step goes on a function or a step, not on {function!r}")
        marks = get_modifiers(target)
        if any(isinstance(one, _LlmModifier) for one in marks):
            raise _make_duplicate_error(f"{function.__name__!r} ({format_location(function)})")
        alone: Any = mark.apply_to(Step(define_step(function)))
        alone.holdfast_below, alone.holdfast_marks = function, [*marks, mark]  # for an `@step` above, if there is one
        return alone

    return decorate


@dataclass(frozen=True)
class _LlmModifier:
    """The mark that ``@llm_step`` leaves."""

    model_chain: ModelChain
    output_type: Any
    instructions: str | None
    max_turns: int
    decorator_name: str = "@llm_step"

    def apply_to(self, step: Step[..., Any], /) -> Step[..., Any]:
        """The same step, asking a model."""
        made = step.definition
        where = f"step {made.name!r} ({format_location(made.function)})"
        if made.invoke is not None:
            raise _make_duplicate_error(where)
        if made.effect is Effect.ONCE:
            raise DefinitionError(
                f"{where} has effect='once', but a model call that fails on its way is made again: drop the effect, "
                f"and do what may happen only once in a step of its own"
            )
        answer = self.output_type
        if answer is None:
            answer = resolve_hints(made.function).get("return", str)
            if answer is type(None):
                raise DefinitionError(
                    f"{where} is declared as `-> None`: the return annotation of an @llm_step says what the model's "
                    f"answer is, as in `-> str`"
                )
        question = _LlmStepCaller(self, made.function, OutputSpec(answer), made.name)
        definition = replace(
            made,
            function=_make_prompt_function(made.function, answer),
            is_async=True,
            output_codec=AnswerCodec(question.output_spec),
            retry=_wrap_retry_policy(made.retry),
            read_usage=read_usage,
            invoke=question.invoke,
            call_outside_run=question.call_unrecorded,
        )
        return Step(definition, step.declaration)


def _make_duplicate_error(subject: str) -> DefinitionError:
    return DefinitionError(f"{subject} has @llm_step twice: one question is one step")


def _make_prompt_function(body: Callable[..., Any], answer_type: Any) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The user's function as an async one that is declared to return the answer."""

    @functools.wraps(body)
    async def make_prompt(*args: Any, **kwargs: Any) -> Any:
        if is_async(body):
            return await body(*args, **kwargs)
        prompt = await asyncio.to_thread(body, *args, **kwargs)
        return await prompt if inspect.isawaitable(prompt) else prompt

    make_prompt.__annotations__ = {**make_prompt.__annotations__, "return": answer_type}
    return make_prompt


class _LlmStepCaller:
    """How one ``@llm_step`` asks."""

    def __init__(self, modifier: _LlmModifier, body: Callable[..., Any], output_spec: OutputSpec, name: str) -> None:
        self._modifier = modifier
        self._make_prompt = _make_prompt_function(body, Any)
        self.output_spec = output_spec
        self._name = name
        self._definitions_by_function: dict[Callable[..., Any], tuple[StepDefinition, StepDefinition]] = {}
        """What is really issued, by the function that makes the prompt: in a class, that is tied to the instance."""

    # In workflow code

    async def invoke(
        self, execution: Execution, step: StepDefinition, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Ask until the answer fits: each call of the model is one command."""
        first, again = self._get_definitions(step)
        call = StepCall(first, args, kwargs)
        unfit: tuple[InvalidAnswer, ...] = ()
        while True:
            answer, outcome = await self._issue_call(execution, call, len(unfit))
            if not isinstance(answer, InvalidAnswer):
                return answer
            unfit = (*unfit, answer)
            if len(unfit) >= self._modifier.max_turns:
                error = TurnLimitReached(
                    f"step {step.name!r} of run {execution.run_id!r} has asked the model {_format_times(len(unfit))}, "
                    "and no "
                    f"answer fits. What was wrong with the last one: {answer.feedback}\n"
                    f"`holdfast retry {execution.run_id}` asks once more; max_turns= of @llm_step allows more at once."
                )
                mark_origin(error, outcome.origin)
                raise error
            call = StepCall(again, (Correction(unfit, args, kwargs),), {})

    async def _issue_call(self, execution: Execution, call: StepCall, answer_count: int) -> tuple[Any, Outcome]:
        """Ask once, in a conversation that has so many answers; the step is told how many questions came before."""
        model, asked = self._modifier.model_chain.models[0], _call_counts.setdefault(execution, Counter())
        token = prior_calls.set(PriorCalls(model, asked[id(model)] - answer_count, asked.total() - answer_count))
        asked[id(model)] += 1
        try:
            return await issue_within_budget(execution, call)
        finally:
            prior_calls.reset(token)

    def _get_definitions(self, step: StepDefinition) -> tuple[StepDefinition, StepDefinition]:
        made = self._definitions_by_function.get(step.function)
        if made is None:
            undo = step.compensation
            first = replace(
                step,
                function=self._make_first_call(step.function),
                compensation=undo and replace(undo, bind_arguments=_wrap_bind(undo)),
            )
            again = replace(first, function=self._ask_again, parameters=("correction",))
            made = self._definitions_by_function[step.function] = (first, again)
        return made

    # In the step

    def _make_first_call(self, make_prompt: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @functools.wraps(make_prompt)
        async def first(*args: Any, **kwargs: Any) -> PromptedReply:
            prompt = await self._prompt_to_messages(await make_prompt(*args, **kwargs))
            return PromptedReply(await ask_model(self._make_model_call(prompt)), prompt)

        return first

    async def _ask_again(self, correction: Correction) -> PromptedReply:
        await _load_model_library()
        unfit = correction.invalid_answers
        return PromptedReply(
            await ask_model(
                self._make_model_call(
                    build_correction_messages(unfit),
                    turn=1 + len(unfit),
                    last_usage=unfit[-1].usage,
                    peak_output_tokens=max(one.usage.output_tokens for one in unfit),
                )
            )
        )

    # Outside a run

    async def call_unrecorded(self, *args: Any, **kwargs: Any) -> Any:
        """A plain call: nothing is recorded."""
        prompt = await self._make_prompt(*args, **kwargs)
        # In a step of a run, the model call must not be taken for that step's own.
        context = contextvars.Context()
        for variable, value in contextvars.copy_context().items():
            if variable is not step_context.current_context:
                context.run(variable.set, value)
        return await asyncio.get_running_loop().create_task(self._ask_until_valid(prompt), context=context)

    async def _ask_until_valid(self, prompt: Any) -> Any:
        messages = list(await self._prompt_to_messages(prompt))
        complaint = ""
        for turn in range(1, self._modifier.max_turns + 1):
            reply = await ask_model(self._make_model_call(messages, turn=turn))
            if reply.feedback is None:
                return self.output_spec.read(reply.response)
            complaint = reply.feedback
            messages += [reply.response, make_correction(reply.response, complaint, reply.response.timestamp)]
        raise TurnLimitReached(
            f"step {self._name!r} has asked the model {_format_times(self._modifier.max_turns)}, and no answer fits. "
            "What was "
            f"wrong with the last one: {complaint}"
        )

    # Both

    def _make_model_call(self, messages: Sequence[ModelMessage], **options: Any) -> ModelCall:
        return ModelCall(
            self._modifier.model_chain, messages, self._make_parameters(), get_feedback=self._get_feedback, **options
        )

    def _make_parameters(self) -> ModelRequestParameters:
        return self.output_spec.make_parameters([], self._modifier.instructions)

    def _get_feedback(self, response: ModelResponse) -> str | None:
        complaint = self.output_spec.get_feedback(response)
        if complaint is not None or self.output_spec.is_final(response):
            return complaint
        how = "as a text" if self.output_spec.is_text else f"by calling `{ANSWER_TOOL}`"
        return f"There is no tool `{response.tool_calls[0].tool_name}`. Please give your answer {how}."

    async def _prompt_to_messages(self, prompt: Any) -> list[ModelMessage]:
        """What the user's function has returned, as messages."""
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
                pass  # the library knows what may be in a prompt
        if isinstance(prompt, str) and prompt:
            return [ModelRequest([UserPromptPart(prompt)])]
        raise UsageError(
            f"step {self._name!r} asks a model, so its function returns the prompt: a text, a list of texts and "
            f"images, or messages of pydantic-ai. It returned {prompt!r:.200}."
        )


class Correction:
    """What the model is told when it is asked again, with the arguments of the call that it was asked for."""

    __slots__ = ("args", "invalid_answers", "kwargs")

    def __init__(self, invalid_answers: Sequence[InvalidAnswer], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.invalid_answers = invalid_answers
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return repr(self.invalid_answers[-1].feedback)


def _wrap_bind(compensation: Compensation) -> Callable[[Any, tuple[Any, ...], dict[str, Any]], dict[str, Any] | None]:
    """An answer that does not fit leaves nothing to undo; one that does is undone with the arguments of the call."""

    def bind(output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        if isinstance(output, InvalidAnswer):
            return None
        if len(args) == 1 and isinstance(args[0], Correction):
            args, kwargs = args[0].args, args[0].kwargs
        return compensation.bind_arguments(output, args, kwargs)

    return bind


class _LlmStepRetryPolicy(RetryPolicy):
    """The step's own policy for what its function raises, and that of the models for model calls."""

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
