"""``@tool``: a step that a model may call.

The model sees a schema made from the type hints and the docstring (``tool_parameters``, ``docstrings``). The step
checks the model's arguments against the hints before it calls the function. So a refusal is recorded like any other
failure, and the model gets it as the result of its call (``argument_errors``, ``reports.observations``). A ``Tool`` is
a ``Step``: workflow code may call it as well. A first parameter that is annotated as ``RunContext`` does not come from
the model: it describes the run, and contains the ``deps``.

A tool that needs an approval (``tool_approvals``) has two kinds of calls. The model's call finds out whether a person
must approve, and if so, raises ``ApprovalRequired``. The approved call uses the approved arguments, and needs no
approval.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

from typing_extensions import ParamSpec, TypeVar

from holdfast.admission.durations import Duration
from holdfast.admission.retry_policy import RetryPolicy
from holdfast.agents.argument_errors import format_names
from holdfast.agents.deps import get_deps, get_deps_async
from holdfast.agents.docstrings import ParsedDocstring, parse_docstring
from holdfast.agents.run_context import RunContext, find_context_parameter, make_run_context
from holdfast.agents.tool_approvals import (
    ApprovalNotRequired,
    ApprovalRequirement,
    ApprovalRule,
    ToolParameters,
    format_arguments,
    get_approval_reason,
    make_approval_required,
)
from holdfast.agents.tool_parameters import FunctionParameters, RawArguments, parse_arguments
from holdfast.agents.tool_results import ToolOutputCodec
from holdfast.authoring.approval_requests import ApprovalPolicy
from holdfast.authoring.introspection import format_location, is_function, resolve_hints
from holdfast.authoring.keyword_hints import reject_unknown_keywords
from holdfast.authoring.step import RetryOn, Step, define_step, get_modifiers
from holdfast.codec import codec_for
from holdfast.codec.formatting import truncate
from holdfast.core.execution import get_current_execution
from holdfast.core.states import Effect
from holdfast.engine.definitions import StepCall, StepDefinition
from holdfast.errors import (
    ApprovalRequired,
    DefinitionError,
    InvalidToolArguments,
    ModelRetry,
    UnknownTool,
    UsageError,
)
from holdfast.reports.recorded_reply import ANSWER_TOOL

if TYPE_CHECKING:
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.tools import ToolDefinition

# A bare `Tool` means any tool.
P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)

_NAME_PATTERN = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""Names that every provider accepts."""


class _ModelToolCall(NamedTuple):
    """A model's call of a tool."""

    raw_arguments: RawArguments
    agent: str
    call_id: str
    deps_type: Any
    requirement: ApprovalRequirement | None = None
    """Decides whether a person must approve; ``None``: no."""
    policy: ApprovalPolicy | None = None
    """The people to ask, and for how long."""
    is_check: bool = False
    """The step only decides about the approval. Another step makes the call."""


