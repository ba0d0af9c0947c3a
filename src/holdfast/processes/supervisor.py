"""Starts several processes of the same command, and starts another one when one dies.

**Starting.** The first process starts alone. If it ends before it was ready, starting more of them would only repeat
its error: the supervisor ends, with its exit code. Once it is ready, the others start.

**Deaths.** A process that dies is replaced at once. If its successors die soon as well, each waits longer than the one
before (``restart_backoff``). If no process is ready and the last ``MAX_FAILED_STARTS`` were not ready before they died,
the supervisor ends with an error, so that its own service manager notices. A process that reports nothing for
``max_silence_s`` is killed: native code holds the interpreter's lock, or it was stopped.

**Stopping.** SIGTERM and SIGINT are passed on, and the supervisor waits until all processes have ended. They have a
grace period of their own. The supervisor waits a moment before it passes the first signal on, because a service manager
may have sent it to every process: one that reports that it is stopping does not get it twice. A second signal is passed
on at least as long after the first, because two pending signals of the same number are one. Each process has a
process group of its own, so that Ctrl-C in a terminal reaches only the supervisor.

**In a container** the supervisor is often process 1, to which the kernel gives orphans of all others. So it waits for
all of its children, also for those that it has not started.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType

from holdfast.errors import UsageError
from holdfast.processes.questions import QuestionLine
from holdfast.processes.readiness import STARTING, STOPPING
from holdfast.processes.restart_backoff import FIRST_DELAY_S, RestartBackoff
from holdfast.processes.supervised_process import FILES_VARIABLE

log = logging.getLogger("holdfast.supervisor")

MAX_FAILED_STARTS = 5
MIN_SILENCE_S = 5.0
"""Seconds without a report that say nothing: the machine may be busy."""
START_SILENCE_S = 60.0
"""Seconds that a process may take until its first report, which it makes when Holdfast is imported."""
PASS_ON_DELAY_S = 0.5
"""Seconds before the first stop signal is passed on: twice the interval of reports."""
_MAX_WAIT_S = 1.0
_NEVER = float("inf")


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code; minus the number of the signal if a signal killed it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


class _Slot:
    """The place of one process, and of its successors."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket | None = None
        self.questions: QuestionLine | None = None
        self.backoff = RestartBackoff()
        self.start_at = _NEVER
        """When the next process is to be started, if there is none."""
        self.started_at = 0.0
        self.reported_at = 0.0
        self.reason = STARTING
        """Why the process is not ready, as it last reported; empty if it is."""
        self.was_ready = False

    @property
    def is_ready(self) -> bool:
        return self.process is not None and not self.reason

    def close_connections(self) -> None:
        for connection in (self.connection, self.questions):
            if connection is not None:
                connection.close()
        self.connection = self.questions = None


