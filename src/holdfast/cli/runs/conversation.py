"""``holdfast show --conversation``: messages, each indented below a line that says who speaks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from holdfast.cli.shared.formatting import (
    STATE_STYLES,
    create_console,
    format_count,
    make_printable,
    print_json,
    to_one_line,
    wrap_text,
)
from holdfast.cli.shared.store_access import format_store_command, run_client, with_store_options
from holdfast.client.client import Client
from holdfast.errors import UsageError
from holdfast.reports.conversations import ConversationMessage, message_to_json
from holdfast.reports.model_replies import describe_compaction, describe_failed_model, is_final_reply
from holdfast.reports.recorded_reply import ModelCallReport
from holdfast.reports.run_usage import format_tokens_and_cost
from holdfast.reports.types import RunReport

_INDENT = 4
_MAX_WIDTH = 100
"""A longer line is hard to read, however wide the terminal is."""
_MAX_LINES = 14
_MAX_CHARS = 1200
"""How much of a text is shown without ``--full``."""


def show_conversation(url: str | None, run_id: str, *, full: bool, as_json: bool) -> None:
    """Print the conversation of an agent's run."""

    async def fetch(client: Client) -> tuple[RunReport, list[ConversationMessage]]:
        return await client.describe(run_id, limit=1), await client.conversation(run_id)

    run, messages = run_client(url, fetch)
    if not messages:
        raise UsageError(
            f"run {run_id!r} of workflow {run.workflow!r} is not an agent's: it has no conversation. "
            f"`{format_store_command(url, 'show', run_id)}` shows its steps."
        )
    if as_json:
        print_json(_conversation_to_json(run, messages))
    else:
        _ConversationPrinter(create_console(), full, url).print_conversation(run, messages)


def _conversation_to_json(run: RunReport, messages: Sequence[ConversationMessage]) -> dict[str, Any]:
    return {
        "id": run.id,
        "workflow": run.workflow,
        "state": run.state.value,
        "session": run.session,
        "previous_run": run.previous_run,
        "messages": [message_to_json(one) for one in messages],
    }


