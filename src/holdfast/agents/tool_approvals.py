"""Which calls of a tool need a person's approval.

The tool's step evaluates ``requires_approval`` after it has validated the arguments. If a person must approve, the step
only records that (``ApprovalRequired``, with the exact arguments and the agent's policy: whom to ask, and for how
long). So the decision is part of the journal, and a deploy with another rule or policy does not change it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from pydantic_core import to_json

from holdfast.agents.argument_errors import format_names
from holdfast.agents.run_context import find_context_parameter
from holdfast.agents.tool_parameters import RawArguments, parse_arguments
from holdfast.authoring.approval_requests import RAISE, ApprovalNotification, ApprovalPolicy
from holdfast.authoring.introspection import is_async, resolve_hints
from holdfast.errors import ApprovalRequired, DefinitionError, InvalidToolArguments, UsageError
from holdfast.reports.tool_calls import APPROVE_ON_TIMEOUT

ApprovalRule = bool | Callable[..., bool | str | Awaitable[bool | str]]
"""Whether a call needs an approval: always, never, or as a function of the arguments decides."""

DENY = "deny"
"""The alternative to ``APPROVE_ON_TIMEOUT`` for ``on_timeout`` of an agent's approvals."""


class ApprovalNotRequired(Exception):
    """A call needs no approval, and the next step makes it.

    Recorded in place of ``ApprovalRequired`` if a separate step decides about the approval.
    """


class ToolParameters(Protocol):
    """The parameters of a tool: see ``tool_parameters.FunctionParameters``."""

    @property
    def names(self) -> Sequence[str]:
        """The parameters' names."""
        ...

    @property
    def has_var_keyword(self) -> bool:
        """Whether it takes arguments with other names, too."""
        ...

    def build_schema(self, descriptions: Mapping[str, str], /) -> dict[str, Any]:
        """The JSON schema that the model sees."""
        ...

    def validate(self, raw_arguments: RawArguments, reserved: str | None, /) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for the function. Raises ``InvalidToolArguments``."""
        ...

    def name_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> dict[str, Any]:
        """Validated arguments by name, with the defaults of missing ones."""
        ...


class ApprovalRequirement:
    """When the calls of one tool need an approval.

    Args:
        rule: ``True``, or the function that decides.
        parameters: those of the tool.
        subject: the tool, for messages.
    """

    def __init__(self, rule: object, parameters: ToolParameters, subject: str) -> None:
        self.is_function = rule is not True
        self.is_async = False
        self.has_context = False
        self._function: Callable[..., Any] | None = None
        if not self.is_function:
            return
        if not callable(rule):
            raise DefinitionError(
                f"{subject}: requires_approval is True, False, or a function that tells from the arguments, not "
                f"{rule!r}"
            )
        subject = f"{subject}: requires_approval={getattr(rule, '__name__', rule)!s}"
        try:
            wanted = list(inspect.signature(rule).parameters.values())
        except ValueError:
            raise DefinitionError(f"{subject}: it cannot be told what it takes; write a function around it") from None
        self._function = rule
        self.is_async = is_async(rule)
        self.has_context = find_context_parameter(wanted, _resolve_callable_hints(rule), subject) is not None
        if self.has_context:
            wanted = wanted[1:]
        for parameter in wanted:
            _check_parameter(parameter, parameters, subject)
        self._has_var_keyword = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in wanted)
        self._parameter_names = [parameter.name for parameter in wanted]

    def evaluate(self, context: Any, arguments: Mapping[str, Any]) -> Any:
        """The function's answer for these arguments: see ``get_approval_reason``. To be awaited if ``is_async``."""
        if self._function is None:
            return True
        kwargs = {
            name: value for name, value in arguments.items() if self._has_var_keyword or name in self._parameter_names
        }
        return self._function(context, **kwargs) if self.has_context else self._function(**kwargs)


def get_approval_reason(answer: Any, tool: str) -> str | None:
    """The reason in a rule's answer, which may be ``""``; ``None``: no approval is needed."""
    if isinstance(answer, bool):
        return "" if answer else None
    if isinstance(answer, str):
        return answer.strip()
    if inspect.iscoroutine(answer):
        answer.close()
    # The tool is not called: a rule without an answer did not say no.
    raise UsageError(
        f"requires_approval of tool {tool!r} returned {answer!r}: it returns True or False, or, for yes, a text that "
        f"says why"
    )


