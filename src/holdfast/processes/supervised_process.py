"""A process that a supervisor has started: it reports how it is, and stops if the supervisor dies.

The two are connected by a pair of sockets. Every ``REPORT_INTERVAL_S`` this process writes a line: why it is not ready,
or nothing if it is. The supervisor writes nothing, so this end becomes readable only when the other one is closed: the
supervisor was killed. Then this process stops as for SIGTERM. It must not continue without a supervisor, because a
service manager starts another one, with workers of its own.

A second pair of sockets is for the supervisor's questions (``questions``).
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterable

from holdfast.processes.questions import answer_questions
from holdfast.processes.readiness import STOPPING, Readiness

log = logging.getLogger("holdfast.supervisor")

FILES_VARIABLE = "HOLDFAST_SUPERVISED_FDS"
"""The environment variable with the inherited file descriptors: the two connections to the supervisor, then sockets."""
REPORT_INTERVAL_S = 0.2


class SupervisedProcess:
    """This process, as its supervisor sees it."""

    def __init__(self, connection: socket.socket, questions: socket.socket, sockets: Iterable[socket.socket]) -> None:
        self.sockets = list(sockets)
        """The listening sockets that the supervisor has opened."""
        self._connection = connection
        self._questions = questions
        self._supervisor_pid = os.getppid()

    @classmethod
    def from_environment(cls) -> SupervisedProcess | None:
        """This process if a supervisor has started it. Programs that this process starts do not inherit any of it."""
        descriptors = [int(number) for number in os.environ.pop(FILES_VARIABLE, "").split()]
        if not descriptors:
            return None
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        connection, questions, *sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        return cls(connection, questions, sockets)

    def start_reporting(self, readiness: Readiness) -> None:
        """Report to the supervisor from now on, until this process ends."""
        self._connection.setblocking(False)
        threading.Thread(target=self._report, args=(readiness,), name="holdfast-supervised", daemon=True).start()

    def start_answering(self, answer: Callable[[], bytes]) -> None:
        """Answer the supervisor's questions from now on."""
        arguments = self._questions, answer
        threading.Thread(target=answer_questions, args=arguments, name="holdfast-answers", daemon=True).start()

    def _report(self, readiness: Readiness) -> None:
        while not select.select([self._connection], [], [], REPORT_INTERVAL_S)[0]:
            try:
                self._connection.send(f"{readiness.get_reason()}\n".encode())
            except BlockingIOError:
                pass  # the supervisor is suspended
            except OSError:
                break
        if readiness.get_reason() != STOPPING:  # else this would be its second signal
            log.warning("the supervisor (pid %d) has died: this process stops", self._supervisor_pid)
            os.kill(os.getpid(), signal.SIGTERM)
