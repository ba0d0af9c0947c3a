"""``holdfast demo``: an agent's run survives ``kill -9``, for real.

Two worker processes serve one SQLite file in a temporary folder. A run of an agent is started; the process that
executes it is killed in the middle of the model call of turn 9; the other one takes over and finishes. How often the
model was asked, and how often each tool was called, is then counted in a file that they wrote outside the database, and
compared with the journal and with what Holdfast promises: a count that is not as promised is shown, and is an error.

The model answers by a script and needs neither key nor network, unless a real one is asked for.

With ``--open``, all of it can be watched in a browser: the dashboard is served as well, the run begins when the page is
there, and goes slowly enough for people to see it.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console

from holdfast.agents.models.model_resolution import get_model, get_model_name
from holdfast.cli.demo.dashboard import BROWSER_WAIT_S, DashboardServer, has_browser
from holdfast.cli.demo.effect_log import FILE_NAME, CallEvent, read_events
from holdfast.cli.demo.plan import AGENT_NAME, PRICE_MODEL, PROMPT, Plan
from holdfast.cli.demo.progress import Progress
from holdfast.cli.demo.screen import create_screen
from holdfast.cli.demo.verification import EffectCounts, JournalTotals, count_events, find_problems, read_journal_totals
from holdfast.cli.demo.worker_process import TIMEOUT_S, DemoFailed, WorkerProcess, wait_until_serving
from holdfast.cli.event_loop import run_in_loop
from holdfast.cli.formatting import create_console, format_command, format_count
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.reports.run_usage import format_money
from holdfast.stores.urls import create_store, resolve_store_url

RUN_ID = "demo"
QUICKSTART = "docs/quickstart.md, then examples/README.md and docs/guide.md"
_POLL_INTERVAL_S = 0.01
_FAST_THINK_TIME_S, _NORMAL_THINK_TIME_S, _WATCHABLE_THINK_TIME_S = 0.03, 0.15, 0.7
"""Seconds that the scripted model thinks about a turn."""


def run_demo(*, fast: bool, model: str | None = None, in_browser: bool = False) -> int:
    """Show it, check it, and return the exit code."""
    if model is not None:
        run_in_loop(_check_model(model))
        model = get_model_name(model)
    out = create_console()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        pace = _FAST_THINK_TIME_S if fast else _WATCHABLE_THINK_TIME_S if in_browser else _NORMAL_THINK_TIME_S
        return run_in_loop(_run_plan(out, folder, Plan(pace, model), in_browser=in_browser))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        out.print("\nstopped; the workers are ended and the folder is removed")
        return 130
    except DemoFailed:
        out.print(f"\nwhat is left is in {folder}", soft_wrap=True)
        raise
    except HoldfastError:  # it has not begun: something is not installed, or cannot be asked
        shutil.rmtree(folder, ignore_errors=True)
        raise


async def _check_model(name: str) -> None:
    """Tell what is missing before anything starts: a package, a key, the model's right name."""
    get_model(name)


async def _run_plan(out: Console, folder: Path, plan: Plan, *, in_browser: bool) -> int:
    url = resolve_store_url(f"sqlite:///{folder / 'runs.db'}")
    page = DashboardServer(url) if in_browser else None
    who = f"{plan.turn_count} turns" if plan.model is None else plan.model
    out.print(
        f"One agent ({who}), two worker processes, one SIGKILL in the middle of turn {plan.kill_turn}.", style="bold"
    )
    if plan.model is None:
        out.print(f"The model answers by a script and is priced like {PRICE_MODEL}.", style="dim")
    else:
        out.print("The model is a real one, and costs real money.", style="dim")
    out.print("Starting the worker processes …\n", style="dim")
    workers: list[WorkerProcess] = []
    store = create_store(url)
    await store.open()
    try:
        workers += [WorkerProcess(folder, url, plan, f"worker-{n}") for n in (1, 2)]
        await wait_until_serving(store, workers)
        if page is not None:
            await _open_dashboard(out, page)
        async with Client(url) as client:
            progress = await _run_and_kill(out, folder, client, workers, plan)
        journal = await read_journal_totals(store, RUN_ID)
        for worker in workers:
            if not worker.has_exited():
                worker.stop()
            worker.delete_log()
    finally:
        for worker in workers:
            if not worker.has_exited():
                worker.kill()
        await store.close()
    code = print_verdict(out, folder, url, count_events(progress.events), journal, plan.kill_turn)
    if page is not None:
        await _keep_dashboard_open(out, page)
    return code