class Tool(Step[P, R]):
    """A step that a model may call. Call it as before; in workflow code, ``await`` the call."""

    def __init__(
        self,
        definition: StepDefinition,
        description: str | None,
        parameters: ToolParameters,
        context_parameter: str | None,
        requires_approval: ApprovalRule = False,
    ) -> None:
        output = ToolOutputCodec(definition.output_codec)
        retry = _make_tool_retry_policy(definition.retry)
        super().__init__(replace(definition, retry=retry, output_codec=output, is_tool=True))
        self.has_context = context_parameter is not None
        """Its first parameter is a ``RunContext``."""
        self._context_parameter = context_parameter
        self._parameters = parameters
        self._explicit_description = description
        self._requirement = self._make_requirement(requires_approval)

    @property
    def can_require_approval(self) -> bool:
        """Whether a person must approve calls of a model, at least for some arguments."""
        return self._requirement is not None

    def with_approval(self, requires_approval: ApprovalRule = True) -> Tool[P, R]:
        """The same tool with another approval rule: see ``@tool``."""
        other = copy.copy(self)
        other._requirement = other._make_requirement(requires_approval)
        return other

    def _make_requirement(self, requires_approval: ApprovalRule) -> ApprovalRequirement | None:
        if requires_approval is False:
            return None
        return ApprovalRequirement(requires_approval, self._parameters, f"tool {self.name!r}")

    @cached_property
    def description(self) -> str:
        """The description that the model sees: the explicit one, or the docstring without its parameters."""
        return self._parsed_docstring.text if self._explicit_description is None else self._explicit_description

    @cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of its arguments that the model sees."""
        return self._parameters.build_schema(self._parsed_docstring.parameters)

    @cached_property
    def _parsed_docstring(self) -> ParsedDocstring:
        return parse_docstring(self.definition.function.__doc__)

    @cached_property
    def tool_definition(self) -> ToolDefinition:
        """Its definition for the model library."""
        from pydantic_ai.tools import ToolDefinition

        return ToolDefinition(name=self.name, parameters_json_schema=self.schema, description=self.description or None)

    def make_call(
        self, part: ToolCallPart, agent: str, deps_type: Any, policy: ApprovalPolicy | None = None
    ) -> StepCall:
        """A model's call as a step, which checks the arguments when it runs.

        A tool that takes a context gets the deps of the process that executes the step. The step raises
        ``InvalidToolArguments`` for arguments that do not fit, and ``ApprovalRequired`` if a person must approve.
        """
        requirement = self._requirement
        call = _ModelToolCall(part.args, agent, part.tool_call_id, deps_type, requirement, policy)
        if requirement is None or not self._is_separate_step(requirement):
            return self._make_step_call(self.definition, call)
        # Nothing happens before a person has approved, so this step may run again.
        is_async = requirement.is_async or not requirement.is_function
        step = replace(self.definition, is_async=is_async, effect=Effect.READ)
        return self._make_step_call(step, call._replace(is_check=True))

    def make_approved_call(self, part: ToolCallPart, agent: str, deps_type: Any, arguments: RawArguments) -> StepCall:
        """The call with these arguments, which needs no approval anymore. The step still checks the arguments."""
        return self._make_step_call(self.definition, _ModelToolCall(arguments, agent, part.tool_call_id, deps_type))

    def _is_separate_step(self, requirement: ApprovalRequirement) -> bool:
        """Whether a step of its own decides if a person must approve.

        This is so if every call needs an approval. It is so for a ``once`` tool: its step must not begin earlier,
        because after a crash nothing would show whether the tool was called. And it is so if the rule is async and the
        tool is not: a plain tool runs in a thread, which cannot await the rule.
        """
        step = self.definition
        return not requirement.is_function or step.effect is Effect.ONCE or (requirement.is_async and not step.is_async)

    def _make_step_call(self, step: StepDefinition, call: _ModelToolCall) -> StepCall:
        function = self._execute if step.is_async else self._execute_sync
        # The function ignores these keyword arguments: they are for display.
        shown = parse_arguments(call.raw_arguments)
        return StepCall(replace(step, function=partial(function, call), parameters=()), (), shown)

    async def _execute(self, call: _ModelToolCall, /, **_shown: object) -> Any:
        args, kwargs = self._parameters.validate(call.raw_arguments, self._context_parameter)
        requirement = call.requirement
        if requirement is not None:
            deps = await get_deps_async(call.agent, call.deps_type) if requirement.has_context else None
            rule_result = self._evaluate_rule(requirement, call, deps, args, kwargs)
            self._check_approval(call, args, kwargs, await rule_result if requirement.is_async else rule_result)
        if self.has_context:
            args.insert(0, self._make_context(await get_deps_async(call.agent, call.deps_type), call))
        return await self.definition.function(*args, **kwargs)

    def _execute_sync(self, call: _ModelToolCall, /, **_shown: object) -> Any:
        args, kwargs = self._parameters.validate(call.raw_arguments, self._context_parameter)
        requirement = call.requirement
        if requirement is not None:
            deps = get_deps(call.agent, call.deps_type) if requirement.has_context else None
            self._check_approval(call, args, kwargs, self._evaluate_rule(requirement, call, deps, args, kwargs))
        if self.has_context:
            args.insert(0, self._make_context(get_deps(call.agent, call.deps_type), call))
        return self.definition.function(*args, **kwargs)

    def _evaluate_rule(
        self, requirement: ApprovalRequirement, call: _ModelToolCall, deps: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        context = self._make_context(deps, call) if requirement.has_context else None
        return requirement.evaluate(context, self._parameters.name_arguments(args, kwargs))

    def _check_approval(self, call: _ModelToolCall, args: list[Any], kwargs: dict[str, Any], rule_result: Any) -> None:
        """Raise ``ApprovalRequired`` if the rule's result says so. A step that only checks raises in any case."""
        reason = get_approval_reason(rule_result, self.name)
        if reason is not None:
            shown = format_arguments(self._parameters, self._context_parameter, call.raw_arguments, args, kwargs)
            raise make_approval_required(self.name, call.agent, shown, reason, call.policy)
        if call.is_check:
            raise ApprovalNotRequired(f"no approval is needed for this call of tool {self.name!r}: it is made next")

    def _make_context(self, deps: Any, call: _ModelToolCall) -> RunContext[Any]:
        return make_run_context(deps, call.agent, self.name, call.call_id)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """In workflow code: a recorded call, to be awaited. Anywhere else: the plain function."""
        if self.has_context and get_current_execution() is not None:
            raise UsageError(
                f"tool {self.name!r} takes a RunContext, which only a call by an agent's model has: workflow code "
                f"cannot call it. Put what both need into a function without it, and call that in a @step."
            )
        return super().__call__(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name!r}>"


