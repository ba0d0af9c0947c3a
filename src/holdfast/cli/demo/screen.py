"""How the demo is shown: a table that changes in place on a terminal, or one line for each thing that happens."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.admission.usage import NANO_PER_USD, Usage
from holdfast.cli.demo.effect_log import CallEvent
from holdfast.cli.demo.progress import Progress, Turn
from holdfast.cli.formatting import format_duration
from holdfast.reports.run_usage import format_money, format_tokens_and_cost

_LETTER_STYLES = {"A": "cyan", "B": "magenta"}
_MIN_WIDTH_FOR_TOKENS = 78
_MIN_WIDTH_FOR_COST = 54


class Screen(Protocol):
    """What the demo tells while it goes on."""

    def start(self) -> None:
        """The run is started."""

    def on_event(self, event: CallEvent) -> None:
        """A call began or ended."""

    def on_kill(self) -> None:
        """The worker was killed."""

    def finish(self) -> None:
        """Nothing more will happen."""


def create_screen(out: Console, progress: Progress) -> Screen:
    """The screen that suits the output."""
    return LiveScreen(out, progress) if out.is_terminal else LineScreen(out, progress)


class LiveScreen:
    """A table that is drawn anew while the run goes on: a row for each turn."""

    def __init__(self, out: Console, progress: Progress) -> None:
        self._progress = progress
        self._is_wide = out.width >= _MIN_WIDTH_FOR_TOKENS
        self._is_narrow = out.width < _MIN_WIDTH_FOR_COST
        self._live = Live(console=out, get_renderable=self._draw, refresh_per_second=15)

    def start(self) -> None:
        """Draw for the first time."""
        self._live.start()

    def on_event(self, event: CallEvent) -> None:
        """The next drawing shows it."""

    def on_kill(self) -> None:
        """Show it at once."""
        self._live.refresh()

    def finish(self) -> None:
        """Leave the last drawing on the screen."""
        self._live.stop()

    def _draw(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", width=3)
        table.add_column(no_wrap=True, min_width=13)
        table.add_column(no_wrap=True)
        if self._is_wide:
            table.add_column(justify="right", no_wrap=True)
        if not self._is_narrow:
            table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        turns = self._progress.list_turns()
        for turn in turns:
            self._add_turn(table, turn)
        for number in range(len(turns) + 1, self._progress.plan.turn_count + 1):
            self._add_row(table, str(number), Text("·", "dim"), Text(), None, Text())
        if turns:
            self._add_row(table, "", Text("in all", "dim"), Text(), self._progress.usage, Text())
        return table

    def _add_turn(self, table: Table, turn: Turn) -> None:
        progress = self._progress
        for index, start in enumerate(turn.model_starts):
            last = index == len(turn.model_starts) - 1
            letter = progress.get_letter(start.pid)
            answered = last and turn.answer is not None
            self._add_row(
                table,
                "" if index else str(turn.number),
                Text(turn.tool_summary if answered else "model call", "" if answered else "dim"),
                Text(f"{letter} {start.pid}" if self._is_wide else letter, _LETTER_STYLES[letter]),
                turn.answer.usage if answered and turn.answer else None,
                self._format_state(turn, start, is_last=last),
            )

    def _add_row(self, table: Table, number: str, label: Text, worker: Text, usage: Usage | None, state: Text) -> None:
        spent: list[str] = []
        if self._is_wide:
            spent.append(f"{usage.input_tokens:,} in {usage.output_tokens:>5,} out" if usage else "")
        if not self._is_narrow:
            spent.append(_format_cost(usage) if usage else "")
        table.add_row(number, label, worker, *spent, state)

    def _format_state(self, turn: Turn, start: CallEvent, *, is_last: bool) -> Text:
        progress = self._progress
        by_the_dead = start.pid == progress.pids[0] and progress.killed_at is not None
        if by_the_dead and (not is_last or turn.answer is None):
            return Text("✗ SIGKILL mid-call", "bold red")
        if not is_last:
            return Text("✗ failed", "red")
        if by_the_dead and progress.takeover_s is not None:
            return Text.assemble(("✓", "green"), (f" replayed by {progress.get_letter(progress.pids[1])}", "dim"))
        state = Text(f"● {turn.current_activity}", "yellow") if turn.current_activity else Text("✓", "green")
        if turn.number == progress.plan.kill_turn and progress.takeover_s is not None:
            state = Text("✓" if turn.answer else "●", "green" if turn.answer else "yellow")
            state.append(f" took over in {format_duration(progress.takeover_s)}", "default")
        return state


def _format_cost(usage: Usage) -> str:
    return "" if usage.cost is None else f"${usage.nano_usd / NANO_PER_USD:.4f}"


class LineScreen:
    """One line for each thing that happens."""

    def __init__(self, out: Console, progress: Progress) -> None:
        self._out = out
        self._progress = progress

    def start(self) -> None:
        """Nothing to draw."""

    def on_event(self, event: CallEvent) -> None:
        """Say it."""
        progress = self._progress
        who = f"by worker {progress.get_letter(event.pid)}"
        if not event.turn:
            if event.status != "started":
                how = "done" if event.status == "finished" else "failed"
                self._print(event.at, f"    {event.tool:<12}  {how} {who}")
        elif event.status == "finished":
            self._print(event.at, f"{event.turn:>2}  model call    {format_tokens_and_cost(event.usage)}, asked {who}")
        elif event.status == "failed":
            self._print(event.at, f"{event.turn:>2}  model call    failed, asked {who}")
        elif (
            progress.takeover_s is not None and event.pid != progress.pids[0] and event.turn == progress.plan.kill_turn
        ):
            self._print_takeover(event, progress.takeover_s)
        elif event.turn == progress.plan.kill_turn:
            self._print(event.at, f"{event.turn:>2}  model call    begun {who}")

    def _print_takeover(self, event: CallEvent, takeover_s: float) -> None:
        progress = self._progress
        letter, before = progress.get_letter(event.pid), event.turn - 1
        self._print(event.at, f"    worker {letter} takes the run over, {format_duration(takeover_s)} after the kill")
        self._print(event.at, f"    turns 1-{before} replayed from the journal by worker {letter}, not paid for again")
        self._print(event.at, f"{event.turn:>2}  model call    begun again by worker {letter}: it had no outcome yet")

    def on_kill(self) -> None:
        """Say it."""
        progress = self._progress
        assert progress.killed_at is not None
        pid = progress.pids[0]
        what = f"in the middle of the model call of turn {progress.plan.kill_turn}"
        self._print(progress.killed_at, f"    SIGKILL for worker {progress.get_letter(pid)} (pid {pid}), {what}")

    def finish(self) -> None:
        """Say what it came to."""
        used = self._progress.usage
        if self._progress.has_ended and used.cost is not None:
            self._print(
                self._progress.events[-1].at, f"    in all        {used.tokens:,} tokens, {format_money(used.nano_usd)}"
            )

    def _print(self, at: float, line: str) -> None:
        self._out.print(f"{at - self._progress.started_at:6.2f} s  {line}", soft_wrap=True)
