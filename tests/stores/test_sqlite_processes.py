"""Several processes on one SQLite file: opening, racing, dying, forking."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal as os_signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_values import (
    CLAIM_FILTER,
    DONE,
    FENCED,
    FLOW,
    append,
    claim_run,
    commit_ops,
    finish,
    list_record_seqs,
    list_signals,
    new_worker,
    read_run,
    start_claimed_run,
    start_run,
)

import forked_python
from holdfast.core.states import RunState
from holdfast.stores.approvals import ApprovalFilter, ApprovalRequest, RequestApproval
from holdfast.stores.contract import RunFilter
from holdfast.stores.operations import OpStatus
from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.workers import ReapResult

pytestmark = pytest.mark.asyncio

PRELUDE = """
import asyncio, os, subprocess, sys, time
sys.path.insert(0, {here!r})
from store_values import *
from holdfast.stores.contract import *
from holdfast.stores.operations import *
from holdfast.stores.sqlite import SqliteStore
store = SqliteStore({path!r})
def say(*words):
    print(*words, flush=True)
"""


class Processes:
    """Starts Python processes on one database, and ends them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.running: list[subprocess.Popen[str]] = []

    def start(self, source: str) -> subprocess.Popen[str]:
        prelude = PRELUDE.format(here=str(Path(__file__).parent), path=str(self.path))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        process = forked_python.start(
            [sys.executable, "-c", prelude + textwrap.dedent(source)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.running.append(process)
        return process

    def hear(self, process: subprocess.Popen[str]) -> list[str]:
        """The words of the next line that a process says."""
        assert process.stdout is not None
        return process.stdout.readline().split()

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path / "runs.db")
    yield started
    started.end()


async def opened(path: Path, **options) -> SqliteStore:
    store = SqliteStore(path, **options)
    await store.open()
    return store


HOLDER = """
async def main():
    await store.open()
    run = await start_claimed_run(store, "theirs", lease=1000)
    await commit_ops(store, append(run, 1))
    {then}
    say(run.owner)
    time.sleep(600)
asyncio.run(main())
"""


async def test_processes_that_open_a_new_file_at_once_all_succeed(processes: Processes):
    source = """
    say("ready")
    sys.stdin.readline()
    async def main():
        await store.open()
        await start_run(store, f"r{os.getpid()}")
        await store.close()
        say("done")
    asyncio.run(main())
    """
    started = [processes.start(source) for _ in range(6)]
    assert [processes.hear(process) for process in started] == [["ready"]] * 6
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [processes.hear(process) for process in started] == [["done"]] * 6
    store = await opened(processes.path)
    assert len(await store.list_runs(RunFilter())) == 6
    await store.close()


async def test_processes_that_write_at_once_lose_nothing(processes: Processes):
    source = """
    async def main():
        await store.open()
        runs = [await start_claimed_run(store, f"{os.getpid()}-{n}", lease=1000) for n in range(4)]
        for seq in range(1, 101):
            assert await commit_ops(store, *[append(run, seq) for run in runs]) == [DONE] * 4
            assert await commit_ops(store, append(runs[0], 1000 + seq)) == [DONE]
        say("done")
    asyncio.run(main())
    """
    started = [processes.start(source) for _ in range(3)]
    assert [processes.hear(process) for process in started] == [["done"]] * 3
    store = await opened(processes.path)
    runs = await store.list_runs(RunFilter())
    counts = sorted(len(history.records) for history in await store.get_histories([run.key for run in runs]))
    assert counts == [100] * 9 + [200] * 3
    await store.close()


async def test_of_two_processes_that_answer_an_approval_at_once_one_succeeds(processes: Processes):
    store = await opened(processes.path)
    run = await start_claimed_run(store, lease=1000)
    names = [f"a{number}" for number in range(40)]
    await commit_ops(
        store,
        *[RequestApproval(run.key, run.epoch, at, name, ApprovalRequest("?"), 1.0) for at, name in enumerate(names)],
    )
    source = """
    from holdfast.stores.approvals import AnswerApproval
    async def main():
        await store.open()
        say("ready")
        sys.stdin.readline()
        answers = [await commit_ops(store, AnswerApproval(f"a{n}", b"%d" % os.getpid(), "me", 1.0)) for n in range(40)]
        say(os.getpid(), *[answer.value for [answer] in answers])
    asyncio.run(main())
    """
    started = [processes.start(source) for _ in range(2)]
    assert [processes.hear(process) for process in started] == [["ready"]] * 2
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [processes.hear(process) for process in started]
    for at, name in enumerate(names):
        assert sorted(answers[1 + at] for answers in said) == ["done", "duplicate"], name
    first = [next(pid for pid, *answers in said if answers[at] == "done") for at in range(40)]
    assert [signal.payload.decode() for signal in await list_signals(store, run)] == first
    kept = await store.list_approvals(ApprovalFilter(only_open=False))
    assert {approval.id: (approval.answer or b"").decode() for approval in kept} == dict(zip(names, first, strict=True))
    await store.close()


async def test_processes_that_claim_at_once_share_the_runs(processes: Processes):
    store = await opened(processes.path)
    for number in range(60):
        await start_run(store, f"r{number}")
    source = """
    async def main():
        await store.open()
        me = await store.workers.register(new_worker(), 1000)
        got = []
        while claimed := await store.claims.claim(me, **CLAIM_FILTER, limit=3):
            got += [run.id for run in claimed]
            await asyncio.sleep(0.001)
        say(*got)
        time.sleep(600)
    asyncio.run(main())
    """
    started = [processes.start(source) for _ in range(3)]
    claimed = [name for process in started for name in processes.hear(process)]
    assert sorted(claimed) == sorted(f"r{number}" for number in range(60))
    await store.close()


async def test_a_killed_process_is_seen_at_once_and_its_run_taken_over(processes: Processes):
    process = processes.start(HOLDER.format(then=""))
    [owner] = processes.hear(process)
    store = await opened(processes.path)
    assert await store.workers.reap_dead() == ReapResult()
    process.send_signal(os_signal.SIGKILL)
    process.wait()
    began = time.monotonic()
    assert await store.workers.reap_dead() == ReapResult((int(owner),), 1, ())
    assert time.monotonic() - began < 0.5
    run = await claim_run(store)
    assert (run.id, run.epoch, run.delivery_count) == ("theirs", 2, 1)
    assert await list_record_seqs(store, run) == [1]
    assert list(Path(f"{processes.path}-workers").glob("*")) == [
        Path(f"{processes.path}-workers/{token}.lock") for token in store.workers._own_workers.values()
    ]
    await store.close()


async def test_a_stopped_process_is_not_taken_for_dead_before_its_lease_has_passed(processes: Processes):
    process = processes.start(HOLDER.format(then=""))
    [owner] = processes.hear(process)
    process.send_signal(os_signal.SIGSTOP)
    ahead = 0.0
    store = await opened(processes.path, clock=lambda: time.time() + ahead)
    assert await store.workers.reap_dead() == ReapResult()
    ahead = 1001.0
    assert (await store.workers.reap_dead()).worker_ids == (int(owner),)
    await store.close()


async def test_a_child_process_that_outlives_its_worker_does_not_keep_it_alive(processes: Processes):
    then = """
    child = subprocess.Popen(["sleep", "600"])
    forked = os.fork()
    if forked == 0:
        time.sleep(600)
    say(child.pid, forked)
    """
    source = HOLDER.format(then=textwrap.indent(textwrap.dedent(then), "    ").strip())
    process = processes.start(source)
    children = [int(pid) for pid in processes.hear(process)]
    [owner] = processes.hear(process)
    store = await opened(processes.path)
    assert await store.workers.reap_dead() == ReapResult()
    process.kill()
    process.wait()
    assert (await store.workers.reap_dead()).worker_ids == (int(owner),)
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, os_signal.SIGKILL)
    await store.close()


