"""The jobs of one peer: its programs are started, given commands, and killed."""

from __future__ import annotations

import select
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import environments, ledger
from benchmarks.peers.catalog import Peer
from benchmarks.peers.figures import STEPS_EACH, CrashFigures, PeerFigures, Rate
from benchmarks.peers.peer_stores import PeerStore, PeerStoreFactory
from benchmarks.peers.programs.peer_protocol import HELD_STEP, STEP_COUNT

PROGRAMS_FOLDER = Path(__file__).parent / "programs"


@dataclass
class BenchmarkSizes:
    """How much of everything."""

    round_count: int = 5
    crash_round_count: int = 3
    sequential_step_count: int = 200
    concurrent_run_count: int = 200
    size_sample: tuple[int, int] = (10, 100)
    """Runs, and steps of each, for the measurement of bytes."""
    recovery_timeout_s: float = 200
    """Seconds after which a run that was killed counts as abandoned: the longest lease of a peer takes 120."""
    overlap_s: float = 5
    """Seconds that a second process gets to meddle with the first one's run."""


@dataclass
class BaselineRates:
    """The bare database in all rounds, by its kind."""

    sqlite: list[float] = field(default_factory=list)
    postgres: list[float] = field(default_factory=list)

    def measure(self, store: PeerStore, kind: str) -> float:
        """Once more."""
        rate = store.measure_baseline()
        (self.postgres if kind == "postgres" else self.sqlite).append(rate)
        return rate


class ProgramFailed(Exception):
    """A program did not do what it was asked."""


