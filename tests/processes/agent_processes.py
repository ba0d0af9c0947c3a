"""Real processes for agents: forked from one that has imported the SDKs, with a model provider in this process.

A ``Scene`` is a world with a provider of its own, whose ledger is outside of every process that is killed. The world's
ledger has the tools' effects and, from the callers' side, the model calls.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from app_processes import HERE, App, World
from ledger import STEP, Journal, Snapshot, check_crash, check_end
from provider_server import ProviderServer, Script, count_calls

import holdfast
from waits import wait_until_sync

RUN = "the-run"
MODEL_CALL = "model call"
COMPACTION = "compaction"


def turn(text: str = "", *calls: tuple[str, dict[str, Any]], used: tuple[int, int] = (100, 10)) -> dict[str, Any]:
    """One turn of a script: what is said, the calls that are asked for, and the tokens that it takes."""
    made = [{"tool": tool, "arguments": arguments} for tool, arguments in calls]
    return {"text": text, "calls": made, "usage": {"input": used[0], "output": used[1]}}


def call(tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
    """A call in a turn, of a tool or of a sub-agent."""
    return tool, arguments


class ForkServer:
    """The process of ``agent_app.py``, from which the others are forked."""

    def __init__(self, folder: Path) -> None:
        paths = [str(Path(holdfast.__file__).parents[1]), str(HERE)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST")}
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        self._stderr_path = folder / "fork-server.err"
        self._provider = ProviderServer({"warm-up": [{"text": "warm"}]}, folder / "warm-up.ledger")
        self._provider.__enter__()
        with self._stderr_path.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "apps" / "agent_app.py")],
                env={**environment, **self._provider.address.environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )
        self.ready = False
        self.forked_pids: dict[int, int] = {}
        """The pids by the numbers of the orders."""
        self.exit_codes: dict[int, int] = {}
        """The exit codes by pid."""
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, daemon=True, name="fork server").start()

    def fork(self, order: Mapping[str, Any]) -> int:
        """The pid of a new process."""
        wait_until_sync(lambda: self.ready, "the fork server is ready", describe=self._stderr_path.read_text)
        assert self._process.stdin is not None
        with self._lock:
            number = next(self._numbers)
            self._process.stdin.write(f"{json.dumps({**order, 'number': number})}\n".encode())
            self._process.stdin.flush()
        wait_until_sync(lambda: number in self.forked_pids, "a process is forked", describe=self._stderr_path.read_text)
        return self.forked_pids[number]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._provider.__exit__()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            match json.loads(line):
                case {"ready": _}:
                    self.ready = True
                case {"order": number, "born": pid}:
                    self.exit_codes.pop(pid, None)  # numbers of processes are used again
                    self.forked_pids[number] = pid
                case {"died": pid, "status": status}:
                    self.exit_codes[pid] = status
                case other:
                    raise AssertionError(f"the fork server said {other}")


class AgentProcess(App):
    """One forked process."""

    def __init__(self, forks: ForkServer, name: str, main: str, environment: dict[str, str], folder: Path) -> None:
        self.name = name
        self._forks = forks
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self._out.touch()
        self._err.touch()
        order = {"out": str(self._out), "err": str(self._err), "cwd": str(folder), "environment": environment}
        self.pid = forks.fork({**order, "main": main})

    @property
    def exit_code(self) -> int | None:
        return self._forks.exit_codes.get(self.pid)

    def kill(self) -> float:
        at = time.time()
        self.send(signal.SIGKILL)
        self.wait_for_kill()
        return at

    def ended(self) -> int:
        """Wait until it has ended, in good order or killed; returns its exit code."""
        wait_until_sync(lambda: self.exit_code is not None, f"{self.name} ends", describe=lambda: self)
        assert self.exit_code in (0, -signal.SIGKILL), str(self)
        return self.exit_code

    def result(self) -> dict[str, Any]:
        """What it returned, once it has ended in good order."""
        return self.read_answers()[-1]

    def clean_up(self) -> None:
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                self.send(signal.SIGKILL)
            self.ended()


class AgentTurn(NamedTuple):
    """One turn of one agent."""

    agent: str
    turn: int


class AgentWorld(World):
    """A world with a provider of its own."""

    def __init__(self, folder: Path, forks: ForkServer, script: Script) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.script: dict[str, list[dict[str, Any]]] = json.loads(json.dumps(script))
        self.provider = ProviderServer(self.script, folder / "provider.ledger")
        self._forks = forks

    def __enter__(self) -> AgentWorld:
        self.provider.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.clean_up()
        self.provider.__exit__()

    def fork(self, main: str, **settings: object) -> AgentProcess:
        """Fork a process; ``settings`` go into its environment."""
        environment = {
            "HOLDFAST_URL": self.url,
            "LEDGER": str(self.folder / "ledger"),
            "GATES": str(self.folder),
            **self.provider.address.environment,
            **{name: str(value) for name, value in settings.items()},
        }
        process = AgentProcess(self._forks, f"{len(self.apps) + 1}-{main}", main, environment, self.folder)
        self.apps.append(process)
        return process

    def serve(self, agent: str, **settings: object) -> AgentProcess:
        """Fork a worker for this agent (its name in ``agent_flows``), and wait until runs can be started."""
        process = self.fork("worker", AGENT=agent, **settings)

        def is_serving() -> bool:
            assert process.exit_code is None, str(process)
            if process.pid not in self.live_workers().values():
                return False
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
                return connection.execute("SELECT count(*) FROM workflows").fetchone()[0] > 0

        wait_until_sync(is_serving, f"{process.name} serves", describe=self.describe)
        return process

    # The provider

    def hold(self, agent: str, turn: int, **after: int) -> None:
        """Let the provider be silent about this turn, until it is released; ``after`` so many events of a stream."""
        path = self.folder / f"{agent}-{turn}"
        self.script[agent][turn]["hold"] = {"touch": f"{path}-held", "until": f"{path}-released", **after}

    def wait_until_held(self, agent: str, turn: int) -> None:
        held = self.folder / f"{agent}-{turn}-held"
        wait_until_sync(held.exists, f"turn {turn} of {agent} is asked for", describe=self.describe)

    def release(self, agent: str, turn: int) -> None:
        (self.folder / f"{agent}-{turn}-released").touch()

    def count_turns(self) -> Counter[AgentTurn]:
        """How often each turn has been asked for."""
        counted = count_calls(self.provider.address.ledger)
        return Counter({AgentTurn(*asked): times for asked, times in counted.items()})

    def wait_for_provider(self) -> None:
        """Wait until all is in the provider's ledger that a dead process has sent."""
        # Connections are taken in the order in which they came: when ours has been answered, all were taken.
        with closing(socket.create_connection(("127.0.0.1", self.provider.address.port))) as connection:
            connection.sendall(b"POST /nothing HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 404"
        wait_until_sync(lambda: not self.provider._connections, "the provider has read all", describe=self.describe)

    # What is recorded

    def usage(self) -> list[int]:
        """Calls, tokens in and tokens out, as the store counts them for the runs that no other run has started.

        What it counts by day is the same, at any moment.
        """
        sums = "total(calls), total(input_tokens), total(output_tokens)"
        query = (
            f"SELECT * FROM (SELECT {sums} FROM usages JOIN runs ON run = key WHERE parent = '') "
            f"JOIN (SELECT {sums} FROM spending WHERE model != '')"
        )
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            totals = [int(total) for total in connection.execute(query).fetchone()]
        assert totals[:3] == totals[3:], "what was used is counted by run and by day"
        return totals[:3]

    def expected_usage(self, recorded: Iterable[AgentTurn]) -> list[int]:
        """What these turns use, by the script."""
        used = [self.script[agent][turn]["usage"] for agent, turn in recorded]
        return [len(used), sum(one["input"] for one in used), sum(one["output"] for one in used)]

    def describe(self) -> str:
        calls = "\n".join(f"  {call}" for call in self.provider.address.calls)
        return f"provider:\n{calls}\n{super().describe()}"


def recorded_turns(journals: Mapping[str, Journal]) -> Counter[AgentTurn]:
    """The turns of which the journals have the answer. Several runs of one agent are taken to be one session."""
    scripts = {MODEL_CALL: "", COMPACTION: "~summary"}
    answers: Counter[str] = Counter()
    for journal in journals.values():
        for record in journal.list_records(STEP):
            agent, _, name = record.name.rpartition(": ")  # in a workflow of another name, a step says whose it is
            if name in scripts and record.ok:
                answers[f"{agent or journal.workflow}{scripts[name]}"] += 1
    return Counter(AgentTurn(agent, turn) for agent, turns in answers.items() for turn in range(turns))


class CrashLog:
    """The deaths on the way of runs to their end, each with what was in flight.

    Each agent of the scene's script has one run, or several in one session.
    """

    def __init__(self, world: AgentWorld, *, max_in_flight: int) -> None:
        self.world = world
        self.max_in_flight = max_in_flight
        """How many steps may be in flight together."""
        self.pids: list[int] = []
        self.moments: list[Snapshot] = []
        self.lost: Counter[AgentTurn] = Counter()
        """The turns that were asked for in vain, because nobody lived to record the answer."""

    def record_crash(self, process: AgentProcess) -> Counter[AgentTurn]:
        """A process has died, and nobody lives: hold the journals against what happened. The turns in flight."""
        self.world.wait_for_provider()
        moment, asked = self.world.snapshot(), self.world.count_turns()
        recorded = recorded_turns(moment.journals)
        assert not (recorded + self.lost) - asked, f"recorded, and not asked for: {recorded} {asked}"
        in_flight = asked - recorded - self.lost
        agents = [turn.agent for turn in in_flight.elements()]
        assert len(set(agents)) == len(agents), f"one agent had two calls in flight: {in_flight}"
        if moment.journals:
            assert self.world.usage() == self.world.expected_usage(recorded.elements()), "the store counts otherwise"
        self.pids.append(process.pid)
        self.moments.append(moment)
        self.lost += in_flight
        return in_flight

    def check_end(self) -> Snapshot:
        """All runs have ended: every turn and every effect happened once, and again only if it was in flight."""
        end = self.world.snapshot()
        recorded = recorded_turns(end.journals)
        turns = [AgentTurn(agent, turn) for agent, script in self.world.script.items() for turn in range(len(script))]
        assert recorded == Counter(turns)
        assert self.world.count_turns() == recorded + self.lost
        assert self.world.usage() == self.world.expected_usage(turns)
        for before, after in itertools.pairwise([*self.moments, end]):
            check_crash(before, after, max_in_flight=self.max_in_flight)
        check_end(end, killed=self.pids, silent=["session", "new messages"])
        return end
