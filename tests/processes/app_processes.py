"""Real processes for the tests: apps from ``apps/``, started, watched, killed, and never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import psutil
from ledger import ENDED, Journal, LedgerLine, Snapshot, read_journals, read_ledger, read_workers

import forked_python
import holdfast
from holdfast import Client
from waits import wait_until_sync

T = TypeVar("T")
A = TypeVar("A", bound="App")

HERE = Path(__file__).parent
LIBRARY = Path(holdfast.__file__).parents[1]
TIMEOUT_S = 60.0
"""How long a test waits for something that takes a fraction of a second on a quiet machine."""


def _choose_imports(command: list[str], environment: dict[str, str]) -> tuple[str, ...]:
    """What a process needs of the library, or nothing if it has another one."""
    if environment.get("PYTHONPATH", str(LIBRARY)).split(os.pathsep)[0] != str(LIBRARY):
        return ()
    if environment.get("HOLDFAST_URL", "").startswith("postgresql:"):
        return forked_python.POSTGRES
    return forked_python.SERVER if "serve" in command or "http_server.py" in command[-1] else forked_python.LIBRARY


class App:
    """One process that runs an app."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.name = name
        # Files and not pipes: a tool's child that outlives its worker inherits them, and nobody must wait for it.
        self._out, self._err = folder / f"{self.name}.out", folder / f"{self.name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = forked_python.start(
                command,
                library=_choose_imports(command, environment),
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.pid = self._process.pid

    @property
    def stdout_lines(self) -> list[str]:
        """Complete lines on its standard output so far."""
        return [line.strip() for line in self._out.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @property
    def stderr_messages(self) -> str:
        """What it wrote to stderr, but for the log of its runs: a line for each retry, failure, takeover and death."""
        lines = self.stderr_text.splitlines(keepends=True)
        return "".join(line for line in lines if ":holdfast.runs:" not in line)

    @property
    def stderr_text(self) -> str:
        """All that it wrote to stderr."""
        return self._err.read_text()

    @property
    def exit_code(self) -> int | None:
        """How it ended (minus the number of the signal that killed it), or ``None`` while it lives."""
        return self._process.poll()

    def wait_for_output(self, word: str) -> App:
        """Wait until it has written this line."""

        def has_line() -> bool:
            assert word in self.stdout_lines or self.exit_code is None, f"{self} ended without saying {word!r}"
            return word in self.stdout_lines

        wait_until_sync(has_line, f"{self.name} says {word!r}", describe=lambda: self)
        return self

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def suspend(self) -> None:
        """SIGSTOP, and wait until it stands still. On SQLite it may hold the write lock: see ``World.suspend``."""
        self.send(signal.SIGSTOP)
        self.wait_until_suspended()

    def wait_until_suspended(self) -> None:
        process = psutil.Process(self.pid)
        wait_until_sync(
            lambda: process.status() == psutil.STATUS_STOPPED, f"{self.name} stands still", describe=lambda: self
        )

    def kill(self) -> float:
        """SIGKILL; returns the time at which it was sent."""
        at = time.time()
        self.send(signal.SIGKILL)
        self._process.wait()
        return at

    def ends(self) -> App:
        """Wait until it has ended, with exit code 0."""
        wait_until_sync(lambda: self.exit_code is not None, f"{self.name} ends", describe=lambda: self)
        assert self.exit_code == 0, f"{self} ended with {self.exit_code}"
        return self

    def wait_for_kill(self) -> App:
        """Wait until it has been killed, by itself or by somebody."""
        wait_until_sync(lambda: self.exit_code is not None, f"{self.name} dies", describe=lambda: self)
        assert self.exit_code == -signal.SIGKILL, f"{self} ended with {self.exit_code}"
        return self

    def read_answers(self) -> list[Any]:
        """Wait until it has ended in good order; returns what it said, each line read as JSON."""
        return [json.loads(line) for line in self.ends().stdout_lines if line != "ready"]

    def clean_up(self) -> None:
        """Nothing of it is left after the test."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def __str__(self) -> str:
        said = f" stdout: {self.stdout_lines}\n stderr: {self.stderr_text[-3000:]}"
        return f"[{self.name} pid={self.pid} exit={self.exit_code}\n{said}]"


class Service(App):
    """A command that runs until it is stopped: with ``--processes``, a supervisor and its processes."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
        super().__init__(name, command, environment, folder)
        self._seen: dict[int, psutil.Process] = {}

    @property
    def process_pids(self) -> list[int]:
        """The processes that it has started and that live, in the order in which they were started."""
        try:
            children = psutil.Process(self.pid).children()
        except psutil.NoSuchProcess:
            return []
        self._seen |= {child.pid: child for child in children}
        return [child.pid for child in sorted(children, key=psutil.Process.create_time) if _is_living(child)]

    @property
    def living_pids(self) -> list[int]:
        """Those of the processes seen so far that live, whatever became of their supervisor."""
        return [pid for pid, child in self._seen.items() if _is_living(child)]

    def wait_for_log(self, *words: str) -> str:
        """Wait until its log has a line with all of these words; returns the line."""

        def find_line() -> str:
            found = [line for line in self.stderr_text.splitlines() if all(word in line for word in words)]
            assert found or self.exit_code is None, f"{self} ended without saying {words}"
            return found[0] if found else ""

        return wait_until_sync(find_line, f"{self.name} logs {words}", describe=lambda: self)

    def clean_up(self) -> None:
        """Nothing of it is left after the test."""
        _ = self.process_pids
        super().clean_up()
        for pid in self.living_pids:
            os.kill(pid, signal.SIGKILL)


class World:
    """A database, a ledger, gates that hold steps back, and the processes that work there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "runs.db"
        self.url = f"sqlite:///{self.database}"
        self.apps: list[App] = []
        self.client = Client(self.url)

    # Processes

    def spawn(self, script: str, *arguments: str, **settings: object) -> App:
        """Start an app; ``settings`` go into its environment."""
        return self.start(App, script.removesuffix(".py"), [str(HERE / "apps" / script), *arguments], **settings)

    def service(self, *arguments: str, **settings: object) -> Service:
        """Start a command of ``holdfast`` that runs until it is stopped."""
        return self.start(Service, arguments[0], ["-m", "holdfast.cli", *arguments], **settings)

    def start(self, kind: type[A], name: str, words: list[str], **settings: object) -> A:
        """Start Python with these arguments; ``settings`` go into its environment."""
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")},
            "PYTHONPATH": os.pathsep.join([str(LIBRARY), str(HERE)]),
            "HOLDFAST_URL": self.url,
            "LEDGER": str(self.folder / "ledger"),
            "GATES": str(self.folder),
            **{name: str(value) for name, value in settings.items()},
        }
        app = kind(f"{len(self.apps) + 1}-{name}", [sys.executable, *words], environment, self.folder)
        self.apps.append(app)
        return app

    def worker(self, **settings: object) -> App:
        """Start a worker, and wait until it serves."""
        return self.spawn("worker.py", **settings).wait_for_output("ready")

    def open_gate(self, name: str) -> None:
        """Let the steps through that wait at this gate."""
        (self.folder / f"gate-{name}").touch()

    def close_gate(self, name: str) -> None:
        """Hold back the steps that come to this gate from now on."""
        (self.folder / f"gate-{name}").unlink()

    def clean_up(self) -> None:
        """Kill whatever is still there."""
        for app in self.apps:
            app.clean_up()

    # What happened

    def lines(self, step: str = "", phase: str = "", *, run: str = "", pid: int = 0) -> list[LedgerLine]:
        """The ledger, or those lines of it that match."""
        return [
            line
            for line in read_ledger(self.folder / "ledger")
            if (not step or line.step == step)
            and (not phase or line.phase == phase)
            and (not run or line.run == run)
            and (not pid or line.pid == pid)
        ]

    def wait_for_line(self, step: str, phase: str, *, run: str = "", pid: int = 0) -> LedgerLine:
        """Wait until the ledger has such a line; returns the first."""
        what = f"{step} {phase} of run {run or 'any'} in process {pid or 'any'}"
        return wait_until_sync(lambda: self.lines(step, phase, run=run, pid=pid), what, describe=self.describe)[0]

    def snapshot(self) -> Snapshot:
        """Ledger and journals as they stand."""
        pids = {number: pid for number, (pid, _) in self.workers().items()}
        return Snapshot(read_ledger(self.folder / "ledger"), self.journals(), pids)

    def journals(self) -> dict[str, Journal]:
        """All runs as the store has them."""
        return read_journals(self.database)

    def workers(self) -> dict[int, tuple[int, str]]:
        """Pid and state of every worker there ever was, by its number."""
        return read_workers(self.database)

    def journal(self, run_id: str) -> Journal:
        """One run as the store has it."""
        return self.journals()[run_id]

    def wait_for_run(self, run_id: str, condition: Callable[[Journal], object], what: str) -> Journal:
        """Wait until the run is in the store, and ``condition`` holds for it."""

        def find_run() -> Journal | None:
            journal = self.journals().get(run_id)
            return journal if journal is not None and condition(journal) else None

        return wait_until_sync(find_run, f"run {run_id}: {what}", describe=self.describe)

    def wait_for_end(self, run_id: str, state: str = "completed") -> Journal:
        """Wait until the run has ended, in this state."""
        journal = self.wait_for_run(run_id, lambda journal: journal.state in ENDED, "ends")
        assert journal.state == state, f"run {run_id} ended {journal.state}: {journal.error}\n{self.describe()}"
        return journal

    def live_workers(self) -> dict[int, int]:
        """The pids of those workers that count as live, by their number."""
        return {number: pid for number, (pid, state) in self.workers().items() if state == "live"}

    def suspend(self, app: App) -> None:
        """SIGSTOP, but not while the process holds SQLite's write lock: others could not write until it continues."""
        app.suspend()
        while not self.is_writable():
            app.send(signal.SIGCONT)
            app.suspend()

    def is_writable(self) -> bool:
        """Whether nobody holds the lock without which nobody else can write."""
        with closing(sqlite3.connect(self.database, timeout=0.5, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
            return True

    def describe(self) -> str:
        """All that there is to see, for the message of a failed test."""
        parts = ["ledger:", *(f"  {line}" for line in self.lines()), "runs:"]
        for journal in self.journals().values():
            parts.append(f"  {journal}")
        parts.append(f"workers: {self.workers()}")
        return "\n".join([*parts, *(str(app) for app in self.apps)])


def _is_living(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def begin_drain(app: App) -> None:
    """Send SIGTERM, and wait until the app drains."""
    app.send(signal.SIGTERM)
    wait_until_sync(
        lambda: "stopping: " in app.stderr_messages or app.exit_code is not None,
        f"{app.name} drains",
        describe=lambda: app,
    )


def retry_run(world: World, run: str) -> None:
    """Retry a run, as a client does it."""

    async def retry() -> None:
        async with world.client as client:
            await client.retry(run)

    asyncio.run(retry())
