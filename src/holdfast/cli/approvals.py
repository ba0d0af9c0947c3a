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

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import ago, clock_time, console, counted, echo_json, one_line, printable, wrapped
from holdfast.cli.outcomes import Outcome, failure, report
from holdfast.cli.store_access import command_at, get_run, reached
from holdfast.cli.values import json_of, json_or_text
from holdfast.client.client import Client
from holdfast.errors import HoldfastError, RunNotFound, UnknownApproval
from holdfast.reports.serialization import as_json
from holdfast.reports.types import Asked
from holdfast.services.approvals import Answer, ApprovalInfo, form_fields
from holdfast.stores.approvals import ApprovalState

_MOST_NAMED = 5
_LABEL = 11
_INDENT = 4

# The list


def show_approvals(
    url: str | None,
    run_id: str | None,
    *,
    workflow: str | None,
    asked_of: str | None,
    all: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Print what people are asked."""
    found = in_loop(_read(url, run_id, workflow, asked_of, all, limit + 1))
    asked, now = found[:limit], time.time()
    if as_json:
        echo_json([approval_as_json(one) for one in asked])
        return
    out = console()
    if not asked:
        narrowed = run_id is not None or workflow is not None or asked_of is not None
        out.print("no approval matches" if narrowed else "no approvals yet" if all else "nobody is asked for anything")
    for index, one in enumerate(asked):
        if index:
            out.print()
        tell_question(out, one, now, url)
    if len(found) > limit:
        more = "there are more: name a run, --workflow or --for, or give a higher --limit"
        out.print(Text(f"\n{more}", "dim"), soft_wrap=True)


async def _read(
    url: str | None, run_id: str | None, workflow: str | None, asked_of: str | None, all: bool, limit: int
) -> list[ApprovalInfo]:
    async with reached(url) as client:
        if run_id is not None:
            await get_run(client, run_id)
        return await client.approvals(run_id, workflow=workflow, asked_of=asked_of, all=all, limit=limit)


def tell_question(out: Console, asked: ApprovalInfo, now: float, url: str | None = None, indent: int = 0) -> None:
    """Print all that a person must see to decide, and how to answer."""
    telling = _Telling(out, indent)
    style = "bold" if asked.state is ApprovalState.OPEN else ""
    first, *rest = wrapped(out, asked.question, indent + 14) or [""]
    telling.line(f"{asked.id}  ", first, style)
    for line in rest:
        telling.line(" " * (len(asked.id) + 2), line, style)
    telling.field("run", f"{one_line(asked.run_id)} ({one_line(asked.workflow)}), number {asked.number}")
    since = asked.asked_at.timestamp()
    whom = f" of {one_line(asked.asked_of)}" if asked.asked_of else ""
    again = f", told again {_times(asked.reminders)}" if asked.reminders else ""
    telling.field("asked", f"{ago(now - since)} ({clock_time(since)}){whom}{again}")
    if asked.expires_at is not None and asked.state is ApprovalState.OPEN:
        until = asked.expires_at.timestamp()
        telling.field("until", f"{ago(now - until)} ({clock_time(until)})")
    if asked.tool:
        telling.field("tool", one_line(asked.tool))
    if asked.reason:
        telling.field("reason", asked.reason)
    if asked.arguments is not None:
        telling.block("arguments", json.dumps(asked.arguments, indent=2, ensure_ascii=False))
    if asked.choices:
        telling.field("choices", "\n".join(asked.choices))
    if asked.form is not None and not asked.tool:
        telling.field("form", "\n".join(form_fields(asked.form)))
    if asked.state is ApprovalState.ANSWERED and asked.answer is not None:
        telling.field("answered", answer_in_words(asked.answer, now), "green" if asked.answer.approved else "yellow")
    elif asked.state is ApprovalState.WITHDRAWN:
        telling.field("closed", "nobody waits for the answer any more", "dim")
    else:
        telling.field("answer", "\n".join(_commands(asked, url)), "cyan")


def answer_in_words(answer: Answer, now: float) -> str:
    """What was said, by whom, and when."""
    return f"{answer.in_words()}, by {answer.by or 'somebody'} {ago(now - answer.at)} ({clock_time(answer.at)})"


def _commands(asked: ApprovalInfo, url: str | None) -> list[str]:
    """What to type."""
    if asked.choices:
        yes = [command_at(url, "approve", asked.id, choice) for choice in asked.choices]
    elif asked.form is not None and not asked.tool:
        yes = [f"{command_at(url, 'approve', asked.id)} --value JSON"]
    else:
        yes = [command_at(url, "approve", asked.id)]
    if asked.tool:
        yes.append(f"{command_at(url, 'approve', asked.id)} --arguments JSON")
    return [*yes, command_at(url, "deny", asked.id)]


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else counted(count, "time")


class _Telling:
    """Fields below a question. Recorded text is wrapped, and never cut: somebody decides by it."""

    def __init__(self, out: Console, indent: int) -> None:
        self._out = out
        self._indent = indent

    def line(self, before: str, text: str, style: str) -> None:
        self._out.print(Text.assemble(" " * self._indent, before, (text, style)), soft_wrap=True)

    def field(self, label: str, value: str, style: str = "") -> None:
        indent = self._indent + _INDENT
        for index, line in enumerate(wrapped(self._out, value, indent + _LABEL)):
            head = label if index == 0 else ""
            self._out.print(Text.assemble(" " * indent, (head.ljust(_LABEL), "dim"), (line, style)), soft_wrap=True)

    def block(self, label: str, value: str) -> None:
        indent = self._indent + _INDENT
        self._out.print(Text.assemble(" " * indent, (label, "dim")), soft_wrap=True)
        for line in printable(value).splitlines():
            self._out.print(Text(" " * (indent + 2) + line), soft_wrap=True)


def approval_as_json(asked: ApprovalInfo) -> dict[str, Any]:
    """All of it, under stable names."""
    return as_json(Asked.of(asked))


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
    edited: Any = None if arguments is None else json_of("--arguments", arguments)
    if edited is not None and not isinstance(edited, dict):
        raise click.UsageError(f"--arguments is a JSON object with a value for each argument, not {arguments}.")
    given: Any = None if value is None else json_of("--value", value)

    async def answer(client: Client, asked: ApprovalInfo) -> bool:
        said = given if text is None else _said(text, asked)
        return await client.approve(asked.id, said, arguments=cast("Mapping[str, Any]", edited), by=by, reason=reason)

    return report(url, [in_loop(_answer(url, id, answer))], as_json=as_json)


def deny(url: str | None, id: str, *, by: str | None, reason: str, as_json: bool) -> int:
    """Say no, and tell to what."""

    async def answer(client: Client, asked: ApprovalInfo) -> bool:
        return await client.deny(asked.id, by=by, reason=reason)

    return report(url, [in_loop(_answer(url, id, answer))], as_json=as_json)


def _said(text: str, asked: ApprovalInfo) -> Any:
    """What somebody typed as an answer: a choice as it stands; for a form, JSON, or else a text."""
    return text if asked.choices else json_or_text(text)


async def _answer(url: str | None, id: str, answer: Callable[[Client, ApprovalInfo], Awaitable[bool]]) -> Outcome:
    async with reached(url) as client:
        try:
            asked = await _find(client, id)
        except HoldfastError as error:
            return Outcome("", None, error=error, more={"approval": id})
        try:
            changed = await answer(client, asked)
            now, run = await client.approval(asked.id), await client.get(asked.run_id)
        except HoldfastError as error:
            return replace(await failure(client, asked.run_id, error), more={"approval": asked.id})
        goes_on = "it goes on" if run.held else "it goes on when a worker takes it up"
        if run.paused:
            goes_on = "the answer is kept until it goes on"
        told = _told(now) if changed else f"{_told(now)}\nyou had said so before: nothing changed"
        return Outcome.of(
            run,
            changed=changed,
            message=f"{told}\nrun {run.id!r}: {goes_on}" if changed else told,
            approval=asked.id,
            answer=approval_as_json(now)["answer"],
        )


async def _find(client: Client, id: str) -> ApprovalInfo:
    """The approval of this id, or the one that the run of this id waits for.

    A run's whole id comes first: the beginning of an approval's id may be the same, and belong to another run.
    """
    of_run = await client.approvals(id, limit=_MOST_NAMED + 1)
    if len(of_run) == 1:
        return of_run[0]
    if of_run:
        few = ", ".join(f"{one.id} ({one.question!r})" for one in of_run[:_MOST_NAMED])
        more = " and others" if len(of_run) > _MOST_NAMED else ""
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


def _told(asked: ApprovalInfo) -> str:
    """What was answered, and to what."""
    answer = asked.answer
    assert answer is not None
    verb = "approved" if answer.approved else "denied"
    what = f"{verb} as {answer.by or 'somebody'}: {asked.question!r} (approval {asked.id})"
    if answer.approved and asked.tool:
        shown = asked.arguments if answer.arguments is None else answer.arguments
        edited = " instead of what was asked for" if answer.arguments is not None else ""
        what += f"\n{asked.tool}({json.dumps(shown, ensure_ascii=False)}){edited}"
    elif answer.value is not None:
        what += f"\nwith {json.dumps(answer.value, ensure_ascii=False)}"
    return what