class Supervisor:
    """Keeps ``count`` processes of a command running until SIGTERM or SIGINT.

    Args:
        arguments: of the ``holdfast`` command.
        count: how many processes.
        kind: what log lines call such a process.
        sockets: listening sockets that all processes inherit.
        max_silence_s: seconds without a report after which a process is killed; at least ``MIN_SILENCE_S``.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        count: int,
        *,
        kind: str,
        sockets: Sequence[socket.socket] = (),
        max_silence_s: float,
    ) -> None:
        if sys.platform == "win32":
            raise UsageError("--processes needs signals that Windows does not have: start several commands instead")
        self._command = [sys.executable, "-m", "holdfast.cli", *arguments]
        self._kind = kind
        self._sockets = sockets
        self._max_silence_s = max(max_silence_s, MIN_SILENCE_S)
        self._slots = [_Slot() for _ in range(count)]
        self._stop_signals: list[signal.Signals] = []
        """The stop signals so far that are not handled yet."""
        self._is_stopping = False
        self._pass_on_at = _NEVER
        """When the first stop signal is to be passed on."""
        self._passed_on_at = 0.0
        self._pass_second_on_at = _NEVER
        self._failed_starts = 0
        """Processes in a row that ended before they were ready."""
        self._was_any_ready = False
        self._start_count = 0
        self._exit_code = 0

    def get_not_ready_reason(self) -> str:
        """Why this service is not ready; empty if a process is ready. Called from any thread."""
        if self._is_stopping:
            return STOPPING
        return "" if any(slot.is_ready for slot in self._slots) else f"no {self._kind} process is ready"

    def ask_processes(self) -> dict[int, bytes | None]:
        """The answer of each living process, by its number; ``None``: it does not answer. For one thread at a time."""
        lines = [line for slot in self._slots if (line := slot.questions) is not None]
        return {line.process_number: line.ask() for line in lines}

    def run(self) -> int:
        """Start the processes, and supervise them until a signal stops them. Returns the exit code."""
        reader, writer = socket.socketpair()
        for end in (reader, writer):
            end.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_child_signal)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        log.info("supervisor (pid %d) starts %d %s processes", os.getpid(), len(self._slots), self._kind)
        self._slots[0].start_at = 0.0
        while not self._is_stopping or any(slot.process is not None for slot in self._slots):
            self._wait(reader)
            self._reap()
            self._handle_stop_signals()
            self._kill_silent()
            self._start_due()
        log.info("all %s processes have ended, and so does the supervisor", self._kind)
        return self._exit_code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop_signals.append(signal.Signals(number))

    def _on_child_signal(self, number: int, frame: FrameType | None) -> None:
        """The signal has woken ``select``, which is all that it is needed for."""

    def _wait(self, wakeups: socket.socket) -> None:
        """Wait for a signal, the end of a process, a report, or the next thing that is due."""
        now = time.monotonic()
        due_at = min(self._pass_on_at, self._pass_second_on_at, *(slot.start_at for slot in self._slots))
        connections = {slot.connection: slot for slot in self._slots if slot.connection is not None}
        timeout_s = max(0.0, min(due_at - now, _MAX_WAIT_S))
        readable, _, _ = select.select([wakeups, *connections], [], [], timeout_s)
        for end in readable:
            data = end.recv(65536)
            if end is not wakeups:
                self._handle_report(connections[end], data)

    def _handle_report(self, slot: _Slot, data: bytes) -> None:
        if not data:
            if slot.connection is not None:
                slot.connection.close()  # the process is about to end
                slot.connection = None
            return
        slot.reported_at = time.monotonic()
        slot.reason = data.decode().removesuffix("\n").rpartition("\n")[2]
        if slot.process is not None and slot.is_ready and not slot.was_ready:
            self._handle_first_ready(slot, slot.process.pid)

    def _handle_first_ready(self, slot: _Slot, pid: int) -> None:
        log.info("%s process %d is ready", self._kind, pid)
        slot.was_ready = True
        self._failed_starts = 0
        if not self._was_any_ready:
            self._was_any_ready = True
            for other in self._slots:
                if other.process is None and not self._is_stopping:
                    other.start_at = 0.0

    # The processes

    def _start_due(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            if slot.process is None and now >= slot.start_at:
                self._start(slot)

    def _start(self, slot: _Slot) -> None:
        (ours, theirs), (questions, answers) = socket.socketpair(), socket.socketpair()
        ours.setblocking(False)
        inherited = [theirs.fileno(), answers.fileno(), *(listening.fileno() for listening in self._sockets)]
        try:
            slot.process = subprocess.Popen(
                self._command,
                env={**os.environ, FILES_VARIABLE: " ".join(map(str, inherited))},
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                process_group=0,
            )
        except OSError as error:
            delay_s = slot.backoff.next_delay_s(0) or FIRST_DELAY_S
            slot.start_at = time.monotonic() + delay_s
            log.error("a %s process could not be started, and is tried again in %g s: %s", self._kind, delay_s, error)
            ours.close()
            questions.close()
            return
        finally:
            theirs.close()
            answers.close()
        self._start_count += 1
        slot.connection, slot.questions = ours, QuestionLine(self._start_count, questions)
        slot.start_at = _NEVER
        slot.started_at = slot.reported_at = time.monotonic()
        slot.reason, slot.was_ready = STARTING, False

    def _reap(self) -> None:
        """Learn which children have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for slot in self._slots:
                if slot.process is not None and slot.process.pid == pid:
                    slot.process.returncode = os.waitstatus_to_exitcode(status)
                    self._handle_exit(slot, slot.process.returncode)

    def _handle_exit(self, slot: _Slot, code: int) -> None:
        assert slot.process is not None
        pid, lived_s = slot.process.pid, time.monotonic() - slot.started_at
        slot.process = None
        slot.close_connections()
        ended = f"{self._kind} process {pid} {describe_exit(code)} after {lived_s:.1f} s"
        if self._is_stopping:
            log.info("%s", ended)
            # SIGTERM kills a process that is still starting, or that has handed over and is about to exit.
            if code not in (0, -signal.SIGTERM):
                self._exit_code = self._exit_code or 1
            return
        if not slot.was_ready:
            self._failed_starts += 1
        max_failed_starts = MAX_FAILED_STARTS if self._was_any_ready else 1
        if self._failed_starts >= max_failed_starts and not any(other.is_ready for other in self._slots):
            log.error("%s, before it was ready, and no process is ready: the supervisor stops", ended)
            self._exit_code = code if code > 0 else 1
            self._begin_stop()
            return
        delay_s = slot.backoff.next_delay_s(lived_s)
        slot.start_at = time.monotonic() + delay_s
        when = f"in {delay_s:g} s (death {slot.backoff.death_count} in a row)" if delay_s else "now"
        log.warning("%s: another one starts %s", ended, when)

    def _kill_silent(self) -> None:
        now = time.monotonic()
        for slot in self._slots:
            has_reported = slot.reported_at > slot.started_at
            max_silence_s = self._max_silence_s if has_reported else max(self._max_silence_s, START_SILENCE_S)
            if slot.process is not None and now - slot.reported_at > max_silence_s:
                pid = slot.process.pid
                log.error("%s process %d has not reported for %g s: it is killed", self._kind, pid, max_silence_s)
                os.kill(pid, signal.SIGKILL)
                slot.reported_at = now

    # Stopping

    def _handle_stop_signals(self) -> None:
        now = time.monotonic()
        while self._stop_signals:
            number = self._stop_signals.pop(0)
            if not self._is_stopping:
                log.info("%s: the %s processes finish what they are doing, and stop", number.name, self._kind)
                self._begin_stop()
            else:
                log.info("%s again: the %s processes stop at once", number.name, self._kind)
                if self._pass_on_at != _NEVER:
                    self._pass_on_at = self._passed_on_at = now
                self._pass_second_on_at = max(now, self._passed_on_at + PASS_ON_DELAY_S)
        if now >= self._pass_on_at:
            self._pass_on_at, self._passed_on_at = _NEVER, now
            self._terminate([slot for slot in self._slots if slot.reason != STOPPING])
        if now >= self._pass_second_on_at:
            self._pass_second_on_at = _NEVER
            self._terminate(self._slots)

    def _begin_stop(self) -> None:
        self._is_stopping = True
        self._pass_on_at = time.monotonic() + PASS_ON_DELAY_S
        for slot in self._slots:
            slot.start_at = _NEVER

    def _terminate(self, slots: Sequence[_Slot]) -> None:
        for slot in slots:
            if slot.process is not None:
                os.kill(slot.process.pid, signal.SIGTERM)  # it exists until ``_reap`` has learned of its end