def make_approval_required(
    tool: str, agent: str, arguments: str, reason: str, policy: ApprovalPolicy | None
) -> ApprovalRequired:
    """The failure of a call that must wait for a person."""
    why = f" ({reason})" if reason else ""
    return ApprovalRequired(
        f"tool {tool!r} was not called: a person must approve of the call first{why}",
        question=f"May the agent {agent!r} call the tool {tool!r}?",
        tool=tool,
        arguments=arguments,
        reason=reason,
        policy={} if policy is None else _policy_to_record(policy),
    )


def validate_approval_policy(value: object, subject: str) -> ApprovalPolicy:
    """The approval policy of an agent. Raises ``DefinitionError``."""
    if value is None:
        return ApprovalPolicy()
    if not isinstance(value, ApprovalPolicy):
        raise DefinitionError(
            f"{subject}: approvals is an ApprovalPolicy, as in ApprovalPolicy(timeout=600), not {value!r}"
        )
    if value.on_timeout not in (RAISE, APPROVE_ON_TIMEOUT, DENY):
        raise DefinitionError(
            f"{subject}: approvals with on_timeout={value.on_timeout!r}: a call that nobody has answered for can be "
            f"made, on_timeout={APPROVE_ON_TIMEOUT!r}, or not, on_timeout={DENY!r}"
        )
    return value


def _policy_to_record(policy: ApprovalPolicy) -> dict[str, Any]:
    """The recorded form of a policy. It applies until the approval is decided, even if a deploy changes the code."""
    return {
        "assignee": policy.assignee,
        "timeout": policy.timeout,
        "on_timeout": APPROVE_ON_TIMEOUT if policy.on_timeout == APPROVE_ON_TIMEOUT else DENY,
        "remind_every": policy.remind_every,
        "escalate_to": list(policy.escalate_to),
        "notifies": policy.notify_step is not None,
    }


def policy_from_record(record: Mapping[str, Any], current: ApprovalPolicy) -> ApprovalPolicy:
    """A policy from its record. Only the function that notifies people comes from the current code."""
    return ApprovalPolicy(
        assignee=record.get("assignee", ""),
        timeout=record.get("timeout"),
        remind_every=record.get("remind_every"),
        escalate_to=record.get("escalate_to", ()),
        notify=(current.notify or _skip_notification) if record.get("notifies") else None,
    )


async def _skip_notification(notification: ApprovalNotification) -> None:
    """Replaces a notification function that a deploy has removed since the approval was requested."""


def format_arguments(
    parameters: ToolParameters,
    context_parameter: str | None,
    raw_arguments: RawArguments,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """The arguments of a call as JSON, which a person sees and the approved call uses.

    It includes defaults, so that the person sees all arguments, and the call gets them even if a default changes in the
    meantime. If the values do not survive a round trip, it is the JSON that the model sent.
    """
    named = parameters.name_arguments(args, kwargs)
    sent = parse_arguments(raw_arguments)
    for shown in (named, {name: value for name, value in named.items() if name in sent}):
        try:
            text = to_json(shown).decode()
            if parameters.name_arguments(*parameters.validate(text, context_parameter)) == named:
                return text
        except (InvalidToolArguments, ValueError):
            continue
    return to_json(sent).decode()


def _check_parameter(parameter: inspect.Parameter, parameters: ToolParameters, subject: str) -> None:
    name = parameter.name
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return
    if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
        raise DefinitionError(
            f"{subject}: it is called with the tool's arguments by name, so it cannot take {parameter}"
        )
    if name in parameters.names or parameters.has_var_keyword or parameter.default is not inspect.Parameter.empty:
        return
    close = get_close_matches(name, parameters.names, n=1)
    known = f"did you mean {close[0]!r}?" if close else f"it has: {format_names(parameters.names) or 'none'}"
    raise DefinitionError(f"{subject} takes {name!r}, which is no parameter of the tool; {known}")


def _resolve_callable_hints(function: Callable[..., Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return resolve_hints(function if inspect.isroutine(function) else type(function).__call__)
