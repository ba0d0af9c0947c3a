"""Which calls of a tool a person must approve of before they are made.

A tool's ``requires_approval`` is looked at inside the tool's step, once the arguments have been checked. If a person
is needed, the step does nothing but record that (``ApprovalRequired``, with the exact arguments, and with the agent's
policy: who is asked, and how long). So the decision is part of the journal, and another rule or policy in tomorrow's
code changes nothing of what was decided today.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Protocol

from pydantic_core import to_json

from holdfast.agents.argument_errors import listed
from holdfast.agents.tool_parameters import Given, named_arguments
from holdfast.authoring.approval_requests import RAISE, ApprovalNotice, ApprovalPolicy
from holdfast.authoring.introspection import hints_of, is_async
from holdfast.errors import ApprovalRequired, ArgumentsRefused, DefinitionError, UsageError
from holdfast.reports.tool_calls import APPROVE

RequiresApproval = bool | Callable[..., bool | str | Awaitable[bool | str]]
"""Whether a call needs an approval: always, never, or as a function of the arguments says."""

DENY = "deny"
"""What ``on_timeout`` of an agent's approvals can be, beside ``APPROVE``."""


class CallCleared(Exception):
    """No approval is needed for a call, which is made by the next step.

    Recorded in place of ``ApprovalRequired`` where finding that out cannot be a part of the call itself.
    """


class ToolParameters(Protocol):
    """What a tool can be called with: see ``parameters.Parameters``."""

    @property
    def names(self) -> Sequence[str]:
        """The parameters' names."""
        ...

    @property
    def takes_others(self) -> bool:
        """Whether it takes arguments of other names, too."""
        ...

    def schema(self, descriptions: Mapping[str, str], /) -> dict[str, Any]:
        """The JSON schema that the model is shown."""
        ...

    def check(self, given: Given, reserved: str | None, /) -> tuple[list[Any], dict[str, Any]]:
        """The arguments to call the function with, or ``ArgumentsRefused``."""
        ...

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> dict[str, Any]:
        """Arguments that were checked, by name, with the defaults of those that were not given."""
        ...


class Requirement:
    """When the calls of one tool need an approval.

    Args:
        given: ``True``, or the function that tells.
        parameters: those of the tool.
        where: the tool, for messages.
        context_of: finds the parameter of a function that takes the context, if there is one.
    """

    def __init__(
        self,
        given: object,
        parameters: ToolParameters,
        where: str,
        context_of: Callable[[Sequence[inspect.Parameter], Mapping[str, Any], str], str | None],
    ) -> None:
        self.given = given
        self.is_function = given is not True
        self.is_async = False
        self.takes_context = False
        self._function: Callable[..., Any] | None = None
        if not self.is_function:
            return
        if not callable(given):
            raise DefinitionError(
                f"{where}: requires_approval is True, False, or a function that tells from the arguments, not {given!r}"
            )
        where = f"{where}: requires_approval={getattr(given, '__name__', given)!s}"
        try:
            wanted = list(inspect.signature(given).parameters.values())
        except ValueError:
            raise DefinitionError(f"{where}: it cannot be told what it takes; write a function around it") from None
        self._function = given
        self.is_async = is_async(given)
        self.takes_context = context_of(wanted, _hints_of(given), where) is not None
        if self.takes_context:
            wanted = wanted[1:]
        for parameter in wanted:
            _refuse_unfit(parameter, parameters, where)
        self._takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in wanted)
        self._names = [one.name for one in wanted]

    def ask(self, context: Any, arguments: Mapping[str, Any]) -> Any:
        """What the function says of these arguments: see ``reason``; something to await if it is async."""
        if self._function is None:
            return True
        given = {name: value for name, value in arguments.items() if self._takes_all or name in self._names}
        return self._function(context, **given) if self.takes_context else self._function(**given)

    def reason(self, said: Any, tool: str) -> str | None:
        """Why an approval is needed, which may be ``""``; ``None``: none is needed."""
        if isinstance(said, bool):
            return "" if said else None
        if isinstance(said, str):
            return said.strip()
        if inspect.iscoroutine(said):
            said.close()
        # Nothing is called: a rule that says nothing is not one that says no.
        raise UsageError(
            f"requires_approval of tool {tool!r} returned {said!r}: it returns True or False, or, for yes, a text that "
            f"says why"
        )


