"""``holdfast approvals``, ``approve`` and ``deny``: what runs ask people, and the answers.

Whoever decides must see what the decision is about. So a question is shown with all that belongs to it, the arguments
of a call in full, and with the command that answers it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import click
from rich.console import Console
from rich.text import Text

from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import (
    create_console,
    format_ago,
    format_count,
    format_local_time,
    make_printable,
    print_json,
    to_one_line,
    wrap_text,
)
from holdfast.cli.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.store_access import format_store_command, get_run, open_client
from holdfast.cli.values import parse_json_option, parse_json_or_text
from holdfast.client.client import Client
from holdfast.errors import HoldfastError, RunNotFound, UnknownApproval
from holdfast.services.approvals import Answer, ApprovalInfo, describe_form_fields
from holdfast.services.json_form import to_json
from holdfast.stores.approvals import ApprovalState

_MAX_NAMED = 5
_LABEL_WIDTH = 11
_INDENT = 4

# The list


def show_approvals(
    url: str | None,
    run_id: str | None,
    *,
    workflow: str | None,
    assignee: str | None,
    include_closed: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Print what people are asked."""
    found = run_in_loop(_fetch_approvals(url, run_id, workflow, assignee, include_closed, limit + 1))
    asked, now = found[:limit], time.time()
    if as_json:
        print_json([approval_to_json(one) for one in asked])
        return
    out = create_console()
    if not asked:
        narrowed = run_id is not None or workflow is not None or assignee is not None
        out.print("no approval matches" if narrowed else "no approvals yet" if include_closed else "no open approvals")
    for index, one in enumerate(asked):
        if index:
            out.print()
        print_approval(out, one, now, url)
    if len(found) > limit:
        more = "there are more: name a run, --workflow or --for, or give a higher --limit"
        out.print(Text(f"\n{more}", "dim"), soft_wrap=True)


async def _fetch_approvals(
    url: str | None, run_id: str | None, workflow: str | None, assignee: str | None, include_closed: bool, limit: int
) -> list[ApprovalInfo]:
    async with open_client(url) as client:
        if run_id is not None:
            await get_run(client, run_id)
        return await client.approvals(run_id, workflow=workflow, assignee=assignee, all=include_closed, limit=limit)


def print_approval(out: Console, approval: ApprovalInfo, now: float, url: str | None = None, indent: int = 0) -> None:
    """Print all that a person must see to decide, and how to answer."""
    telling = _FieldPrinter(out, indent)
    style = "bold" if approval.state is ApprovalState.OPEN else ""
    first, *rest = wrap_text(out, approval.question, indent + 14) or [""]
    telling.print_line(f"{approval.id}  ", first, style)
    for line in rest:
        telling.print_line(" " * (len(approval.id) + 2), line, style)
    telling.print_field(
        "run", f"{to_one_line(approval.run_id)} ({to_one_line(approval.workflow)}), number {approval.step_number}"
    )
    since = approval.requested_at.timestamp()
    whom = f" of {to_one_line(approval.assignee)}" if approval.assignee else ""
    again = f", told again {_format_times(approval.reminder_count)}" if approval.reminder_count else ""
    telling.print_field("asked", f"{format_ago(now - since)} ({format_local_time(since)}){whom}{again}")
    if approval.expires_at is not None and approval.state is ApprovalState.OPEN:
        until = approval.expires_at.timestamp()
        telling.print_field("until", f"{format_ago(now - until)} ({format_local_time(until)})")
    if approval.tool:
        telling.print_field("tool", to_one_line(approval.tool))
    if approval.reason:
        telling.print_field("reason", approval.reason)
    if approval.arguments is not None:
        telling.print_block("arguments", json.dumps(approval.arguments, indent=2, ensure_ascii=False))
    if approval.choices:
        telling.print_field("choices", "\n".join(approval.choices))
    if approval.form is not None and not approval.tool:
        telling.print_field("form", "\n".join(describe_form_fields(approval.form)))
    if approval.state is ApprovalState.ANSWERED and approval.answer is not None:
        telling.print_field(
            "answered", describe_answer(approval.answer, now), "green" if approval.answer.approved else "yellow"
        )
    elif approval.state is ApprovalState.WITHDRAWN:
        telling.print_field("closed", "nobody waits for the answer any more", "dim")
    else:
        telling.print_field("answer", "\n".join(_list_answer_commands(approval, url)), "cyan")


def describe_answer(answer: Answer, now: float) -> str:
    """What was said, by whom, and when."""
    return (
        f"{answer.describe()}, by {answer.answered_by or 'somebody'} {format_ago(now - answer.answered_at)} "
        f"({format_local_time(answer.answered_at)})"
    )


def _list_answer_commands(approval: ApprovalInfo, url: str | None) -> list[str]:
    """What to type."""
    if approval.choices:
        yes = [format_store_command(url, "approve", approval.id, choice) for choice in approval.choices]
    elif approval.form is not None and not approval.tool:
        yes = [f"{format_store_command(url, 'approve', approval.id)} --value JSON"]
    else:
        yes = [format_store_command(url, "approve", approval.id)]
    if approval.tool:
        yes.append(f"{format_store_command(url, 'approve', approval.id)} --arguments JSON")
    return [*yes, format_store_command(url, "deny", approval.id)]


def _format_times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else format_count(count, "time")