async def test_a_forked_child_cannot_use_its_parents_store_and_does_no_harm(processes: Processes):
    source = """
    import warnings; warnings.simplefilter("ignore")
    from holdfast.errors import UsageError
    async def main():
        await store.open()
        run = await start_claimed_run(store)
        child = os.fork()
        if child == 0:
            try:
                asyncio.events._set_running_loop(None)
                asyncio.run(store.commit([append(run, 1)]))
            except UsageError as error:
                say("child:", error)
            store.abandon()
            other = SqliteStore(store.path)
            async def reap():
                await other.open()
                say("reaped", len((await other.workers.reap_dead()).worker_ids))
                await other.close()
            asyncio.run(reap())
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        assert await commit_ops(store, append(run, 1)) == [DONE]
        other = SqliteStore(store.path)
        await other.open()
        assert (await other.workers.reap_dead()).worker_ids == ()
        say("parent fine")
        await store.close()
    asyncio.run(main())
    """
    process = processes.start(source)
    assert "forked" in " ".join(processes.hear(process))
    assert processes.hear(process) == ["reaped", "0"]
    assert processes.hear(process) == ["parent", "fine"]


async def test_another_process_notices_a_write_within_a_tenth_of_a_second(processes: Processes):
    store = await opened(processes.path)
    source = """
    async def main():
        await store.open()
        say("ready")
        for _ in range(10):
            sys.stdin.readline()
            written = time.time()
            await start_run(store, f"r{written}")
            say(written)
    asyncio.run(main())
    """
    process = processes.start(source)
    assert process.stdin is not None
    processes.hear(process)
    delays: list[float] = []
    while len(delays) < 10:
        while await store.wait_for_change(0.06):
            pass
        waiting = asyncio.create_task(store.wait_for_change(5))
        await asyncio.sleep(0)
        process.stdin.write("\n")
        process.stdin.flush()
        assert await waiting
        seen = time.time()
        delays.append(seen - float((await asyncio.to_thread(processes.hear, process))[0]))
    assert sorted(delays)[len(delays) // 2] < 0.1
    await store.close()


async def test_a_worker_without_a_lock_file_lives_as_long_as_its_lease(tmp_path: Path):
    ahead = 0.0
    store = await opened(tmp_path / "runs.db", clock=lambda: time.time() + ahead)
    other = await opened(tmp_path / "runs.db", clock=lambda: time.time() + ahead)
    run = await start_claimed_run(store)
    for file in Path(f"{store.path}-workers").iterdir():
        file.unlink()
    assert await other.workers.reap_dead() == ReapResult()
    ahead = 11.0
    assert (await other.workers.reap_dead()).worker_ids == (run.owner,)
    await store.close()
    await other.close()


async def test_a_store_closed_without_retiring_leaves_its_workers_to_be_reaped_at_once(tmp_path: Path):
    store, other = await opened(tmp_path / "runs.db"), await opened(tmp_path / "runs.db")
    run = await start_claimed_run(store)
    await store.close()
    assert (await other.workers.reap_dead()).worker_ids == (run.owner,)
    await other.close()


async def test_an_abandoned_store_retires_its_workers_since_nothing_took_them_down(tmp_path: Path):
    store, other = await opened(tmp_path / "runs.db"), await opened(tmp_path / "runs.db")
    await start_claimed_run(store)
    await asyncio.to_thread(store.abandon)
    freed = await read_run(other)
    assert (freed.state, freed.delivery_count) == (RunState.PENDING, 0)
    assert await other.list_workers() == []
    assert list(Path(f"{store.path}-workers").iterdir()) == []
    await other.close()


async def test_two_stores_in_one_process_do_not_declare_each_other_dead(tmp_path: Path):
    first, second = await opened(tmp_path / "runs.db"), await opened(tmp_path / "runs.db")
    mine = await start_claimed_run(first, "mine")
    other = await second.workers.register(new_worker(), 10.0)
    for _ in range(3):
        assert await first.workers.reap_dead(mine.owner) == ReapResult()
        assert await second.workers.reap_dead(other) == ReapResult()
    assert await second.claims.claim(other, **CLAIM_FILTER, limit=1) == []
    await second.workers.retire(other)
    assert await commit_ops(first, append(mine, 1)) == [DONE]
    await first.workers.retire(mine.owner or 0)
    assert await commit_ops(first, append(mine, 2)) == [FENCED]
    assert list(Path(f"{first.path}-workers").iterdir()) == []
    await first.close()
    await second.close()


async def test_reaping_writes_nothing_while_all_workers_live(tmp_path: Path):
    first, second = await opened(tmp_path / "runs.db"), await opened(tmp_path / "runs.db")
    await start_claimed_run(first)
    me = await second.workers.register(new_worker(), 10.0)
    await first.wait_for_change(0)
    for _ in range(20):
        await second.workers.reap_dead(me)
    assert not await first.wait_for_change(0)
    await first.close()
    await second.close()


async def test_a_database_reached_through_a_link_has_the_same_lock_files(tmp_path: Path):
    store = await opened(tmp_path / "runs.db")
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    linked = SqliteStore(tmp_path / "link.db")
    assert linked.workers._locks.folder == store.workers._locks.folder
    await store.close()


async def test_a_cancel_and_an_end_in_two_processes_are_never_both_accepted(processes: Processes):
    store = await opened(processes.path)
    me = await store.workers.register(new_worker(), 1000)
    runs = [await start_run(store, f"r{number}", claim_as=me) for number in range(80)]
    source = """
    async def main():
        await store.open()
        say("ready")
        sys.stdin.readline()
        for number in range(80):
            [answer] = await commit_ops(store, CancelRun(f"r{number}", 5.0))
            say(answer.name)
            await asyncio.sleep(0)
    asyncio.run(main())
    """
    process = processes.start(source)
    assert process.stdin is not None
    assert processes.hear(process) == ["ready"]
    process.stdin.write("go\n")
    process.stdin.flush()
    ended: list[OpStatus] = []
    for run in runs:
        ended += await commit_ops(store, finish(run))
        await asyncio.sleep(0.0005)
    cancelled = [(await asyncio.to_thread(processes.hear, process))[0] for _ in runs]
    assert {(end, cancel) for end, cancel in zip(ended, cancelled, strict=True)} <= {
        (DONE, "ENDED"), (OpStatus.REFUSED, "DONE"),
    }  # fmt: skip
    await store.close()


async def test_once_a_workflow_is_disabled_no_other_process_starts_or_claims_its_runs(processes: Processes):
    store = await opened(processes.path)
    for number in range(500):
        await start_run(store, f"there-{number}")
    source = """
    async def main():
        await store.open()
        me = await store.workers.register(new_worker(), 1000)
        say("ready")
        number = 0
        while True:
            number += 1
            [answer] = await commit_ops(store, StartRun(new_run(f"{os.getpid()}-{number}")))
            claimed = await store.claims.claim(me, **CLAIM_FILTER, limit=1)
            if answer is OpStatus.WORKFLOW_DISABLED:
                break
        sys.stdin.readline()
        say(len(claimed), len(await store.claims.claim(me, **CLAIM_FILTER, limit=9)))
    asyncio.run(main())
    """
    started = [processes.start(source) for _ in range(2)]
    assert [processes.hear(process) for process in started] == [["ready"]] * 2
    await asyncio.sleep(0.05)
    assert await store.disabled_workflows.disable(FLOW)
    before = await store.count_runs()
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [await asyncio.to_thread(processes.hear, process) for process in started] == [["0", "0"]] * 2
    assert await store.count_runs() == before
    assert before[FLOW, RunState.PENDING] > 0
    await store.close()