class PeerProcess:
    """A process of the peer."""

    def __init__(self, peer: Peer, store: PeerStore, log: Path) -> None:
        order = [environments.ensure_python(peer.family), str(PROGRAMS_FOLDER / peer.program), store.url, peer.variant]
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                order,
                env=environments.build_variables(peer.family),
                cwd=log.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
            )

    @property
    def pid(self) -> int:
        """As the ledger has it."""
        return self._process.pid

    def wait_until_ready(self) -> PeerProcess:
        """Wait until it is."""
        self.read_answer(120)
        return self

    def send(self, line: str) -> None:
        """Without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._build_failure() from None

    def request(self, line: str, timeout_s: float = 300) -> str:
        """And wait for the answer."""
        self.send(line)
        return self.read_answer(timeout_s)

    def read_answer(self, timeout_s: float) -> str:
        """The next line of its output."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise ProgramFailed(f"no answer in {timeout_s:.0f} s")
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise self._build_failure()
        return line

    def _build_failure(self) -> ProgramFailed:
        """With its last words."""
        said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return ProgramFailed(said[-1].strip()[:200] if said else "it ended without a word")

    def kill(self) -> None:
        """SIGKILL, if it is still there."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass


class PeerBenchmark:
    """All jobs of one peer."""

    def __init__(
        self, peer: Peer, stores: PeerStoreFactory, folder: Path, sizes: BenchmarkSizes, baseline_rates: BaselineRates
    ) -> None:
        self._peer = peer
        self._stores = stores
        self._sizes = sizes
        self._baseline_rates = baseline_rates
        self._folder = folder
        self._log = folder / f"{peer.key}.log"
        self._processes: list[PeerProcess] = []

    async def measure(self) -> PeerFigures:
        """Run each job by itself, so that one that fails does not affect the others."""
        peer = self._peer
        told = environments.describe_versions(peer.family)
        found = PeerFigures(
            peer.key,
            peer.title,
            told,
            peer.settings,
            peer.once_support,
            peer.needs_explicit_resume,
            peer.no_takeover_reason,
        )
        try:
            environments.ensure_python(peer.family)
        except environments.PeerUnavailable as error:
            found.failures["installed"] = str(error)
            return found
        jobs: dict[str, Callable[[PeerFigures], Awaitable[None]]] = {
            "rates": self._measure_rates,
            "restart": self._measure_restart,
            "takeover": self._measure_takeover,
            "beside": self._measure_overlap,
        }
        for name, job in jobs.items():
            started = time.monotonic()
            try:
                await job(found)
            except (ProgramFailed, environments.PeerUnavailable, OSError, subprocess.SubprocessError) as error:
                found.failures[name] = str(error) or type(error).__name__
            took = time.monotonic() - started
            print(
                f"{peer.title}: {name} {found.failures.get(name, 'done')} ({took:.1f} s)", file=sys.stderr, flush=True
            )
        return found

    @asynccontextmanager
    async def _open_store(self) -> AsyncIterator[PeerStore]:
        """A new store; what has been started on it ends with the block."""
        async with self._stores.create(self._peer) as store:
            try:
                yield store
            finally:
                while self._processes:
                    self._processes.pop().kill()

    def _start_process(self, store: PeerStore) -> PeerProcess:
        self._processes.append(PeerProcess(self._peer, store, self._log))
        return self._processes[-1]

    async def _measure_rates(self, figures: PeerFigures) -> None:
        sizes = self._sizes
        async with self._open_store() as store:
            program = self._start_process(store).wait_until_ready()
            program.request("many 1 5")
            figures.sequential = self._measure_rate(program, store, 1, sizes.sequential_step_count)
            runs, steps = sizes.size_sample
            before = store.measure_size()
            for _ in range(runs):  # one by one: not every peer can run many at once
                program.request(f"many 1 {steps}")
            figures.bytes_per_step = (store.measure_size() - before) / (runs * steps)
            figures.concurrent = self._measure_rate(program, store, sizes.concurrent_run_count, STEPS_EACH)

    def _measure_rate(self, process: PeerProcess, store: PeerStore, run_count: int, step_count: int) -> Rate:
        rates: list[float] = []
        ratios: list[float] = []
        for _ in range(self._sizes.round_count):
            bare = self._baseline_rates.measure(store, self._peer.store)
            rates.append(run_count * step_count / float(process.request(f"many {run_count} {step_count}")))
            ratios.append(rates[-1] / bare)
        return Rate(statistics.median(rates), statistics.median(ratios))

    async def _measure_restart(self, figures: PeerFigures) -> None:
        """Kill the process, then start another one as the documentation says."""
        crashes: list[CrashFigures] = []
        while _should_repeat(crashes, self._sizes.crash_round_count):
            path = self._folder / f"{self._peer.key}-restart-{len(crashes)}"
            async with self._open_store() as store:
                first = self._start_process(store).wait_until_ready()
                first.request(f"begin {path}")
                self._wait_until_held(path)
                first.kill()
                killed = time.time()
                second = self._start_process(store)
                if self._peer.needs_explicit_resume:
                    second.wait_until_ready().send(f"name {path}")
                crashes.append(self._read_crash(path, killed))
        figures.restart = _merge_crashes(crashes)

    async def _measure_takeover(self, figures: PeerFigures) -> None:
        """Kill the one of two processes that has the run."""
        if self._peer.no_takeover_reason:
            return
        crashes: list[CrashFigures] = []
        while _should_repeat(crashes, self._sizes.crash_round_count):
            path = self._folder / f"{self._peer.key}-takeover-{len(crashes)}"
            async with self._open_store() as store:
                first, _ = self._start_process(store).wait_until_ready(), self._start_process(store).wait_until_ready()
                first.request(f"begin {path}")
                self._wait_until_held(path).kill()
                crashes.append(self._read_crash(path, time.time()))
        figures.takeover = _merge_crashes(crashes)

    async def _measure_overlap(self, figures: PeerFigures) -> None:
        """Start a second process while the first one is in the middle of the run: what does it do again?"""
        if self._peer.needs_explicit_resume:
            return  # it would do nothing
        again: set[int] = set()
        for number in range(self._sizes.crash_round_count):
            path = self._folder / f"{self._peer.key}-beside-{number}"
            async with self._open_store() as store:
                self._start_process(store).wait_until_ready().request(f"begin {path}")
                self._wait_until_held(path)
                self._start_process(store).wait_until_ready()
                time.sleep(self._sizes.overlap_s)
            # Everything executed besides the step that is still in progress in the first process.
            began = [entry.number for entry in ledger.read_entries(path)]
            again.update(began[began.index(HELD_STEP) + 1 :])
        figures.overlap_repeats = sorted(again)

    def _wait_until_held(self, path: Path) -> PeerProcess:
        """The program that is in the step that takes long."""
        entry = ledger.wait_for_step(path, HELD_STEP, 60)
        if entry is None:
            raise ProgramFailed(f"step {HELD_STEP} was not reached")
        [holder] = [program for program in self._processes if program.pid == entry.pid]
        return holder

    def _read_crash(self, path: Path, killed_at: float) -> CrashFigures:
        last = ledger.wait_for_step(path, STEP_COUNT, self._sizes.recovery_timeout_s)
        return CrashFigures(
            ledger.list_repeated(ledger.read_entries(path)), None if last is None else last.at - killed_at
        )


def _should_repeat(crashes: list[CrashFigures], max_rounds: int) -> bool:
    """Whether to repeat: once is enough if the lease takes minutes or nothing takes over."""
    is_slow = any(crash.recovery_s is None or crash.recovery_s > 60 for crash in crashes)
    return len(crashes) < max_rounds and not is_slow


def _merge_crashes(crashes: list[CrashFigures]) -> CrashFigures:
    """All steps that ran again in any round; the median of the times, and none if one did not end."""
    again = sorted({number for crash in crashes for number in crash.repeated_steps})
    times = [crash.recovery_s for crash in crashes]
    return CrashFigures(again, None if None in times else statistics.median(filter(None, times)))
