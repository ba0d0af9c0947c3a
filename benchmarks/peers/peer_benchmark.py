"""The jobs, done by one peer: its programs are started, told what to do, and killed."""

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
from benchmarks.peers.figures import EACH, Crash, Figures, Rate
from benchmarks.peers.peer_stores import Store, Stores
from benchmarks.peers.programs.peer_protocol import HELD, LENGTH

PROGRAMS = Path(__file__).parent / "programs"


@dataclass
class Sizes:
    """How much of everything."""

    rounds: int = 5
    crashes: int = 3
    steps: int = 200
    runs: int = 200
    kept: tuple[int, int] = (10, 100)
    """Runs, and steps of each, whose bytes are told."""
    patience: float = 200
    """Seconds after which a run that was killed counts as abandoned: the longest lease of a peer takes 120."""
    beside: float = 5
    """Seconds that a second process gets to meddle with the first one's run."""


@dataclass
class Bare:
    """The bare database in all rounds, by its kind."""

    sqlite: list[float] = field(default_factory=list)
    postgres: list[float] = field(default_factory=list)

    def take(self, store: Store, kind: str) -> float:
        """Once more."""
        rate = store.bare()
        (self.postgres if kind == "postgres" else self.sqlite).append(rate)
        return rate


class Failed(Exception):
    """A program did not do what it was told."""


class Program:
    """A process of the peer."""

    def __init__(self, peer: Peer, store: Store, log: Path) -> None:
        order = [environments.python(peer.family), str(PROGRAMS / peer.program), store.url, peer.variant]
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                order,
                env=environments.variables(peer.family),
                cwd=log.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
            )

    @property
    def pid(self) -> int:
        """As the ledger has it."""
        return self._process.pid

    def ready(self) -> Program:
        """Wait until it is."""
        self.answer(120)
        return self

    def tell(self, line: str) -> None:
        """Without waiting for the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def ask(self, line: str, patience: float = 300) -> str:
        """And wait for the answer."""
        self.tell(line)
        return self.answer(patience)

    def answer(self, patience: float) -> str:
        """The next line that it says."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], patience)[0]:
            raise Failed(f"no answer in {patience:.0f} s")
        line = self._process.stdout.readline().decode().strip()
        if not line:
            raise self._failed()
        return line

    def _failed(self) -> Failed:
        """With its last words."""
        said = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return Failed(said[-1].strip()[:200] if said else "it ended without a word")

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