async def _open_dashboard(out: Console, dashboard: DashboardServer) -> None:
    dashboard.start()
    out.print(f"Watch it on {dashboard.get_run_url(RUN_ID)}", style="bold", soft_wrap=True)
    if not has_browser():
        out.print("No browser was found here, so the run starts now: open the address yourself.", style="dim")
        return
    out.print(f"Waiting up to {BROWSER_WAIT_S:g} s for the browser …", style="dim")
    if not await dashboard.show_run(RUN_ID):
        out.print("No browser came, so it begins without one: the page can be opened at any time.", style="dim")


async def _keep_dashboard_open(out: Console, dashboard: DashboardServer) -> None:
    """Leave the page there to be looked at."""
    out.print(f"\nThe page stays until Ctrl-C: {dashboard.get_run_url(RUN_ID)}", soft_wrap=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        out.print("\nthe page is closed; the run is kept")
    finally:
        dashboard.stop()


async def _run_and_kill(
    out: Console, folder: Path, client: Client, workers: list[WorkerProcess], plan: Plan
) -> Progress:
    """Start the run, kill its worker in the middle of a model call, and follow it to its end."""
    progress = Progress(plan, started_at=time.time())
    handle = await client.options(id=RUN_ID).start(AGENT_NAME, PROMPT)
    screen = create_screen(out, progress)
    deadline = time.monotonic() + (TIMEOUT_S if plan.model is None else 10 * TIMEOUT_S)
    screen.start()
    try:
        while not progress.has_ended:
            progress.has_ended = (await handle.info()).state.is_terminal
            for trace in progress.update(read_events(folder)):
                if not progress.pids:
                    progress.pids = [trace.pid, *(worker.pid for worker in workers if worker.pid != trace.pid)]
                screen.on_event(trace)
                if trace.turn == plan.kill_turn and progress.killed_at is None:
                    await _kill_worker(progress, workers, trace, folder)
                    screen.on_kill()
            if time.monotonic() > deadline:
                raise DemoFailed(f"the run did not end in time:\n{workers[1].read_log_tail()}")
            await asyncio.sleep(_POLL_INTERVAL_S)
    finally:
        screen.finish()
    if progress.killed_at is None:
        raise DemoFailed(
            f"the run ended in {len(progress.list_turns())} turns, before there was anything to kill: {plan.model} was "
            "too "
            f"quick, or could not be asked. `{format_command('show', RUN_ID, '--url', client.url)}` tells."
        )
    return progress


async def _kill_worker(progress: Progress, workers: list[WorkerProcess], call_start: CallEvent, folder: Path) -> None:
    """SIGKILL, a little after the model was asked."""
    await asyncio.sleep(max(0.0, call_start.at + progress.plan.kill_after_s - time.time()))
    [worker] = [worker for worker in workers if worker.pid == call_start.pid]
    progress.killed_at = time.time()
    worker.kill()
    victim = progress.plan.kill_turn
    if any(trace.turn == victim and trace.status != "started" for trace in read_events(folder)):
        raise DemoFailed(f"turn {victim} had its answer before the kill came: this machine is too busy, or the model")


def print_verdict(
    out: Console, folder: Path, url: str, counts: EffectCounts, journal: JournalTotals, kill_turn: int
) -> int:
    """Say what the counts are; 1 if they are not what was promised."""
    out.print(f"\nCounted in {folder / FILE_NAME}, outside the database:", soft_wrap=True)
    wrong = find_problems(counts, journal, kill_turn)
    if wrong:
        out.print("this is not what Holdfast promises:", style="bold red")
        for problem in wrong:
            out.print(f"  {problem}", style="red")
        return 1
    total = journal.before_kill.usage + journal.after_kill.usage
    saved = journal.before_kill.usage
    out.print(
        f"The model was asked {counts.model_requests.total()} times for {total.calls} answers: only the call of turn "
        f"{kill_turn}, "
        f"which was in flight when its worker was killed, was made twice. "
        f"{format_count(counts.tool_starts.total(), 'tool call')} ran, each once.",
        style="green",
    )
    price = "" if total.cost is None else f" and {format_money(saved.nano_usd)} of {format_money(total.nano_usd)}"
    out.print(
        f"Not paid twice: {format_count(saved.calls, 'model call')}, {saved.tokens:,} of {total.tokens:,} "
        f"tokens{price}. "
        f"A restart from scratch would have paid for them again, and made "
        f"{format_count(len(journal.before_kill.tools), 'tool call')} again{_format_card_note(journal)}.",
        style="bold green",
    )
    out.print(f"\nLook at the run:\n  {format_command('show', RUN_ID, '--url', url)}", soft_wrap=True)
    out.print(f"Write your own:\n  {QUICKSTART}")
    return 0


def _format_card_note(journal: JournalTotals) -> str:
    return ", the charge of a card among them" if "charge_card" in journal.before_kill.tools else ""
