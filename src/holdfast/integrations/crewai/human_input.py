"""Human input of CrewAI as approvals: ``human_input=True`` of tasks, and what flows ask.

A person reads the result of a task as the question of an approval. Approving it accepts the result; denying it with a
reason is feedback, with which the agent tries again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from crewai.core.providers import human_input

from holdfast.authoring.approval_requests import ApprovalPolicy, request_approval
from holdfast.authoring.ask import ask
from holdfast.authoring.program_calls import call_workflow_api
from holdfast.codec import compute_content_digest
from holdfast.core.execution import get_current_execution
from holdfast.engine.program_context import find_program
from holdfast.engine.program_run import CallContent
from holdfast.errors import ApprovalDenied, UsageError
from holdfast.stores.approvals import ApprovalRequest

_REJECTED = "The result was rejected, without a reason."


class ApprovalProvider(human_input.SyncHumanInputProvider):
    """Asks for the feedback on a task's result in an approval. Outside of programs, it asks at the terminal."""

    def handle_feedback(self, formatted_answer: Any, context: Any) -> Any:
        """The final answer, after all feedback."""
        if find_program() is None or context._is_training_mode():
            return super().handle_feedback(formatted_answer, context)
        answer = formatted_answer
        while context.ask_for_human_input:
            feedback = request_review_sync(self._make_question(answer, context))
            if not feedback:
                context.ask_for_human_input = False
                break
            context.messages.append(context._format_feedback_message(feedback))
            answer = context._invoke_loop()
        return answer

    async def handle_feedback_async(self, formatted_answer: Any, context: Any) -> Any:
        """The same for async execution."""
        if find_program() is None or context._is_training_mode():
            return await super().handle_feedback_async(formatted_answer, context)
        answer = formatted_answer
        while context.ask_for_human_input:
            feedback = await request_review(self._make_question(answer, context))
            if not feedback:
                context.ask_for_human_input = False
                break
            context.messages.append(context._format_feedback_message(feedback))
            answer = await context._ainvoke_loop()
        return answer

    def _make_question(self, answer: Any, context: Any) -> str:
        task = context.task
        title = "" if task is None else f"{task.name or task.description.strip()}\n\n"
        result = self._get_output_string(answer)
        return f"{title}Is this result accepted? Deny it with a reason to have it improved.\n\n{result}"


def use_approvals() -> None:
    """Let the crews of the calling code ask in approvals, unless the program has set a provider of its own."""
    current = human_input._provider.get()  # pyright: ignore[reportPrivateUsage]
    if current is None or type(current) is human_input.SyncHumanInputProvider:
        human_input.set_provider(ApprovalProvider())


async def request_review(question: str) -> str:
    """The feedback on something; empty: it is accepted."""
    program = find_program()
    assert program is not None
    return await call_workflow_api(program, partial(_review, question), "review", question)


def request_review_sync(question: str) -> str:
    """The same for code that is not async."""
    return _call_sync(partial(_review, question), "review", question)


def request_text_sync(question: str) -> str | None:
    """What a person writes as the answer to a question; ``None``: the question was denied."""
    return _call_sync(partial(_ask_for_text, question), "text", question)


async def _review(question: str) -> str:
    execution = get_current_execution()
    assert execution is not None
    result = await request_approval(execution, ApprovalRequest(question), ApprovalPolicy())
    answer = result.answer
    assert answer is not None  # there is no time limit
    return "" if answer.approved else answer.reason or _REJECTED


async def _ask_for_text(question: str) -> str | None:
    try:
        return await ask(question, form=str)
    except ApprovalDenied:
        return None


def _call_sync(make: Callable[[], Coroutine[Any, Any, Any]], *content: object) -> Any:
    program = find_program()
    assert program is not None
    run, thread, _ = program
    if asyncio._get_running_loop() is run.loop:
        raise UsageError("a person cannot be asked here, because the event loop of this process would be blocked")
    return run.call_sync(thread, make, CallContent(compute_content_digest(*content)))