class _ConversationPrinter:
    """Prints a conversation, and remembers whether a text was cut."""

    def __init__(self, out: Console, full: bool, url: str | None) -> None:
        self._out = out
        self._full = full
        self._url = url
        self._is_truncated = False

    def print_conversation(self, report: RunReport, messages: Sequence[ConversationMessage]) -> None:
        """Print all of it."""
        head = Text.assemble((to_one_line(report.id), "bold"), f" ({to_one_line(report.workflow)}), ")
        self._out.print(head.append(report.state, STATE_STYLES[report.state]))
        if report.previous_run:
            before = format_store_command(self._url, "show", report.previous_run, "--conversation")
            self._out.print(
                Text(
                    f"continues run {make_printable(report.previous_run)!r} of session {report.session!r}: `{before}`",
                    "dim",
                )
            )
        for one in messages:
            self._out.print()
            self._print_message(one)
        if self._is_truncated:
            whole = (
                f"`{format_store_command(self._url, 'show', report.id, '--conversation', '--full')}` shows all of it"
            )
            self._out.print()
            for line in self._wrap(f"long texts are cut: {whole}", 0):
                self._out.print(Text(line, "dim"))

    def _print_message(self, message: ConversationMessage) -> None:
        if message.role == "note":
            for line in self._wrap(with_store_options(self._url, f"{_format_number(message)}{message.text}"), 0):
                self._out.print(Text(line, "dim" if message.ok else "yellow"))
            return
        if message.reply is None:
            self._out.print(_format_header(message))
        else:
            self._print_reply(_format_header(message), message.reply)
        if message.decision is not None and message.decision.changed_arguments is not None:
            self._print_call(message.name, message.decision.changed_arguments)
        if message.text:
            self._print_body(message.text, "" if message.ok else "red")
        for name, arguments in message.tool_calls:
            self._print_call(name, arguments)

    def _print_reply(self, head: Text, reply: ModelCallReport) -> None:
        """Print which model answers, what it used, which models failed before, and its thinking."""
        paid = format_tokens_and_cost(reply.usage)
        if len(head) + 2 + len(paid) <= self._get_width(0):
            self._out.print(head.append(f"  {paid}", "dim"))
        else:
            self._out.print(head)
            self._print_body(paid, "dim")
        for model in reply.failed_models:
            self._print_body(describe_failed_model(model), "yellow")
        if reply.thinking:
            self._print_body(reply.thinking, "dim italic")

    def _print_call(self, name: str, arguments: Any) -> None:
        """Print ``→ search(query="x")``, or a line for each argument if that is too long."""
        if not isinstance(arguments, dict):
            self._print_body(f"→ {name}({_format_value(arguments)})", "cyan")
            return
        given = cast("dict[str, Any]", arguments)
        texts = {key: value if isinstance(value, str) else _format_value(value) for key, value in given.items()}
        short = f"→ {name}({', '.join(f'{key}={_format_value(value)}' for key, value in given.items())})"
        if len(short) <= self._get_width(_INDENT) and not any("\n" in text for text in texts.values()):
            self._print_body(short, "cyan")
            return
        self._print_body(f"→ {name}", "cyan")
        for key, text in texts.items():
            if "\n" in text:
                self._print_body(f"{key}:", "cyan", 2)
                self._print_body(text, "", 4)
            else:
                self._print_body(f"{key}: {text}", "", 2)

    def _print_body(self, text: str, style: str, extra_indent: int = 0) -> None:
        indent = _INDENT + extra_indent
        whole = text.strip("\n")
        lines = self._wrap(whole if self._full else whole[:_MAX_CHARS], indent)
        shown = lines if self._full else lines[:_MAX_LINES]
        for line in shown:
            self._out.print(Text((" " * indent + line).rstrip(), style))
        if not self._full and (len(whole) > _MAX_CHARS or len(shown) < len(lines)):
            self._is_truncated = True
            rest = len(whole.split()) - len(" ".join(shown).split())
            self._out.print(Text(f"{' ' * indent}… {format_count(max(1, rest), 'more word')}", "dim"))

    def _wrap(self, text: str, indent: int) -> list[str]:
        return wrap_text(self._out, text, indent, _MAX_WIDTH) or [""]

    def _get_width(self, indent: int) -> int:
        return min(self._out.width, _MAX_WIDTH) - indent


def _format_number(message: ConversationMessage) -> str:
    return "" if message.number is None else f"#{message.number} "


def _format_header(message: ConversationMessage) -> Text:
    """Who speaks."""
    earlier = "  (before this run)" if message.is_history else ""
    if message.role == "model":
        final = message.reply is not None and is_final_reply(message.reply)
        head = Text.assemble(
            (f"{_format_number(message)}{to_one_line(message.name)}", "bold"),
            ("  answers" if final else "", "bold green"),
        )
        return head.append(earlier, "dim")
    if message.reply is not None and message.reply.compaction is not None:
        done = describe_compaction(message.reply.compaction)
        return Text.assemble(
            (f"{_format_number(message)}{to_one_line(message.name)}  compacts", "bold"), (f"  {done}", "dim")
        )
    if message.role == "tool":
        run = f"  run {make_printable(message.child_run_id)!r}" if message.child_run_id else ""
        was_denied = message.decision is not None and not message.decision.approved
        failed = ("" if message.ok or was_denied else "  failed", "red")
        decided = "" if message.decision is None else f"  {to_one_line(message.decision.summary)}"
        return Text.assemble(
            (f"{_format_number(message)}{to_one_line(message.name)}", "bold blue"),
            failed,
            (decided, "red" if was_denied else "green"),
            (run + earlier, "dim"),
        )
    return Text.assemble((f"{_format_number(message)}{message.role}", "bold"), (earlier, "dim"))


def _format_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