_KEYWORD_HINTS = {
    "max_retries": "write retries=, the number of further attempts after the first",
    "max_attempts": "write retries=, the number of further attempts after the first",
    "name_override": "write name=",
    "needs_approval": "write requires_approval=",
    "approval": "write requires_approval=",
    "timeout_seconds": "write timeout=, in seconds",
    "once": "write effect='once'",
}
"""By the names that other frameworks use for an argument."""


@overload
def tool(function: Callable[P, Coroutine[Any, Any, R]], /) -> Tool[P, R]: ...
@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    retries: int = 0,
    backoff: Duration = 1.0,
    max_backoff: Duration = 60.0,
    retry_on: RetryOn | None = None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
    requires_approval: ApprovalRule = False,
) -> _ToolDecorator: ...
@reject_unknown_keywords("@tool", **_KEYWORD_HINTS)
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    retries: int = 0,
    backoff: Duration = 1.0,
    max_backoff: Duration = 60.0,
    retry_on: RetryOn | None = None,
    give_up_on: type[BaseException] | Sequence[type[BaseException]] = (),
    retry: RetryPolicy | None = None,
    timeout: Duration | None = None,
    effect: Effect | str = Effect.IDEMPOTENT,
    requires_approval: ApprovalRule = False,
) -> Any:
    """Make a function a tool: a model may call it, and each call is a recorded step.

    The model sees a schema made from the type hints and the docstring; ``Annotated[..., Field(description=...)]``
    describes a parameter in more detail. Raise ``ModelRetry`` to tell the model what to do differently. The model also
    sees every other exception, once the retries are used up.

    Args:
        function: an async function, or a plain one (which runs in a thread).
        name: its name for the model and in the journal. Default: the function's name.
        description: its description for the model. Default: the docstring.
        retries: how many more attempts after a failed one, before the model sees the error.
        backoff: seconds before the first retry; each further wait is twice as long, with jitter.
        max_backoff: the longest wait between two attempts.
        retry_on: retry only these exceptions, or those for which this function returns true. Default: all.
        give_up_on: never retry these. Refused arguments and ``ModelRetry`` are never retried.
        retry: a ``RetryPolicy``, in place of the five options above: see ``@step``.
        timeout: seconds that one attempt may take. The thread of a plain function cannot be stopped: it keeps running,
            and its outcome is dropped.
        effect: ``read`` (may run again), ``idempotent`` (may run again, with ``ctx.idempotency_key`` to make that
            harmless), or ``once`` (never again: if its process dies, the model learns that it may have happened).
        requires_approval: whether a person must approve a model's call before it is made: ``True``, or a function that
            decides. The function gets those validated arguments of the tool that it has parameters for (and the
            ``RunContext`` first, if it takes one). It returns ``True`` or ``False``, or, for yes, a text with the
            reason. Calls from workflow code need no approval.
    """

    def decorate(function: Callable[..., Any]) -> Tool:
        _check_decoratable(function)
        made = define_step(
            function, name, retries, backoff, max_backoff, retry_on, give_up_on, timeout, effect, retry, noun="tool"
        )
        subject = f"tool {made.name!r} ({format_location(function)})"
        check_name(made.name, subject)
        _check_not_method(function, subject)
        hints = resolve_hints(function)
        parameters = list(inspect.signature(function).parameters.values())
        context = find_context_parameter(parameters, hints, subject)
        from_model = FunctionParameters(made.name, subject, parameters[1:] if context else parameters, hints)
        stripped = None if description is None else description.strip()
        return Tool(made, stripped, from_model, context, requires_approval)

    return decorate if function is None else decorate(function)


