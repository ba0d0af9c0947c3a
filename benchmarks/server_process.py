"""`holdfast serve` as a process, of this tree or of another one, and what it costs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
START_TIMEOUT_S = 30.0
"""Seconds that a process has to be there."""


@dataclass(frozen=True)
class ServerCounts:
    """What a counted server did."""

    statement_count: int
    transaction_count: int
    fsync_count: int

    def __sub__(self, earlier: ServerCounts) -> ServerCounts:
        return ServerCounts(
            self.statement_count - earlier.statement_count,
            self.transaction_count - earlier.transaction_count,
            self.fsync_count - earlier.fsync_count,
        )


def _get_cpu_clock(pid: int) -> int:
    """The clock of a process's CPU time on Linux, in nanoseconds: ``clock_getcpuclockid``, which Python lacks.

    ``psutil`` reads ticks of 10 ms, which is as long as 20 requests take.
    """
    return ~pid << 3 | 2


class ServerProcess:
    """A server.

    Args:
        url: its store.
        log: the file for its output.
        tree: the worktree whose code it runs.
        counted: count SQL statements and fsyncs, which makes it slower. For SQLite, and if there is `strace`.
    """

    def __init__(self, url: str, log: Path, tree: Path = ROOT, *, counted: bool = False) -> None:
        self.url = url
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._log = log
        self._tree = tree
        self._is_counted = counted
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        program = ["-m", "holdfast.cli"]
        if self._is_counted:
            program = [str(Path(__file__).parent / "counted_server.py"), str(self._counts_file)]
        command = [sys.executable, *program, "serve", "--url", self.url, "--port", str(self.port)]
        if self._is_counted and shutil.which("strace"):
            # `-D`: the server stays the direct child, so that it gets the signals.
            counter = ["strace", "-D", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(self._trace_file)]
            command = [*counter, *command]
        environment = {**os.environ, "PYTHONPATH": str(self._tree / "src")}
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(
                [*command, "--rate", "100000"], stdout=out, stderr=out, env=environment, cwd=self._tree
            )
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1):
                    return
            except OSError:
                if self._process.poll() is not None:
                    break
                time.sleep(0.02)
        raise RuntimeError(f"the server did not start: {self._log.read_text()[-2000:]}")

    def get_cpu_s(self) -> float:
        """CPU seconds of the process so far, in user code and in the kernel."""
        assert self._process is not None
        return time.clock_gettime(_get_cpu_clock(self._process.pid))

    def get_counts(self) -> ServerCounts:
        """What a counted server has done so far."""
        statement_count, transaction_count = json.loads(self._counts_file.read_text())
        trace = self._trace_file.read_text() if self._trace_file.exists() else ""
        return ServerCounts(statement_count, transaction_count, trace.count("sync("))

    @property
    def _counts_file(self) -> Path:
        return self._log.with_suffix(".counts")

    @property
    def _trace_file(self) -> Path:
        return self._log.with_suffix(".trace")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
