"""``holdfast demo``: a run survives ``kill -9``, for real.

Two worker processes serve one SQLite file in a temporary folder. A run of twelve steps is started; the process that
executes it is killed in the middle of step 9; the other one takes over and finishes. How often each step ran is then
counted in a file that the steps wrote outside the database, and compared with what Holdfast promises: a count that is
not as promised is shown, and is an error.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from rich.console import Console

from holdfast.cli.demo.effects import FILE, Trace, read_traces
from holdfast.cli.demo.job import LONG_STEP, STEPS
from holdfast.cli.demo.processes import PATIENCE, DemoFailed, WorkerProcess, until_serving
from holdfast.cli.demo.progress import Count, Progress, count
from holdfast.cli.demo.screen import screen_for
from holdfast.cli.wording import console
from holdfast.client.client import Client
from holdfast.core.states import RunState
from holdfast.stores.contract import Store
from holdfast.stores.urls import open_store

RUN_ID = "demo"
TOPIC = "the tides"
VICTIM = STEPS.index(LONG_STEP) + 1
QUICKSTART = "README.md (Ten lines), then docs/guide.md"
_LOOK_EVERY = 0.01


def run_demo(*, fast: bool) -> int:
    """Show it, check it, and return the exit code."""
    out = console()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        return asyncio.run(_demo(out, folder, pace=0.05 if fast else 0.25))
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        out.print("\nstopped; the workers are ended and the folder is removed")
        return 130
    except DemoFailed:
        out.print(f"\nwhat is left is in {folder}")
        raise


async def _demo(out: Console, folder: Path, pace: float) -> int:
    url = f"sqlite:///{folder / 'runs.db'}"
    out.print(
        f"One run of {len(STEPS)} steps, two worker processes, one SIGKILL in the middle of step {VICTIM}.\n",
        style="bold",
    )
    workers: list[WorkerProcess] = []
    store = open_store(url)
    await store.open()
    try:
        workers += [WorkerProcess(folder, url, pace, f"worker-{n}") for n in (1, 2)]
        await until_serving(store, workers)
        async with Client(url) as client:
            progress = await _watch(out, folder, client, workers)
        problems = await _replay_problems(store)
        for worker in workers:
            if not worker.is_gone():
                worker.stop()
            worker.forget_log()
    finally:
        for worker in workers:
            if not worker.is_gone():
                worker.kill()
        await store.close()
    return conclude(out, folder, url, count(progress.traces), problems)


async def _watch(out: Console, folder: Path, client: Client, workers: list[WorkerProcess]) -> Progress:
    """Start the run, kill its worker in the middle of the step, and follow it to its end."""
    progress = Progress(VICTIM, began_at=time.time())
    handle = await client.options(id=RUN_ID).start("research", TOPIC)
    screen = screen_for(out, progress)
    deadline = time.monotonic() + PATIENCE
    screen.begin()
    try:
        while not progress.ended:
            progress.ended = (await handle.info()).state.is_terminal
            for trace in progress.note(read_traces(folder)):
                if not progress.pids:
                    progress.pids = [trace.pid, *(worker.pid for worker in workers if worker.pid != trace.pid)]
                screen.happened(trace)
                if trace.number == VICTIM and progress.killed_at is None:
                    await _kill(progress, workers, trace, folder)
                    screen.killed()
            if time.monotonic() > deadline:
                raise DemoFailed(f"the run did not end within {PATIENCE:g} s:\n{workers[1].last_words()}")
            await asyncio.sleep(_LOOK_EVERY)
    finally:
        screen.end()
    return progress


async def _kill(progress: Progress, workers: list[WorkerProcess], begun: Trace, folder: Path) -> None:
    """SIGKILL, a little after the step has begun."""
    await asyncio.sleep(max(0.0, begun.at + 0.2 - time.time()))
    [worker] = [worker for worker in workers if worker.pid == begun.pid]
    progress.killed_at = time.time()
    worker.kill()
    if any(trace.number == VICTIM and trace.what == "finished" for trace in read_traces(folder)):
        raise DemoFailed(f"this machine is too busy: step {VICTIM} had ended before the kill came. Please try again.")


async def _replay_problems(store: Store) -> list[str]:
    """What the journal says: the run is complete, and all before the kill was recorded once, under the first lease."""
    run = await store.get(RUN_ID)
    assert run is not None
    if run.state is not RunState.COMPLETED:
        return [f"the run is {run.state}, not completed"]
    [history] = await store.histories([run.key])
    before = [record.name for record in history.records if record.epoch == 1]
    after = [record.name for record in history.records if record.epoch == 2]
    if (*before, *after) != STEPS or len(before) != VICTIM - 1:
        return [f"the journal has {len(before)} records from before the kill and {len(after)} from after it"]
    return []


def conclude(out: Console, folder: Path, url: str, counts: list[Count], problems: list[str]) -> int:
    """Say what the counts are; 1 if they are not what was promised."""
    promised = {number: (2 if number == VICTIM else 1, 1) for number in range(1, len(STEPS) + 1)}
    problems = problems + [
        f"step {one.number} ({one.step}) started {one.started} and finished {one.finished} times"
        for one in counts
        if (one.started, one.finished) != promised[one.number]
    ]
    out.print(f"\nCounted in {folder / FILE}, outside the database:", soft_wrap=True)
    if problems:
        out.print("this is not what Holdfast promises:", style="bold red")
        for problem in problems:
            out.print(f"  {problem}", style="red")
        return 1
    once = sum(one.started == 1 for one in counts)
    out.print(
        f"{once} steps ran once; only step {VICTIM}, which was in flight when its worker was killed, "
        f"ran twice (started twice, finished once).",
        style="green",
    )
    out.print(f"\nLook at the run:\n  holdfast show {RUN_ID} --url {url}", soft_wrap=True)
    out.print(f"Write your own:\n  {QUICKSTART}")
    return 0
