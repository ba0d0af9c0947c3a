"""``holdfast approvals``, ``approve``, and ``deny``.

People must see what they decide about. So an approval is shown with everything that belongs to it, the arguments of a
call in full, and with the command that answers it.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import click
from rich.console import Console
from rich.text import Text

from holdfast.cli.shared.formatting import (
    create_console,
    format_count,
    format_time_and_age,
    make_printable,
    print_field,
    print_json,
    to_one_line,
)
from holdfast.cli.shared.group import F
from holdfast.cli.shared.options import command, json_changes_option, json_option, limit_option, url_option
from holdfast.cli.shared.outcomes import Outcome, outcome_from_error, print_outcomes
from holdfast.cli.shared.parsing import parse_json_option, parse_json_or_text
from holdfast.cli.shared.store_access import format_store_command, run_client
from holdfast.client.client import Client
from holdfast.errors import HoldfastError, RunNotFound, UnknownApproval
from holdfast.services.approvals import Answer, ApprovalInfo, describe_form_fields
from holdfast.services.json_form import to_json
from holdfast.stores.approvals import ApprovalState

_MAX_NAMED = 5
_INDENT = 4

# Listing


@command("holdfast approvals", "holdfast approvals deploy-7 --all", "holdfast approvals --for ann")
@click.argument("run_id", metavar="[ID]", required=False)
@click.option("--all", "include_closed", is_flag=True, help="Also closed approvals: answered, or no longer needed.")
@click.option("--workflow", metavar="W", help="Only approvals of runs of this workflow.")
@click.option("--for", "assignee", metavar="WHO", help="Only approvals assigned to WHO.")
@limit_option
@json_option("A JSON array of approvals, each as in `GET /v1/approvals`.")
@url_option
def approvals(
    run_id: str | None,
    include_closed: bool,
    workflow: str | None,
    assignee: str | None,
    limit: int,
    as_json: bool,
    url: str | None,
) -> None:
    """List open approvals, oldest first.

    Each is shown with everything that belongs to it: who is asked, since when and until when, the arguments of a
    call in full, the choices or the fields of a form, and the command that answers it.
    """

    async def fetch(client: Client) -> list[ApprovalInfo]:
        if run_id is not None:
            await client.get(run_id)  # an unknown run has no approvals, but is an error
        return await client.approvals(run_id, workflow=workflow, assignee=assignee, all=include_closed, limit=limit + 1)

    found = run_client(url, fetch)
    if as_json:
        print_json(to_json(found[:limit]))
        return
    out, now = create_console(), time.time()
    if not found:
        is_filtered = run_id is not None or workflow is not None or assignee is not None
        out.print(
            "no approval matches" if is_filtered else "no approvals yet" if include_closed else "no open approvals"
        )
    for index, one in enumerate(found[:limit]):
        if index:
            out.print()
        print_approval(out, one, now, url)
    if len(found) > limit:
        out.print()
        out.print("there are more: name a run, --workflow or --for, or give a higher --limit", style="dim")


def print_approval(out: Console, approval: ApprovalInfo, now: float, url: str | None = None, indent: int = 0) -> None:
    """Print everything that a person must see to decide, and how to answer."""
    # Recorded text is wrapped and never cut: people decide by it.
    print_wrapped = functools.partial(print_field, out, indent=indent + _INDENT, wrap=True)
    style = "bold" if approval.state is ApprovalState.OPEN else ""
    label = Text(approval.id + "  ")
    print_field(out, label, approval.question, style, indent=indent, label_width=len(label), wrap=True)
    print_wrapped(
        "run", f"{to_one_line(approval.run_id)} ({to_one_line(approval.workflow)}), step {approval.step_number}"
    )
    whom = f" of {to_one_line(approval.assignee)}" if approval.assignee else ""
    again = f", reminded {_format_times(approval.reminder_count)}" if approval.reminder_count else ""
    print_wrapped("asked", f"{format_time_and_age(approval.requested_at.timestamp(), now)}{whom}{again}")
    if approval.expires_at is not None and approval.state is ApprovalState.OPEN:
        print_wrapped("until", format_time_and_age(approval.expires_at.timestamp(), now))
    if approval.tool:
        print_wrapped("tool", to_one_line(approval.tool))
    if approval.reason:
        print_wrapped("reason", approval.reason)
    if approval.arguments is not None:
        print_wrapped("arguments", "")
        arguments = make_printable(json.dumps(approval.arguments, indent=2, ensure_ascii=False))
        print_field(out, "", arguments, indent=indent + _INDENT, label_width=2)
    if approval.choices:
        print_wrapped("choices", "\n".join(approval.choices))
    if approval.form is not None and not approval.tool:
        print_wrapped("form", "\n".join(describe_form_fields(approval.form)))
    if approval.state is ApprovalState.ANSWERED and approval.answer is not None:
        style = "green" if approval.answer.approved else "yellow"
        print_wrapped("answered", describe_answer(approval.answer, now), style)
    elif approval.state is ApprovalState.WITHDRAWN:
        print_wrapped("closed", "no longer needed", "dim")
    else:
        print_wrapped("answer", "\n".join(_list_answer_commands(approval, url)), "cyan")


def describe_answer(answer: Answer, now: float) -> str:
    """The answer, who gave it, and when."""
    when = format_time_and_age(answer.answered_at, now)
    return f"{answer.describe()}, by {answer.answered_by or 'someone'} {when}"


def _list_answer_commands(approval: ApprovalInfo, url: str | None) -> list[str]:
    """The commands that answer."""
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


def _answer_options(command: F) -> F:
    for option in (
        click.option(
            "--by", metavar="WHO", help="Who answers. Default: the user of this machine, or the name of the API key."
        ),
        click.option("--reason", metavar="TEXT", default="", help="Why, for people to read, and for the run."),
    ):
        command = option(command)
    return command


@command(
    "holdfast approve 3mkjh2t65l7y",
    "holdfast approve 3mkj production",
    """holdfast approve 3mkj --value '{"days": 3}' --by ann""",
)
@click.argument("approval_id", metavar="ID")
@click.argument("value", required=False)
@click.option("--value", "json_value", metavar="JSON", help="The answer as JSON, for a form.")
@click.option("--arguments", metavar="JSON", help="Of a tool call: arguments to use instead of those that are shown.")
@_answer_options
@json_changes_option
@url_option
def approve(
    approval_id: str,
    value: str | None,
    json_value: str | None,
    arguments: str | None,
    by: str | None,
    reason: str,
    as_json: bool,
    url: str | None,
) -> None:
    """Approve what a run asks.

    ID is that of the approval, as `holdfast approvals` shows it (its beginning is enough), or that of the run, if the
    run has one open approval. VALUE is the choice, if there are choices. The answer is
    checked first: if it is invalid, the approval stays open. Each approval is answered once.
    """
    if value is not None and json_value is not None:
        raise click.UsageError("the answer is given once: as VALUE or with --value.")
    edited: Any = None if arguments is None else parse_json_option("--arguments", arguments)
    if edited is not None and not isinstance(edited, dict):
        raise click.UsageError(f"--arguments is a JSON object with a value for each argument, not {arguments}.")
    given: Any = None if json_value is None else parse_json_option("--value", json_value)

    async def send(client: Client, approval: ApprovalInfo) -> bool:
        # A choice is text as it is; for a form, it is JSON or else text.
        answer = given if value is None else value if approval.choices else parse_json_or_text(value)
        edited_arguments = cast("Mapping[str, Any]", edited)
        return await client.approve(approval.id, answer, arguments=edited_arguments, by=by, reason=reason)

    outcome = run_client(url, lambda client: _submit_answer(client, approval_id, send))
    sys.exit(print_outcomes(url, [outcome], as_json=as_json))


@command("holdfast deny 3mkjh2t65l7y", 'holdfast deny 3mkj --reason "not on a Friday"')
@click.argument("approval_id", metavar="ID")
@_answer_options
@json_changes_option
@url_option
def deny(approval_id: str, by: str | None, reason: str, as_json: bool, url: str | None) -> None:
    """Deny what a run asks.

    ID is that of the approval (its beginning is enough), or that of the run, if the run has one open approval.
    """

    async def send(client: Client, approval: ApprovalInfo) -> bool:
        return await client.deny(approval.id, by=by, reason=reason)

    outcome = run_client(url, lambda client: _submit_answer(client, approval_id, send))
    sys.exit(print_outcomes(url, [outcome], as_json=as_json))


async def _submit_answer(client: Client, id: str, send: Callable[[Client, ApprovalInfo], Awaitable[bool]]) -> Outcome:
    try:
        approval = await _find_approval(client, id)
    except HoldfastError as error:
        return Outcome("", None, error=error, extra={"approval": id})
    try:
        changed = await send(client, approval)
        now, run = await client.approval(approval.id), await client.get(approval.run_id)
    except HoldfastError as error:
        return replace(await outcome_from_error(client, approval.run_id, error), extra={"approval": approval.id})
    goes_on = "it continues" if run.is_claimed else "it continues when a worker claims it"
    if run.is_paused:
        goes_on = "the answer is kept until it continues"
    after = f"run {run.id!r}: {goes_on}" if changed else "you had said so before: nothing changed"
    return Outcome.from_run(
        run,
        changed=changed,
        message=f"{_describe_answered(now)}\n{after}",
        approval=approval.id,
        answer=None if now.answer is None else to_json(now.answer),
    )


async def _find_approval(client: Client, id: str) -> ApprovalInfo:
    """The approval with this id, or the open one of the run with this id.

    Run ids come first, because the beginning of an approval's id may be the same and belong to another run.
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
    """The answer, with the question."""
    answer = approval.answer
    assert answer is not None
    verb = "approved" if answer.approved else "denied"
    what = f"{verb} as {answer.answered_by or 'someone'}: {approval.question!r} (approval {approval.id})"
    if answer.approved and approval.tool:
        shown = approval.arguments if answer.arguments is None else answer.arguments
        edited = "with edited arguments: " if answer.arguments is not None else ""
        what += f"\n{edited}{approval.tool}({json.dumps(shown, ensure_ascii=False)})"
    elif answer.value is not None:
        what += f"\nwith {json.dumps(answer.value, ensure_ascii=False)}"
    return what
