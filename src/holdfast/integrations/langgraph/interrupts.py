"""``interrupt`` ↔ approval: a node or a tool that calls ``interrupt`` waits for a person, with an approval of the run.

The library ends a node that calls ``interrupt`` with an exception, and starts it again with the answer, which
``interrupt`` then returns. Here the node's call catches the exception, asks, and starts the node again, so the graph
needs no checkpointer, and parallel nodes continue meanwhile. Calls that the node has already made return what they
returned before (see ``graph_context``).

People see the value of the interrupt, and answer with JSON: ``holdfast approve ID --value '"blue"'``. An approval
without a value is ``True``, and a denial is ``False``. A request of ``HumanInTheLoopMiddleware`` becomes an approval
of each tool call, with its arguments, which people may edit.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph._internal._config import patch_configurable
from langgraph._internal._constants import CONF, CONFIG_KEY_SCRATCHPAD
from langgraph.errors import GraphInterrupt
from langgraph.pregel._algo import LazyAtomicCounter

from holdfast.authoring.approval_requests import ApprovalPolicy, request_approval
from holdfast.codec import compute_content_digest
from holdfast.codec.canonical import to_canonical_bytes
from holdfast.core.execution import get_current_execution
from holdfast.engine.program_context import find_program
from holdfast.engine.program_run import CallContent
from holdfast.integrations.langgraph.graph_context import Attempt
from holdfast.services.approvals import Answer
from holdfast.stores.approvals import ApprovalRequest

T = TypeVar("T")

_TEXT_KEYS = ("question", "message", "description", "prompt")


class InterruptScope:
    """The interrupts of one node or tool: its answers so far, for the next attempt."""

    def __init__(self, config: RunnableConfig | None, attempt: Attempt, *, is_isolated: bool = False) -> None:
        self._config = config
        self._attempt = attempt
        self._scratchpad = (config or {}).get(CONF, {}).get(CONFIG_KEY_SCRATCHPAD)
        self._is_isolated = is_isolated
        """Whether it has its own interrupts, apart from those of the node that it is a part of."""
        self.answers: list[Any] = []

    def make_scratchpad(self) -> Any:
        """The library's memory of an attempt, in which ``interrupt`` finds the answers; ``None``: there is none."""
        if self._scratchpad is None or not (self.answers or self._is_isolated):
            return self._scratchpad
        return replace(
            self._scratchpad,
            call_counter=LazyAtomicCounter(),
            interrupt_counter=LazyAtomicCounter(),
            subgraph_counter=LazyAtomicCounter(),
            get_null_resume=lambda _=False: None,
            resume=list(self.answers),
        )

    def patch(self, config: RunnableConfig | None) -> RunnableConfig | None:
        """The configuration of an attempt."""
        scratchpad = self.make_scratchpad()
        if scratchpad is None or scratchpad is self._scratchpad:
            return config
        return patch_configurable(config, {CONFIG_KEY_SCRATCHPAD: scratchpad})

    def add_answer(self, answer: Any) -> None:
        """The answer to the interrupt that ended the last attempt."""
        self.answers.append(answer)
        self._attempt.start_again()


async def answer_interrupts(scope: InterruptScope, execute: Callable[[], Awaitable[T]]) -> T:
    """The outcome of the attempt that all interrupts of which are answered."""
    while True:
        try:
            return await execute()
        except GraphInterrupt as interrupted:
            questions = _read_questions(interrupted)
            if questions is None:
                raise
        program = find_program()
        assert program is not None
        calls = [program.run.submit(program.thread, *_make_call(request)) for request in questions.requests]
        try:
            answers = [await waiting for _, waiting in calls]
        finally:
            for future, _ in calls:
                program.run.abandon(future)
        scope.add_answer(questions.combine(answers))


def answer_interrupts_sync(scope: InterruptScope, execute: Callable[[], T]) -> T:
    """The same for code that is not async."""
    while True:
        try:
            return execute()
        except GraphInterrupt as interrupted:
            questions = _read_questions(interrupted)
            if questions is None:
                raise
        program = find_program()
        assert program is not None
        calls = [program.run.submit_from_thread(program.thread, *_make_call(one)) for one in questions.requests]
        try:
            answers = [call.result() for call in calls]
        finally:
            for call in calls:
                program.run.abandon(call)
        scope.add_answer(questions.combine(answers))


def _make_call(request: ApprovalRequest) -> tuple[Callable[[], Any], CallContent]:
    content = [request.question, request.tool, request.arguments.decode()]
    return partial(_ask, request), CallContent(compute_content_digest("interrupt", content))


async def _ask(request: ApprovalRequest) -> Answer | None:
    execution = get_current_execution()
    assert execution is not None
    return (await request_approval(execution, request, ApprovalPolicy())).answer


# What people are asked


class _Questions(NamedTuple):
    requests: Sequence[ApprovalRequest]
    combine: Callable[[Sequence[Answer]], Any]
    """Makes the value that ``interrupt`` returns."""


def _read_questions(interrupted: GraphInterrupt) -> _Questions | None:
    """The approvals for an interrupt; ``None``: it is not one of ``interrupt()``."""
    found: Sequence[Any] = interrupted.args[0] if interrupted.args else ()
    if len(found) != 1:
        return None
    value, schema = found[0].value, found[0].response_schema
    if isinstance(value, dict):
        request = cast("dict[str, Any]", value)
        allowed = [set(config.get("allowed_decisions", ())) for config in request.get("review_configs", ())]
        if "action_requests" in request and allowed and all("approve" in one for one in allowed):
            actions: list[Mapping[str, Any]] = request["action_requests"]
            return _Questions([_ask_for_action(one) for one in actions], partial(_combine_decisions, actions))
        if request.get("type") == "tool_approval" and '"approve"' in json.dumps(schema):
            return _Questions([_ask_for_action(request)], lambda answers: _make_decision(request, answers[0]))
    form = json.dumps(schema or {}, default=str).encode()
    return _Questions([ApprovalRequest(_make_question(value), form_schema=form)], _read_value)


def _ask_for_action(action: Mapping[str, Any]) -> ApprovalRequest:
    question = str(action.get("description") or f"May {action['name']} be called?")
    return ApprovalRequest(question, tool=action["name"], arguments=to_canonical_bytes(action["args"]))


def _combine_decisions(actions: Sequence[Mapping[str, Any]], answers: Sequence[Answer]) -> dict[str, Any]:
    return {"decisions": [_make_decision(action, answer) for action, answer in zip(actions, answers, strict=True)]}


def _make_decision(action: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    if not answer.approved:
        return {"type": "reject", "message": answer.reason} if answer.reason else {"type": "reject"}
    if answer.arguments is not None:
        return {"type": "edit", "edited_action": {"name": action["name"], "args": answer.arguments}}
    return {"type": "approve"}


def _read_value(answers: Sequence[Answer]) -> Any:
    answer = answers[0]
    if not answer.approved:
        return False
    return True if answer.value is None else answer.value


def _make_question(value: Any) -> str:
    """The value of an interrupt as text."""
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, Mapping):
        texts = [str(value[key]) for key in _TEXT_KEYS if value.get(key)]
        rest = {key: item for key, item in cast("Mapping[str, Any]", value).items() if key not in _TEXT_KEYS}
        if texts:
            return "\n\n".join([*texts, *([_format(rest)] if rest else [])])
    return _format(value)


def _format(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)