class Measuring:
    """All jobs of one peer."""

    def __init__(self, peer: Peer, stores: Stores, folder: Path, sizes: Sizes, bare: Bare) -> None:
        self._peer = peer
        self._stores = stores
        self._sizes = sizes
        self._bare = bare
        self._folder = folder
        self._log = folder / f"{peer.key}.log"
        self._programs: list[Program] = []

    async def figures(self) -> Figures:
        """Each job by itself: one that fails does not keep the others from being measured."""
        peer = self._peer
        told = environments.version(peer.family)
        found = Figures(peer.key, peer.title, told, peer.settings, peer.once, peer.is_named, peer.no_takeover)
        try:
            environments.python(peer.family)
        except environments.Missing as error:
            found.failed["installed"] = str(error)
            return found
        jobs: dict[str, Callable[[Figures], Awaitable[None]]] = {
            "rates": self._rates,
            "restart": self._restart,
            "takeover": self._takeover,
            "beside": self._beside,
        }
        for name, job in jobs.items():
            started = time.monotonic()
            try:
                await job(found)
            except (Failed, environments.Missing, OSError, subprocess.SubprocessError) as error:
                found.failed[name] = str(error) or type(error).__name__
            took = time.monotonic() - started
            print(f"{peer.title}: {name} {found.failed.get(name, 'done')} ({took:.1f} s)", file=sys.stderr, flush=True)
        return found

    @asynccontextmanager
    async def _store(self) -> AsyncIterator[Store]:
        """A new store; what has been started on it ends with the block."""
        async with self._stores.new(self._peer) as store:
            try:
                yield store
            finally:
                while self._programs:
                    self._programs.pop().kill()

    def _start(self, store: Store) -> Program:
        self._programs.append(Program(self._peer, store, self._log))
        return self._programs[-1]

    async def _rates(self, found: Figures) -> None:
        sizes = self._sizes
        async with self._store() as store:
            program = self._start(store).ready()
            program.ask("many 1 5")
            found.sequential = self._rate(program, store, 1, sizes.steps)
            runs, steps = sizes.kept
            before = store.size()
            for _ in range(runs):  # one by one: not everybody can do many at once
                program.ask(f"many 1 {steps}")
            found.bytes = (store.size() - before) / (runs * steps)
            found.together = self._rate(program, store, sizes.runs, EACH)

    def _rate(self, program: Program, store: Store, runs: int, steps: int) -> Rate:
        rates: list[float] = []
        ratios: list[float] = []
        for _ in range(self._sizes.rounds):
            bare = self._bare.take(store, self._peer.store)
            rates.append(runs * steps / float(program.ask(f"many {runs} {steps}")))
            ratios.append(rates[-1] / bare)
        return Rate(statistics.median(rates), statistics.median(ratios))

    async def _restart(self, found: Figures) -> None:
        """Kill the process, then start another one as the documentation says."""
        crashes: list[Crash] = []
        while _is_worthwhile(crashes, self._sizes.crashes):
            path = self._folder / f"{self._peer.key}-restart-{len(crashes)}"
            async with self._store() as store:
                first = self._start(store).ready()
                first.ask(f"begin {path}")
                self._until_held(path)
                first.kill()
                killed = time.time()
                second = self._start(store)
                if self._peer.is_named:
                    second.ready().tell(f"name {path}")
                crashes.append(self._crash(path, killed))
        found.restart = _worst(crashes)

    async def _takeover(self, found: Figures) -> None:
        """Kill the one of two processes that has the run."""
        if self._peer.no_takeover:
            return
        crashes: list[Crash] = []
        while _is_worthwhile(crashes, self._sizes.crashes):
            path = self._folder / f"{self._peer.key}-takeover-{len(crashes)}"
            async with self._store() as store:
                first, _ = self._start(store).ready(), self._start(store).ready()
                first.ask(f"begin {path}")
                self._until_held(path).kill()
                crashes.append(self._crash(path, time.time()))
        found.takeover = _worst(crashes)

    async def _beside(self, found: Figures) -> None:
        """Start a second process while the first one is in the middle of the run: what does it do again?"""
        if self._peer.is_named:
            return  # it would do nothing
        again: set[int] = set()
        for number in range(self._sizes.crashes):
            path = self._folder / f"{self._peer.key}-beside-{number}"
            async with self._store() as store:
                self._start(store).ready().ask(f"begin {path}")
                self._until_held(path)
                self._start(store).ready()
                time.sleep(self._sizes.beside)
            # All that was carried out beside the step that still takes its time in the first process.
            began = [entry.number for entry in ledger.read(path)]
            again.update(began[began.index(HELD) + 1 :])
        found.beside = sorted(again)

    def _until_held(self, path: Path) -> Program:
        """The program that is in the step that takes long."""
        entry = ledger.wait(path, HELD, 60)
        if entry is None:
            raise Failed(f"step {HELD} was not reached")
        [holder] = [program for program in self._programs if program.pid == entry.pid]
        return holder

    def _crash(self, path: Path, killed: float) -> Crash:
        last = ledger.wait(path, LENGTH, self._sizes.patience)
        return Crash(ledger.again(ledger.read(path)), None if last is None else last.at - killed)


def _is_worthwhile(crashes: list[Crash], wanted: int) -> bool:
    """Once more? A lease of minutes, or nobody who goes on: once is enough."""
    is_slow = any(crash.seconds is None or crash.seconds > 60 for crash in crashes)
    return len(crashes) < wanted and not is_slow


def _worst(crashes: list[Crash]) -> Crash:
    """All steps that ran again in any round; the median of the times, and none if one did not end."""
    again = sorted({number for crash in crashes for number in crash.again})
    times = [crash.seconds for crash in crashes]
    return Crash(again, None if None in times else statistics.median(filter(None, times)))
