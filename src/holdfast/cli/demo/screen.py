"""How the demo is shown: a table that changes in place on a terminal, or one line for each thing that happens."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from holdfast.cli.demo.effects import Trace
from holdfast.cli.demo.job import STEPS
from holdfast.cli.demo.progress import Progress
from holdfast.cli.wording import duration

_LETTER_STYLES = {"A": "cyan", "B": "magenta"}


class Screen(Protocol):
    """What the demo tells while it goes on."""

    def begin(self) -> None:
        """The run is started."""

    def happened(self, trace: Trace) -> None:
        """A step's effect began or ended."""

    def killed(self) -> None:
        """The worker was killed."""

    def end(self) -> None:
        """Nothing more will happen."""


def screen_for(out: Console, progress: Progress) -> Screen:
    """The screen that suits the output."""
    return LiveScreen(out, progress) if out.is_terminal else PlainLines(out, progress)


class LiveScreen:
    """A table that is drawn anew while the run goes on."""

    def __init__(self, out: Console, progress: Progress) -> None:
        self._progress = progress
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
        for number, name in enumerate(STEPS, 1):
            self._add_step(table, number, name)
        return table

    def _add_step(self, table: Table, number: int, name: str) -> None:
        progress = self._progress
        starts = progress.starts(number)
        if not starts:
            table.add_row(str(number), Text(name, "dim"), "", Text("·", "dim"))
        for index, start in enumerate(starts):
            done = any(end.pid == start.pid for end in progress.ends(number))
            again = index > 0
            table.add_row(
                "" if again else str(number),
                "" if again else name,
                _letter(progress, start.pid),
                self._state(start, done=done, again=again),
            )

    def _state(self, start: Trace, *, done: bool, again: bool) -> Text:
        progress = self._progress
        by_the_dead = start.pid == progress.pids[0] and progress.killed_at is not None
        if by_the_dead and not done:
            return Text("✗ SIGKILL in the middle of it", "bold red")
        state = Text("✓ done", "green") if done else Text("● running", "yellow")
        if again and progress.takeover is not None:
            state.append(f"  took over after {duration(progress.takeover)} and ran it again", "default")
        elif by_the_dead and progress.taken_over_at is not None:
            state.append(f"  replayed from the journal by {progress.letter(progress.pids[1])}", "dim default")
        return state


def _letter(progress: Progress, pid: int) -> Text:
    letter = progress.letter(pid)
    return Text(f"{letter} {pid}", _LETTER_STYLES[letter])


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
        again = len(progress.starts(trace.number)) > 1
        if trace.what == "finished":
            self._say(trace.at, f"{trace.number:>2}  {trace.step:<12}  done {who}")
            return
        if again and progress.takeover is not None:
            letter, before = progress.letter(trace.pid), trace.number - 1
            self._say(trace.at, f"    worker {letter} takes the run over, {duration(progress.takeover)} after the kill")
            self._say(trace.at, f"    steps 1-{before} replayed from the journal by worker {letter}, not run again")
            self._say(trace.at, f"{trace.number:>2}  {trace.step:<12}  run again {who}: it had no outcome yet")
        elif trace.number == progress.victim:
            self._say(trace.at, f"{trace.number:>2}  {trace.step:<12}  begun {who}")

    def killed(self) -> None:
        """Say it."""
        progress = self._progress
        assert progress.killed_at is not None
        pid = progress.pids[0]
        what = f"in the middle of step {progress.victim}"
        self._say(progress.killed_at, f"    SIGKILL for worker {progress.letter(pid)} (pid {pid}), {what}")

    def end(self) -> None:
        """Nothing to put away."""

    def _say(self, at: float, line: str) -> None:
        self._out.print(f"{at - self._progress.began_at:6.2f} s  {line}", soft_wrap=True)
