"""The course of the demo.

Two worker processes serve one SQLite file in a temporary folder. The process that executes the run of an agent is
killed in the middle of a model call, and the other one takes over and finishes. Then the effect log, which both wrote
outside the database, is compared with the journal and with what Holdfast promises. A wrong count is shown, and is an
error.

With ``--open``, the dashboard is served as well. The run starts when the page is open, and is slow enough to watch.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

import holdfast
from holdfast.admission.usage import Usage
from holdfast.agents.models.model_resolution import get_model, get_model_name
from holdfast.cli.demo.dashboard import BROWSER_WAIT_S, DashboardServer, has_browser
from holdfast.cli.demo.effects import (
    FILE_NAME,
    FOLDER_VARIABLE,
    CallEvent,
    JournalTotals,
    count_model_calls,
    find_problems,
    read_events,
    read_journal_totals,
)
from holdfast.cli.demo.research_agent import (
    KILL_TURN,
    MODEL_VARIABLE,
    PRICE_MODEL,
    PROMPT,
    SCRIPT,
    THINK_TIME_VARIABLE,
)
from holdfast.cli.shared.event_loop import run_in_loop
from holdfast.cli.shared.formatting import create_console, format_command, format_count, format_duration
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.reports.run_usage import format_money, format_tokens_and_cost
from holdfast.stores.contract import Store
from holdfast.stores.urls import create_store, resolve_store_url

RUN_ID = "demo"
QUICKSTART = "docs/quickstart.md, then examples/README.md and docs/guide.md"
_TIMEOUT_S = 60.0
"""How long a phase of the demo may take; ten times as long with a real model."""
_POLL_INTERVAL_S = 0.01
_FAST_THINK_TIME_S, _NORMAL_THINK_TIME_S, _WATCHABLE_THINK_TIME_S = 0.03, 0.15, 0.7
"""How long the scripted model takes for a turn."""
_WORKER_STYLES = {"A": "cyan", "B": "magenta"}


class DemoFailed(HoldfastError):
    """The demo could not show what it is meant to show."""


def run_demo(*, fast: bool, model: str | None = None, in_browser: bool = False) -> int:
    """Run the demo, verify its counts, and return the exit code."""
    if model is not None:
        model = run_in_loop(_check_model(model))
    think_time_s = _FAST_THINK_TIME_S if fast else _WATCHABLE_THINK_TIME_S if in_browser else _NORMAL_THINK_TIME_S
    out = create_console()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        return run_in_loop(_run_demo(out, folder, model, think_time_s, in_browser=in_browser))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        out.print("\nstopped; the workers are ended and the folder is removed")
        return 130
    except DemoFailed:
        out.print(f"\nwhat is left is in {folder}")
        raise
    except HoldfastError:  # it has not started: a package is missing, or the dashboard cannot be served
        shutil.rmtree(folder, ignore_errors=True)
        raise


async def _check_model(name: str) -> str:
    """Raise what is missing before anything starts: a package, a key, the right name of the model."""
    get_model(name)
    return get_model_name(name)


async def _run_demo(out: Console, folder: Path, model: str | None, think_time_s: float, *, in_browser: bool) -> int:
    url = resolve_store_url(f"sqlite:///{folder / 'runs.db'}")
    dashboard = DashboardServer(url) if in_browser else None
    kill_turn = KILL_TURN if model is None else 3
    turns = model or f"{len(SCRIPT)} turns"
    out.print(
        f"One agent ({turns}), two worker processes, one SIGKILL in the middle of turn {kill_turn}.", style="bold"
    )
    if model is None:
        out.print(f"The model answers by a script and is priced like {PRICE_MODEL}.", style="dim")
    else:
        out.print("The model is a real one, and costs real money.", style="dim")
    out.print("Starting the worker processes …\n", style="dim")
    environment = {
        FOLDER_VARIABLE: str(folder),
        THINK_TIME_VARIABLE: str(think_time_s),
        MODEL_VARIABLE: model or "",
        "TMPDIR": str(folder),  # a worker that is killed leaves its temporary files
    }
    workers: list[_Worker] = []
    store = create_store(url)
    await store.open()
    try:
        workers += [_Worker(folder / f"worker-{number}.log", url, environment) for number in (1, 2)]
        await _await_workers(store, workers)
        if dashboard is not None:
            await _open_dashboard(out, dashboard)
        async with Client(url) as client:
            await _DemoRun(out, folder, workers, kill_turn, is_scripted=model is None).run(client)
        journal = await read_journal_totals(store, RUN_ID)
        for worker in workers:
            worker.stop()
    finally:
        for worker in workers:
            worker.kill()
        await store.close()
    code = print_verdict(out, folder, url, read_events(folder), journal, kill_turn)
    if dashboard is not None:
        await _keep_dashboard_open(out, dashboard)
    return code


# Worker processes


class _Worker:
    """A worker in a process of its own, started as a user would start it."""

    def __init__(self, log: Path, url: str, environment: dict[str, str]) -> None:
        self._log = log
        paths = [str(Path(holdfast.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **environment}
        command = ["worker", "holdfast.cli.demo.research_agent:research", "--url", url]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *command],
                cwd=log.parent,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its workers
            )

    def kill(self) -> None:
        """SIGKILL: the process cannot do anything more."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Stop the process cleanly, if it still runs, and delete its log."""
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
        self._log.unlink(missing_ok=True)

    def read_log_tail(self) -> str:
        """The end of its log, for an error message."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-8:])


async def _await_workers(store: Store, workers: Sequence[_Worker]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    pids = {worker.process.pid for worker in workers}
    while True:
        # A worker announces its workflows a moment after it has registered. A start by name needs that.
        is_announced = bool(await store.get_workflow_specs())
        serving = {worker.pid for worker in await store.list_workers() if worker.state == "live" and worker.workflows}
        if is_announced and pids <= serving:
            return
        for worker in workers:
            if worker.process.poll() is not None:
                raise DemoFailed(f"a worker process ended before its time:\n{worker.read_log_tail()}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"the workers did not start within {_TIMEOUT_S:g} s:\n{workers[0].read_log_tail()}")
        await asyncio.sleep(0.02)


# The run


class _DemoRun:
    """Starts the run, prints each call as it happens, and kills the worker in the middle of a model call."""

    def __init__(
        self, out: Console, folder: Path, workers: Sequence[_Worker], kill_turn: int, *, is_scripted: bool
    ) -> None:
        self._out = out
        self._folder = folder
        self._workers = workers
        self._kill_turn = kill_turn
        self._is_scripted = is_scripted
        self._letters: dict[int, str] = {}
        """A and B by process id. A is the first to execute the run, and is killed."""
        self._started_at = 0.0
        self._killed_at: float | None = None

    async def run(self, client: Client) -> None:
        """Return when the run has ended."""
        self._started_at = time.time()
        handle = await client.options(id=RUN_ID).start("research", PROMPT)
        deadline = time.monotonic() + (_TIMEOUT_S if self._is_scripted else 10 * _TIMEOUT_S)
        events: list[CallEvent] = []
        has_ended = False
        while not has_ended:
            has_ended = (await handle.info()).state.is_terminal
            seen_count, events = len(events), read_events(self._folder)
            for event in events[seen_count:]:
                await self._process(event)
            if time.monotonic() > deadline:
                raise DemoFailed(f"the run did not end in time:\n{self._workers[1].read_log_tail()}")
            await asyncio.sleep(_POLL_INTERVAL_S)
        if self._killed_at is None:
            turn_count = len({event.turn for event in events} - {0})
            raise DemoFailed(
                f"the run ended in {turn_count} turns, before there was anything to kill: the model was too quick, or "
                f"could not be asked. `{format_command('show', RUN_ID, '--url', client.url)}` tells."
            )
        used = sum((event.usage for event in events if event.turn and event.status == "finished"), Usage())
        if used.cost is not None:
            self._print(events[-1].at, f"    in all        {used.tokens:,} tokens, {format_money(used.nano_usd)}")

    async def _process(self, event: CallEvent) -> None:
        if event.pid not in self._letters:
            self._letters[event.pid] = "AB"[len(self._letters)]
            if self._killed_at is not None:
                self._print_takeover(event, self._killed_at)
        letter = self._letters[event.pid]
        worker_text, style = f"by worker {letter}", _WORKER_STYLES[letter]
        if not event.turn:
            if event.status != "started":
                outcome = "done" if event.status == "finished" else "failed"
                self._print(event.at, f"    {event.tool:<12}  {outcome} {worker_text}", style)
        elif event.status == "finished":
            used = format_tokens_and_cost(event.usage)
            self._print(event.at, f"{event.turn:>2}  model call    {used}, asked {worker_text}", style)
        elif event.status == "failed":
            self._print(event.at, f"{event.turn:>2}  model call    failed, asked {worker_text}", style)
        elif event.turn == self._kill_turn and self._killed_at is None:
            self._print(event.at, f"{event.turn:>2}  model call    begun {worker_text}", style)
            await self._kill_worker(event)

    async def _kill_worker(self, call_start: CallEvent) -> None:
        """SIGKILL, soon after the model was called. How long a real model takes is not known."""
        kill_at = call_start.at + (0.2 if self._is_scripted else 0.1)
        await asyncio.sleep(max(0.0, kill_at - time.time()))
        [worker] = [worker for worker in self._workers if worker.process.pid == call_start.pid]
        self._killed_at = time.time()
        worker.kill()
        turn = self._kill_turn
        if any(event.turn == turn and event.status != "started" for event in read_events(self._folder)):
            raise DemoFailed(f"turn {turn} had its answer before the kill came: this machine is too busy, or the model")
        text = f"SIGKILL for worker A (pid {call_start.pid}), in the middle of the model call of turn {turn}"
        self._print(self._killed_at, f"    {text}", "bold red")

    def _print_takeover(self, event: CallEvent, killed_at: float) -> None:
        took = format_duration(event.at - killed_at)
        self._print(event.at, f"    worker B takes the run over, {took} after the kill", "bold magenta")
        replayed = f"turns 1-{self._kill_turn - 1} replayed from the journal by worker B, not paid for again"
        self._print(event.at, f"    {replayed}", "bold magenta")
        again = "begun again by worker B: it had no outcome yet"
        self._print(event.at, f"{event.turn:>2}  model call    {again}", "magenta")

    def _print(self, at: float, line: str, style: str = "") -> None:
        self._out.print(f"{at - self._started_at:6.2f} s  {line}", style=style)


# The dashboard


async def _open_dashboard(out: Console, dashboard: DashboardServer) -> None:
    dashboard.start()
    out.print(f"Watch it on {dashboard.get_run_url(RUN_ID)}", style="bold")
    if not has_browser():
        out.print("No browser was found here, so the run starts now: open the address yourself.", style="dim")
        return
    out.print(f"Waiting up to {BROWSER_WAIT_S:g} s for the browser …", style="dim")
    if not await dashboard.show_run(RUN_ID):
        out.print("No browser came, so it begins without one: the page can be opened at any time.", style="dim")


async def _keep_dashboard_open(out: Console, dashboard: DashboardServer) -> None:
    out.print(f"\nThe page stays until Ctrl-C: {dashboard.get_run_url(RUN_ID)}")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        out.print("\nthe page is closed; the run is kept")
    finally:
        dashboard.stop()


# The verdict


def print_verdict(
    out: Console, folder: Path, url: str, events: Sequence[CallEvent], journal: JournalTotals, kill_turn: int
) -> int:
    """Print the counts; returns 1 if they are not as promised."""
    out.print(f"\nCounted in {folder / FILE_NAME}, outside the database:")
    if problems := find_problems(events, journal, kill_turn):
        out.print("this is not what Holdfast promises:", style="bold red")
        for problem in problems:
            out.print(f"  {problem}", style="red")
        return 1
    saved, total = journal.before_kill, journal.before_kill + journal.after_kill
    tool_call_count = len({(event.tool, event.call_id) for event in events if not event.turn})
    out.print(
        f"The model was asked {count_model_calls(events).total()} times for {total.usage.calls} answers: only the call "
        f"of turn {kill_turn}, which was in flight when its worker was killed, was made twice. "
        f"{format_count(tool_call_count, 'tool call')} ran, each once.",
        style="green",
    )
    used = total.usage
    price = "" if used.cost is None else f" and {format_money(saved.usage.nano_usd)} of {format_money(used.nano_usd)}"
    card = ", the charge of a card among them" if "charge_card" in saved.tools else ""
    out.print(
        f"Not paid twice: {format_count(saved.usage.calls, 'model call')}, {saved.usage.tokens:,} of {used.tokens:,} "
        f"tokens{price}. A restart from scratch would have paid for them again, and made "
        f"{format_count(len(saved.tools), 'tool call')} again{card}.",
        style="bold green",
    )
    out.print(f"\nLook at the run:\n  {format_command('show', RUN_ID, '--url', url)}")
    out.print(f"Write your own:\n  {QUICKSTART}")
    return 0