def approval_required(
    tool: str, agent: str, arguments: str, reason: str, approvals: ApprovalPolicy | None
) -> ApprovalRequired:
    """A call has to wait for a person."""
    why = f" ({reason})" if reason else ""
    return ApprovalRequired(
        f"tool {tool!r} was not called: a person must approve of the call first{why}",
        question=f"May the agent {agent!r} call the tool {tool!r}?",
        tool=tool,
        arguments=arguments,
        reason=reason,
        policy={} if approvals is None else _recorded(approvals),
    )


def check_policy(given: object, where: str) -> ApprovalPolicy:
    """What an agent says of its approvals; ``DefinitionError`` if that cannot be meant."""
    if given is None:
        return ApprovalPolicy()
    if not isinstance(given, ApprovalPolicy):
        raise DefinitionError(
            f"{where}: approvals is an ApprovalPolicy, as in ApprovalPolicy(timeout=600), not {given!r}"
        )
    if given.on_timeout not in (RAISE, APPROVE, DENY):
        raise DefinitionError(
            f"{where}: approvals with on_timeout={given.on_timeout!r}: a call that nobody has answered for can be "
            f"made, on_timeout={APPROVE!r}, or not, on_timeout={DENY!r}"
        )
    return given


def _recorded(policy: ApprovalPolicy) -> dict[str, Any]:
    """A policy as it is recorded with a question: what it says then holds until the question is decided."""
    return {
        "asked_of": policy.asked_of,
        "timeout": policy.timeout,
        "on_timeout": APPROVE if policy.on_timeout == APPROVE else DENY,
        "remind_every": policy.remind_every,
        "escalate_to": list(policy.escalate_to),
        "notifies": policy.notice is not None,
    }


def policy_of(recorded: Mapping[str, Any], now: ApprovalPolicy) -> ApprovalPolicy:
    """A policy from its record. Only how people are notified is the agent's own of today: that is code."""
    return ApprovalPolicy(
        asked_of=recorded.get("asked_of", ""),
        timeout=recorded.get("timeout"),
        remind_every=recorded.get("remind_every"),
        escalate_to=recorded.get("escalate_to", ()),
        notify=(now.notify or _notify_nobody) if recorded.get("notifies") else None,
    )


async def _notify_nobody(notice: ApprovalNotice) -> None:
    """In place of what the agent had when the question was asked, and has no more."""


def arguments_to_show(
    parameters: ToolParameters, context: str | None, given: Given, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """The JSON text of what a tool will get, as a person is shown it, and from which the approved call is made.

    With defaults, so that whoever approves sees all, and gets that even if a default changes meanwhile. If the values
    cannot be written so that they are read back as the same, what the model has sent is shown.
    """
    named = parameters.named(args, kwargs)
    sent = named_arguments(given)
    for shown in (named, {name: value for name, value in named.items() if name in sent}):
        try:
            text = to_json(shown).decode()
            if parameters.named(*parameters.check(text, context)) == named:
                return text
        except (ArgumentsRefused, ValueError):
            continue
    return to_json(sent).decode()


def _refuse_unfit(parameter: inspect.Parameter, parameters: ToolParameters, where: str) -> None:
    name = parameter.name
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        return
    if parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL):
        raise DefinitionError(f"{where}: it is called with the tool's arguments by name, so it cannot take {parameter}")
    if name in parameters.names or parameters.takes_others or parameter.default is not inspect.Parameter.empty:
        return
    close = get_close_matches(name, parameters.names, n=1)
    known = f"did you mean {close[0]!r}?" if close else f"it has: {listed(parameters.names) or 'none'}"
    raise DefinitionError(f"{where} takes {name!r}, which is no parameter of the tool; {known}")


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return hints_of(function if inspect.isroutine(function) else type(function).__call__)