class _ToolDecorator:
    """The type of ``@tool(...)``; only for type checkers."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Tool[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Tool[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Tool[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any: ...


def to_tool(value: object, subject: str) -> Tool:
    """The tool for an item of ``tools=``: a ``Tool``, or a plain function. Raises ``DefinitionError`` for others."""
    if isinstance(value, Tool):
        return cast("Tool", value)
    if isinstance(value, Step):
        name = cast("Step[..., Any]", value).name
        raise DefinitionError(
            f"{subject}: {name!r} is a step, which no model may call: write @tool in place of @step (it stays a step)"
        )
    if inspect.isfunction(value) or inspect.ismethod(value):
        return tool(value)
    raise DefinitionError(
        f"{subject}: a tool is a function, with @tool or without, and not {truncate(repr(value), 200)}"
    )


def make_unknown_tool_call(name: str, known: list[str]) -> StepCall:
    """A call of a tool that the agent does not have: a step that fails with the names of its tools."""
    if not known:
        message = f"There is no tool {truncate(name, 64)!r}: you have no tools. Answer without."
    else:
        nearest = get_close_matches(name[:64], known, n=3)
        tools = format_names([*nearest, *(tool for tool in known if tool not in nearest)])
        message = f"There is no tool {truncate(name, 64)!r}. The tools that you have are: {tools}."
    return _make_failing_call(name, UnknownTool(message))


def make_rejected_call(name: str, message: str) -> StepCall:
    """A call with arguments that do not fit: a step that fails with this message."""
    return _make_failing_call(name, InvalidToolArguments(message))


def _make_failing_call(name: str, error: Exception) -> StepCall:
    async def fail() -> None:
        raise error

    return StepCall(StepDefinition(name, fail, True, codec_for(None), (), {}, is_tool=True), (), {})


def check_name(name: str, subject: str, hint: str = "with `@tool(name=...)`") -> None:
    """Refuse a name of a tool, a sub-agent, or a skill that no model could use."""
    if not _NAME_PATTERN.fullmatch(name):
        raise DefinitionError(
            f"{subject}: a model could not call it by this name, which has to be of at most 64 ASCII letters, digits, "
            f"_ and -: give it another one {hint}"
        )
    if name == ANSWER_TOOL:
        raise DefinitionError(
            f"{subject}: {ANSWER_TOOL!r} is how models give their answer: give it another name {hint}"
        )


def _check_decoratable(value: Any) -> None:
    if callable(value) and not is_function(value) and not isinstance(value, Step | staticmethod):
        raise DefinitionError(f"@tool goes on a function, not on {value!r}: write one that calls it")
    for modifier in get_modifiers(cast(Any, value)):
        raise DefinitionError(f"{modifier.decorator_name} goes with @step, not with @tool: {value!r}")


def _check_not_method(function: Callable[..., Any], subject: str) -> None:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    if first is not None and first.name in ("self", "cls") and first.annotation is inspect.Parameter.empty:
        raise DefinitionError(
            f"{subject} takes {first.name!r}: @tool goes on a function, not on a method of a class. Without @tool, a "
            f"bound method (`tools=[thing.method]`) is a tool, too; or take what you need from `ctx.deps`."
        )


_NEVER_RETRIED = (InvalidToolArguments, ModelRetry, ApprovalRequired, ApprovalNotRequired)


def _make_tool_retry_policy(policy: RetryPolicy) -> RetryPolicy:
    """The policy without retries of errors that are feedback for the model."""
    own_rule = policy.retry_if

    def retry_if(error: BaseException) -> bool:
        return not _is_library_retry(error) and (own_rule is None or own_rule(error))

    return replace(policy, retry_if=retry_if, give_up_on=(*policy.give_up_on, *_NEVER_RETRIED))


def _is_library_retry(error: BaseException) -> bool:
    """Whether it is the model library's own ``ModelRetry``, which users of that library may raise."""
    library = sys.modules.get("pydantic_ai.exceptions")
    return library is not None and isinstance(error, library.ModelRetry)
