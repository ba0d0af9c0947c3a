"""An agent's conversation on a terminal: who says what, indented below a line that says who."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from rich.console import Console
from rich.text import Text

from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import STATE_STYLES, console, counted, echo_json, one_line, printable, wrapped
from holdfast.cli.report_reader import whole_conversation
from holdfast.cli.store_access import command_at, placed
from holdfast.errors import UsageError
from holdfast.reports.conversations import Said, said_as_json
from holdfast.reports.model_replies import compacted_in_words, failed_in_words, is_final
from holdfast.reports.recorded_reply import PlainReply
from holdfast.reports.run_usage import tokens_and_cost
from holdfast.reports.types import Story

_INDENT = 4
_WIDEST = 100
"""A longer line is hard to read, however wide the terminal is."""
_MOST_LINES = 14
_MOST_CHARACTERS = 1200
"""What is told of a longer text, unless all of it is asked for."""


def show_conversation(url: str | None, run_id: str, *, full: bool, as_json: bool) -> None:
    """Print what was said in an agent's run."""
    run, said = in_loop(_read(url, run_id))
    if as_json:
        echo_json(
            {
                "id": run.id,
                "workflow": run.workflow,
                "state": run.state.value,
                "session": run.session,
                "previous": run.previous,
                "messages": [said_as_json(one) for one in said],
            }
        )
        return
    _Telling(console(), full, url).tell(run, said)


async def _read(url: str | None, run_id: str) -> tuple[Story, list[Said]]:
    story, said = await whole_conversation(url, run_id)
    if not said:
        raise UsageError(
            f"run {run_id!r} of workflow {story.workflow!r} is no agent's: there is no conversation in it. "
            f"`{command_at(url, 'show', run_id)}` tells its steps."
        )
    return story, said


class _Telling:
    """Prints a conversation, and remembers whether something was cut."""

    def __init__(self, out: Console, full: bool, url: str | None) -> None:
        self._out = out
        self._full = full
        self._url = url
        self._is_cut = False

    def tell(self, run: Story, said: Sequence[Said]) -> None:
        """Print all of it."""
        head = Text.assemble((one_line(run.id), "bold"), f" ({one_line(run.workflow)}), ")
        self._line(head.append(run.state, STATE_STYLES[run.state]))
        if run.previous:
            before = command_at(self._url, "show", run.previous, "--conversation")
            self._line(
                Text(f"goes on from run {printable(run.previous)!r} of session {run.session!r}: `{before}`", "dim")
            )
        for one in said:
            self._out.print()
            self._tell(one)
        if self._is_cut:
            whole = f"`{command_at(self._url, 'show', run.id, '--conversation', '--full')}` tells all of it"
            self._out.print()
            for line in self._wrapped(f"long texts are cut: {whole}", 0):
                self._line(Text(line, "dim"))

    def _tell(self, one: Said) -> None:
        if one.role == "note":
            for line in self._wrapped(placed(self._url, f"{_number(one)}{one.text}"), 0):
                self._line(Text(line, "dim" if one.ok else "yellow"))
            return
        if one.reply is None:
            self._line(_head(one))
        else:
            self._tell_reply(_head(one), one.reply)
        if one.decision is not None and one.decision.changed_arguments is not None:
            self._call(one.name, one.decision.changed_arguments)
        if one.text:
            self._body(one.text, "" if one.ok else "red")
        for name, arguments in one.calls:
            self._call(name, arguments)

    def _tell_reply(self, head: Text, reply: PlainReply) -> None:
        """Who answers, what that took, who did not answer before, and what was thought."""
        paid = tokens_and_cost(reply.usage)
        if len(head) + 2 + len(paid) <= self._width(0):
            self._line(head.append(f"  {paid}", "dim"))
        else:
            self._line(head)
            self._body(paid, "dim")
        for model in reply.failed:
            self._body(failed_in_words(model), "yellow")
        if reply.thinking:
            self._body(reply.thinking, "dim italic")

    def _call(self, name: str, arguments: Any) -> None:
        """``→ search(query="x")``, or a line for each argument where that is too long."""
        if not isinstance(arguments, dict):
            self._body(f"→ {name}({_value(arguments)})", "cyan")
            return
        given = cast("dict[str, Any]", arguments)
        texts = {key: value if isinstance(value, str) else _value(value) for key, value in given.items()}
        short = f"→ {name}({', '.join(f'{key}={_value(value)}' for key, value in given.items())})"
        if len(short) <= self._width(_INDENT) and not any("\n" in text for text in texts.values()):
            self._body(short, "cyan")
            return
        self._body(f"→ {name}", "cyan")
        for key, text in texts.items():
            if "\n" in text:
                self._body(f"{key}:", "cyan", 2)
                self._body(text, "", 4)
            else:
                self._body(f"{key}: {text}", "", 2)

    def _body(self, text: str, style: str, more: int = 0) -> None:
        indent = _INDENT + more
        whole = text.strip("\n")
        lines = self._wrapped(whole if self._full else whole[:_MOST_CHARACTERS], indent)
        told = lines if self._full else lines[:_MOST_LINES]
        for line in told:
            self._line(Text((" " * indent + line).rstrip(), style))
        if not self._full and (len(whole) > _MOST_CHARACTERS or len(told) < len(lines)):
            self._is_cut = True
            rest = len(whole.split()) - len(" ".join(told).split())
            self._line(Text(f"{' ' * indent}… {counted(max(1, rest), 'more word')}", "dim"))

    def _wrapped(self, text: str, indent: int) -> list[str]:
        return wrapped(self._out, text, indent, _WIDEST) or [""]

    def _width(self, indent: int) -> int:
        return min(self._out.width, _WIDEST) - indent

    def _line(self, text: Text) -> None:
        self._out.print(text, soft_wrap=True)


def _number(one: Said) -> str:
    return "" if one.number is None else f"#{one.number} "


def _head(one: Said) -> Text:
    """Who speaks."""
    earlier = "  (before this run)" if one.before else ""
    if one.role == "model":
        final = one.reply is not None and is_final(one.reply)
        head = Text.assemble(
            (f"{_number(one)}{one_line(one.name)}", "bold"), ("  answers" if final else "", "bold green")
        )
        return head.append(earlier, "dim")
    if one.reply is not None and one.reply.compaction is not None:
        done = compacted_in_words(one.reply.compaction)
        return Text.assemble((f"{_number(one)}{one_line(one.name)}  compacts", "bold"), (f"  {done}", "dim"))
    if one.role == "tool":
        run = f"  run {printable(one.run)!r}" if one.run else ""
        was_denied = one.decision is not None and not one.decision.approved
        failed = ("" if one.ok or was_denied else "  failed", "red")
        decided = "" if one.decision is None else f"  {one_line(one.decision.in_words)}"
        return Text.assemble(
            (f"{_number(one)}{one_line(one.name)}", "bold blue"),
            failed,
            (decided, "red" if was_denied else "green"),
            (run + earlier, "dim"),
        )
    return Text.assemble((f"{_number(one)}{one.role}", "bold"), (earlier, "dim"))


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
