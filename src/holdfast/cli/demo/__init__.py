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

from holdfast.agents.models.model_resolution import model_for, name_of
from holdfast.cli.demo.dashboard import BROWSER_WAIT_S, Page, has_browser
from holdfast.cli.demo.effect_log import FILE, Trace, read_traces
from holdfast.cli.demo.plan import AGENT, PRICED_LIKE, PROMPT, Plan
from holdfast.cli.demo.progress import Progress
from holdfast.cli.demo.screen import screen_for
from holdfast.cli.demo.verification import Counted, Journal, count, problems, read_journal
from holdfast.cli.demo.worker_process import PATIENCE, DemoFailed, WorkerProcess, until_serving
from holdfast.cli.event_loop import in_loop
from holdfast.cli.formatting import command, console, counted
from holdfast.client.client import Client
from holdfast.errors import HoldfastError
from holdfast.reports.run_usage import money
from holdfast.stores.urls import open_store, store_url

RUN_ID = "demo"
QUICKSTART = "docs/quickstart.md, then examples/README.md and docs/guide.md"
_LOOK_EVERY = 0.01
_FAST, _USUAL, _TO_BE_WATCHED = 0.03, 0.15, 0.7
"""Seconds that the scripted model thinks about a turn."""


def run_demo(*, fast: bool, model: str | None = None, on_page: bool = False) -> int:
    """Show it, check it, and return the exit code."""
    if model is not None:
        in_loop(_check_model(model))
        model = name_of(model)
    out = console()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        pace = _FAST if fast else _TO_BE_WATCHED if on_page else _USUAL
        return in_loop(_demo(out, folder, Plan(pace, model), on_page=on_page))
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
    model_for(name)


async def _demo(out: Console, folder: Path, plan: Plan, *, on_page: bool) -> int:
    url = store_url(f"sqlite:///{folder / 'runs.db'}")
    page = Page(url) if on_page else None
    who = f"{plan.turns} turns" if plan.model is None else plan.model
    out.print(
        f"One agent ({who}), two worker processes, one SIGKILL in the middle of turn {plan.victim}.", style="bold"
    )
    if plan.model is None:
        out.print(f"The model answers by a script and is priced like {PRICED_LIKE}.", style="dim")
    else:
        out.print("The model is a real one, and costs real money.", style="dim")
    out.print("Starting the worker processes …\n", style="dim")
    workers: list[WorkerProcess] = []
    store = open_store(url)
    await store.open()
    try:
        workers += [WorkerProcess(folder, url, plan, f"worker-{n}") for n in (1, 2)]
        await until_serving(store, workers)
        if page is not None:
            await _open(out, page)
        async with Client(url) as client:
            progress = await _watch(out, folder, client, workers, plan)
        journal = await read_journal(store, RUN_ID)
        for worker in workers:
            if not worker.is_gone():
                worker.stop()
            worker.forget_log()
    finally:
        for worker in workers:
            if not worker.is_gone():
                worker.kill()
        await store.close()
    code = conclude(out, folder, url, count(progress.traces), journal, plan.victim)
    if page is not None:
        await _stay(out, page)
    return code


async def _open(out: Console, page: Page) -> None:
    page.start()
    out.print(f"Watch it on {page.of_run(RUN_ID)}", style="bold", soft_wrap=True)
    if not has_browser():
        out.print("No browser was found here, so the run starts now: open the address yourself.", style="dim")
        return
    out.print(f"Waiting up to {BROWSER_WAIT_S:g} s for the browser …", style="dim")
    if not await page.shown(RUN_ID):
        out.print("No browser came, so it begins without one: the page can be opened at any time.", style="dim")


async def _stay(out: Console, page: Page) -> None:
    """Leave the page there to be looked at."""
    out.print(f"\nThe page stays until Ctrl-C: {page.of_run(RUN_ID)}", soft_wrap=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        out.print("\nthe page is closed; the run is kept")
    finally:
        page.stop()


async def _watch(out: Console, folder: Path, client: Client, workers: list[WorkerProcess], plan: Plan) -> Progress:
    """Start the run, kill its worker in the middle of a model call, and follow it to its end."""
    progress = Progress(plan, began_at=time.time())
    handle = await client.options(id=RUN_ID).start(AGENT, PROMPT)
    screen = screen_for(out, progress)
    deadline = time.monotonic() + (PATIENCE if plan.model is None else 10 * PATIENCE)
    screen.begin()
    try:
        while not progress.ended:
            progress.ended = (await handle.info()).state.is_terminal
            for trace in progress.note(read_traces(folder)):
                if not progress.pids:
                    progress.pids = [trace.pid, *(worker.pid for worker in workers if worker.pid != trace.pid)]
                screen.happened(trace)
                if trace.turn == plan.victim and progress.killed_at is None:
                    await _kill(progress, workers, trace, folder)
                    screen.killed()
            if time.monotonic() > deadline:
                raise DemoFailed(f"the run did not end in time:\n{workers[1].last_words()}")
            await asyncio.sleep(_LOOK_EVERY)
    finally:
        screen.end()
    if progress.killed_at is None:
        raise DemoFailed(
            f"the run ended in {len(progress.turns())} turns, before there was anything to kill: {plan.model} was too "
            f"quick, or could not be asked. `{command('show', RUN_ID, '--url', client.url)}` tells."
        )
    return progress


async def _kill(progress: Progress, workers: list[WorkerProcess], begun: Trace, folder: Path) -> None:
    """SIGKILL, a little after the model was asked."""
    await asyncio.sleep(max(0.0, begun.at + progress.plan.kill_after - time.time()))
    [worker] = [worker for worker in workers if worker.pid == begun.pid]
    progress.killed_at = time.time()
    worker.kill()
    victim = progress.plan.victim
    if any(trace.turn == victim and trace.what != "started" for trace in read_traces(folder)):
        raise DemoFailed(f"turn {victim} had its answer before the kill came: this machine is too busy, or the model")


def conclude(out: Console, folder: Path, url: str, seen: Counted, journal: Journal, victim: int) -> int:
    """Say what the counts are; 1 if they are not what was promised."""
    out.print(f"\nCounted in {folder / FILE}, outside the database:", soft_wrap=True)
    wrong = problems(seen, journal, victim)
    if wrong:
        out.print("this is not what Holdfast promises:", style="bold red")
        for problem in wrong:
            out.print(f"  {problem}", style="red")
        return 1
    total = journal.before.used + journal.after.used
    saved = journal.before.used
    out.print(
        f"The model was asked {seen.asked.total()} times for {total.calls} answers: only the call of turn {victim}, "
        f"which was in flight when its worker was killed, was made twice. "
        f"{counted(seen.tools_begun.total(), 'tool call')} ran, each once.",
        style="green",
    )
    price = "" if total.cost is None else f" and {money(saved.nano_usd)} of {money(total.nano_usd)}"
    out.print(
        f"Not paid twice: {counted(saved.calls, 'model call')}, {saved.tokens:,} of {total.tokens:,} tokens{price}. "
        f"A restart from scratch would have paid for them again, and made "
        f"{counted(len(journal.before.tools), 'tool call')} again{_card(journal)}.",
        style="bold green",
    )
    out.print(f"\nLook at the run:\n  {command('show', RUN_ID, '--url', url)}", soft_wrap=True)
    out.print(f"Write your own:\n  {QUICKSTART}")
    return 0


def _card(journal: Journal) -> str:
    return ", the charge of a card among them" if "charge_card" in journal.before.tools else ""
