"""How the demo is shown: a table that changes in place on a terminal, or one line for each thing that happens."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.admission.usage import NANO, Usage
from holdfast.cli.demo.effect_log import Trace
from holdfast.cli.demo.progress import Progress, Turn
from holdfast.cli.formatting import duration
from holdfast.reports.run_usage import money, tokens_and_cost

_LETTER_STYLES = {"A": "cyan", "B": "magenta"}
_ROOM_FOR_TOKENS = 78
_ROOM_FOR_MONEY = 54


class Screen(Protocol):
    """What the demo tells while it goes on."""

    def begin(self) -> None:
        """The run is started."""

    def happened(self, trace: Trace) -> None:
        """A call began or ended."""

    def killed(self) -> None:
        """The worker was killed."""

    def end(self) -> None:
        """Nothing more will happen."""


def screen_for(out: Console, progress: Progress) -> Screen:
    """The screen that suits the output."""
    return LiveScreen(out, progress) if out.is_terminal else PlainLines(out, progress)


class LiveScreen:
    """A table that is drawn anew while the run goes on: a row for each turn."""

    def __init__(self, out: Console, progress: Progress) -> None:
        self._progress = progress
        self._wide = out.width >= _ROOM_FOR_TOKENS
        self._narrow = out.width < _ROOM_FOR_MONEY
        self._live = Live(console=out, get_renderable=self._draw, refresh_per_second=15)

    def begin(self) -> None:
        """Draw for the first time."""
        self._live.start()

    def happened(self, trace: Trace) -> None:
        """The next drawing shows it."""

    def killed(self) -> None:
        """Show it at once."""
        self._live.refresh()

    def end(self) -> None:
        """Leave the last drawing on the screen."""
        self._live.stop()

    def _draw(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", width=3)
        table.add_column(no_wrap=True, min_width=13)
        table.add_column(no_wrap=True)
        if self._wide:
            table.add_column(justify="right", no_wrap=True)
        if not self._narrow:
            table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        turns = self._progress.turns()
        for turn in turns:
            self._add_turn(table, turn)
        for number in range(len(turns) + 1, self._progress.plan.turns + 1):
            self._add(table, str(number), Text("·", "dim"), Text(), None, Text())
        if turns:
            self._add(table, "", Text("in all", "dim"), Text(), self._progress.used, Text())
        return table

    def _add_turn(self, table: Table, turn: Turn) -> None:
        progress = self._progress
        for index, start in enumerate(turn.starts):
            last = index == len(turn.starts) - 1
            letter = progress.letter(start.pid)
            answered = last and turn.answer is not None
            self._add(
                table,
                "" if index else str(turn.number),
                Text(turn.wants if answered else "model call", "" if answered else "dim"),
                Text(f"{letter} {start.pid}" if self._wide else letter, _LETTER_STYLES[letter]),
                turn.answer.usage if answered and turn.answer else None,
                self._state(turn, start, last=last),
            )

    def _add(self, table: Table, number: str, what: Text, who: Text, used: Usage | None, state: Text) -> None:
        spent: list[str] = []
        if self._wide:
            spent.append(f"{used.input_tokens:,} in {used.output_tokens:>5,} out" if used else "")
        if not self._narrow:
            spent.append(_short(used) if used else "")
        table.add_row(number, what, who, *spent, state)

    def _state(self, turn: Turn, start: Trace, *, last: bool) -> Text:
        progress = self._progress
        by_the_dead = start.pid == progress.pids[0] and progress.killed_at is not None
        if by_the_dead and (not last or turn.answer is None):
            return Text("✗ SIGKILL mid-call", "bold red")
        if not last:
            return Text("✗ failed", "red")
        if by_the_dead and progress.takeover is not None:
            return Text.assemble(("✓", "green"), (f" replayed by {progress.letter(progress.pids[1])}", "dim"))
        state = Text(f"● {turn.in_flight}", "yellow") if turn.in_flight else Text("✓", "green")
        if turn.number == progress.plan.victim and progress.takeover is not None:
            state = Text("✓" if turn.answer else "●", "green" if turn.answer else "yellow")
            state.append(f" took over in {duration(progress.takeover)}", "default")
        return state


def _short(used: Usage) -> str:
    return "" if used.cost is None else f"${used.nano_usd / NANO:.4f}"


class PlainLines:
    """One line for each thing that happens."""

    def __init__(self, out: Console, progress: Progress) -> None:
        self._out = out
        self._progress = progress

    def begin(self) -> None:
        """Nothing to draw."""

    def happened(self, trace: Trace) -> None:
        """Say it."""
        progress = self._progress
        who = f"by worker {progress.letter(trace.pid)}"
        if not trace.turn:
            if trace.what != "started":
                how = "done" if trace.what == "finished" else "failed"
                self._say(trace.at, f"    {trace.tool:<12}  {how} {who}")
        elif trace.what == "finished":
            self._say(trace.at, f"{trace.turn:>2}  model call    {tokens_and_cost(trace.usage)}, asked {who}")
        elif trace.what == "failed":
            self._say(trace.at, f"{trace.turn:>2}  model call    failed, asked {who}")
        elif progress.takeover is not None and trace.pid != progress.pids[0] and trace.turn == progress.plan.victim:
            self._taken_over(trace, progress.takeover)
        elif trace.turn == progress.plan.victim:
            self._say(trace.at, f"{trace.turn:>2}  model call    begun {who}")

    def _taken_over(self, trace: Trace, takeover: float) -> None:
        progress = self._progress
        letter, before = progress.letter(trace.pid), trace.turn - 1
        self._say(trace.at, f"    worker {letter} takes the run over, {duration(takeover)} after the kill")
        self._say(trace.at, f"    turns 1-{before} replayed from the journal by worker {letter}, not paid for again")
        self._say(trace.at, f"{trace.turn:>2}  model call    begun again by worker {letter}: it had no outcome yet")

    def killed(self) -> None:
        """Say it."""
        progress = self._progress
        assert progress.killed_at is not None
        pid = progress.pids[0]
        what = f"in the middle of the model call of turn {progress.plan.victim}"
        self._say(progress.killed_at, f"    SIGKILL for worker {progress.letter(pid)} (pid {pid}), {what}")

    def end(self) -> None:
        """Say what it came to."""
        used = self._progress.used
        if self._progress.ended and used.cost is not None:
            self._say(self._progress.traces[-1].at, f"    in all        {used.tokens:,} tokens, {money(used.nano_usd)}")

    def _say(self, at: float, line: str) -> None:
        self._out.print(f"{at - self._progress.began_at:6.2f} s  {line}", soft_wrap=True)