class _FieldPrinter:
    """Fields below a question. Recorded text is wrapped, and never cut: somebody decides by it."""

    def __init__(self, out: Console, indent: int) -> None:
        self._out = out
        self._indent = indent

    def print_line(self, prefix: str, text: str, style: str) -> None:
        self._out.print(Text.assemble(" " * self._indent, prefix, (text, style)), soft_wrap=True)

    def print_field(self, label: str, value: str, style: str = "") -> None:
        indent = self._indent + _INDENT
        for index, line in enumerate(wrap_text(self._out, value, indent + _LABEL_WIDTH)):
            head = label if index == 0 else ""
            self._out.print(
                Text.assemble(" " * indent, (head.ljust(_LABEL_WIDTH), "dim"), (line, style)), soft_wrap=True
            )

    def print_block(self, label: str, value: str) -> None:
        indent = self._indent + _INDENT
        self._out.print(Text.assemble(" " * indent, (label, "dim")), soft_wrap=True)
        for line in make_printable(value).splitlines():
            self._out.print(Text(" " * (indent + 2) + line), soft_wrap=True)


def approval_to_json(approval: ApprovalInfo) -> dict[str, Any]:
    """All of it, under stable names."""
    return to_json(approval)


# Answering


def approve(
    url: str | None,
    id: str,
    text: str | None,
    *,
    value: str | None,
    arguments: str | None,
    by: str | None,
    reason: str,
    as_json: bool,
) -> int:
    """Say yes, and tell to what."""
    if text is not None and value is not None:
        raise click.UsageError("the answer is given once: as VALUE or with --value.")
    edited: Any = None if arguments is None else parse_json_option("--arguments", arguments)
    if edited is not None and not isinstance(edited, dict):
        raise click.UsageError(f"--arguments is a JSON object with a value for each argument, not {arguments}.")
    given: Any = None if value is None else parse_json_option("--value", value)

    async def answer(client: Client, asked: ApprovalInfo) -> bool:
        said = given if text is None else _parse_answer(text, asked)
        return await client.approve(asked.id, said, arguments=cast("Mapping[str, Any]", edited), by=by, reason=reason)

    return print_outcomes(url, [run_in_loop(_submit_answer(url, id, answer))], as_json=as_json)


def deny(url: str | None, id: str, *, by: str | None, reason: str, as_json: bool) -> int:
    """Say no, and tell to what."""

    async def answer(client: Client, asked: ApprovalInfo) -> bool:
        return await client.deny(asked.id, by=by, reason=reason)

    return print_outcomes(url, [run_in_loop(_submit_answer(url, id, answer))], as_json=as_json)


def _parse_answer(text: str, approval: ApprovalInfo) -> Any:
    """What somebody typed as an answer: a choice as it stands; for a form, JSON, or else a text."""
    return text if approval.choices else parse_json_or_text(text)


async def _submit_answer(url: str | None, id: str, send: Callable[[Client, ApprovalInfo], Awaitable[bool]]) -> Outcome:
    async with open_client(url) as client:
        try:
            asked = await _find_approval(client, id)
        except HoldfastError as error:
            return Outcome("", None, error=error, extra={"approval": id})
        try:
            changed = await send(client, asked)
            now, run = await client.approval(asked.id), await client.get(asked.run_id)
        except HoldfastError as error:
            return replace(await outcome_from_error(client, asked.run_id, error), extra={"approval": asked.id})
        goes_on = "it goes on" if run.is_claimed else "it goes on when a worker takes it up"
        if run.is_paused:
            goes_on = "the answer is kept until it goes on"
        told = (
            _describe_answered(now)
            if changed
            else f"{_describe_answered(now)}\nyou had said so before: nothing changed"
        )
        return Outcome.from_run(
            run,
            changed=changed,
            message=f"{told}\nrun {run.id!r}: {goes_on}" if changed else told,
            approval=asked.id,
            answer=approval_to_json(now)["answer"],
        )


async def _find_approval(client: Client, id: str) -> ApprovalInfo:
    """The approval of this id, or the one that the run of this id waits for.

    A run's whole id comes first: the beginning of an approval's id may be the same, and belong to another run.
    """
    of_run = await client.approvals(id, limit=_MAX_NAMED + 1)
    if len(of_run) == 1:
        return of_run[0]
    if of_run:
        few = ", ".join(f"{one.id} ({one.question!r})" for one in of_run[:_MAX_NAMED])
        more = " and others" if len(of_run) > _MAX_NAMED else ""
        raise UnknownApproval(f"run {id!r} has more than one open approval: {few}{more}. Give the id of one.", id)
    try:
        return await client.approval(id)
    except UnknownApproval as unknown:
        try:
            run = await client.get(id)
        except RunNotFound:
            raise unknown from None
        waits = f" and waits for {run.waits_for}" if run.waits_for else ""
        raise UnknownApproval(f"run {id!r} has no open approval: it is {run.state}{waits}.", id) from None


def _describe_answered(approval: ApprovalInfo) -> str:
    """What was answered, and to what."""
    answer = approval.answer
    assert answer is not None
    verb = "approved" if answer.approved else "denied"
    what = f"{verb} as {answer.answered_by or 'somebody'}: {approval.question!r} (approval {approval.id})"
    if answer.approved and approval.tool:
        shown = approval.arguments if answer.arguments is None else answer.arguments
        edited = " instead of what was asked for" if answer.arguments is not None else ""
        what += f"\n{approval.tool}({json.dumps(shown, ensure_ascii=False)}){edited}"
    elif answer.value is not None:
        what += f"\nwith {json.dumps(answer.value, ensure_ascii=False)}"
    return what
