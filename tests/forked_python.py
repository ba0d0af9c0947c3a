"""Python processes that begin at once: forked from one that has imported the library before.

To start an interpreter and import Holdfast takes a third of a second of a processor, with agents a whole one, and
hundreds of tests need a process: for its death, or for what only a process of its own can show. ``start`` is
``subprocess.Popen`` for commands of this interpreter (``[sys.executable, "script.py", ...]``, or ``-m``, or ``-c``),
and ``run`` is ``subprocess.run``. The process is a real one, with the given environment, folder and files, a
``__main__`` and a ``sys.path`` of its own, and ends as every other does; it has only not imported the library itself.
A test of imports, or of how an interpreter starts, has no use for it; and where there is no ``fork``, or an option that
is not known here, the process is started as usual.

There is one process to fork from for each set of options, started when it is first needed. It never has a second
thread, opens nothing, and ends with the process that has started it. An order comes with four descriptors: the three
standard files, and the socket on which it tells which process was born, and later how it ended. This module is that
process's program as well.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import linecache
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

LIBRARY = (
    "asyncio",
    "logging",
    "multiprocessing",
    "sqlite3",
    "holdfast.authoring.runtime",
    "holdfast.cli",
    "holdfast.client.client",
    "holdfast.engine",
    "holdfast.stores.sqlite",
    "holdfast.worker",
)
"""What is imported before the fork, unless told otherwise. None of it has a state that a process could inherit."""
POSTGRES = (*LIBRARY, "holdfast.stores.postgres")
AGENTS = (*LIBRARY, "holdfast.agents.agent", "holdfast.testing", "pydantic_ai")
TEMPORAL = (*LIBRARY, "holdfast.temporal.engine")
SERVER = (*LIBRARY, "holdfast.server.app", "uvicorn")
_DIED = -1 << 31


# Whoever starts processes


def start(args: Sequence[Any], *, library: Sequence[str] = LIBRARY, **options: Any) -> Any:
    """A process; ``options`` are some of those of ``subprocess.Popen``. ``library`` is imported before the fork."""
    words = [os.fspath(word) for word in args]
    flags, rest = _split(words[1:])
    if (
        not hasattr(os, "fork")
        or words[0] != sys.executable
        or (rest[0].startswith("-") and rest[0] not in ("-c", "-m"))
    ):
        return subprocess.Popen(words, **options)
    return ForkedPython(words, flags, rest, tuple(library), **options)


def run(args: Sequence[Any], *, timeout: float = 60, check: bool = False, **options: Any) -> Any:
    """What came of a process, with all that it said."""
    if options.pop("capture_output", False):
        options.update(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = start(args, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.wait()
        raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class ForkedPython:
    """A forked process, to be used as a ``subprocess.Popen``."""

    def __init__(
        self,
        args: list[str],
        flags: list[str],
        words: list[str],
        library: tuple[str, ...],
        *,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
    ) -> None:
        self.args = args
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = (None, None, None)
        self._lock = threading.Lock()
        environment = dict(os.environ if env is None else env)
        read_at_start = {name: value for name, value in environment.items() if name.startswith("PYTHON")}
        read_at_start.pop("PYTHONPATH", None)
        fork_server = _get_fork_server(tuple(flags), tuple(sorted(read_at_start.items())), library)
        given: list[int] = []
        ours: list[int] = []
        for number, (name, wanted) in enumerate({"stdin": stdin, "stdout": stdout, "stderr": stderr}.items()):
            if wanted == subprocess.PIPE:
                reading, writing = os.pipe()
                its, mine = (reading, writing) if number == 0 else (writing, reading)
                mode = ("w" if number == 0 else "r") + ("" if text else "b")
                setattr(self, name, open(mine, mode))  # noqa: SIM115
                given.append(its)
                ours.append(its)
            elif wanted == subprocess.DEVNULL:
                given.append(os.open(os.devnull, os.O_RDWR))
                ours.append(given[-1])
            elif wanted == subprocess.STDOUT:
                given.append(given[1])
            else:
                given.append(number if wanted is None else wanted if isinstance(wanted, int) else wanted.fileno())
        folder = os.fspath(cwd or Path.cwd())
        try:
            self._status_socket = fork_server(given, {"words": words, "folder": folder, "environment": environment})
        finally:
            for descriptor in ours:
                os.close(descriptor)
        self.pid = self._read_status()

    def poll(self) -> int | None:
        """How it ended, or ``None`` while it lives."""
        with self._lock:
            if self.returncode is None and select.select([self._status_socket], [], [], 0)[0]:
                self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """How it ends."""
        if self.returncode is None and not select.select([self._status_socket], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._lock:
            if self.returncode is None:
                self._end()
        assert self.returncode is not None
        return self.returncode

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """What it says until it ends."""
        until = None if timeout is None else time.monotonic() + timeout
        files = [self.stdout, self.stderr]
        with ThreadPoolExecutor(2) as threads:
            reading = [threads.submit(file.read) if file and not file.closed else None for file in files]
            try:
                if self.stdin is not None and not self.stdin.closed:
                    with suppress(BrokenPipeError):
                        if input:
                            self.stdin.write(input)
                        self.stdin.close()
                outputs = [one.result(until and max(0, until - time.monotonic())) if one else None for one in reading]
            except TimeoutError:
                self.kill()
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
        self.wait(until and max(1.0, until - time.monotonic()))
        self._close()
        return outputs[0], outputs[1]

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # a moment ago it did
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> ForkedPython:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self.wait()

    def _close(self) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()

    def _end(self) -> None:
        self.returncode = self._read_status()
        self._status_socket.close()

    def _read_status(self) -> int:
        told = self._status_socket.recv(4, socket.MSG_WAITALL)
        return int.from_bytes(told, "big", signed=True) if told else _DIED  # it was its origin that died


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """The interpreter's options, and the rest of a command."""
    count = 0
    while words[count] in ("-W", "-X"):
        count += 2
    return words[:count], words[count:]


Order = Callable[[list[int], dict[str, Any]], socket.socket]


@cache
def _get_fork_server(
    flags: tuple[str, ...], read_at_start: tuple[tuple[str, str], ...], library: tuple[str, ...]
) -> Order:
    """How to have processes from one that was started with these options."""
    import holdfast

    ours, its = socket.socketpair()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "PYTHON"))}
    usual = {**kept, **dict(read_at_start)}
    # Where a process that was really started would look for modules: the library is there if it is installed.
    asked = [sys.executable, *flags, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    paths = subprocess.run(asked, env=usual, capture_output=True, text=True, check=True).stdout
    with its:
        process = subprocess.Popen(
            [sys.executable, *flags, __file__, str(its.fileno()), paths, *library],
            env={**usual, "PYTHONPATH": str(Path(holdfast.__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )

    def leave() -> None:
        ours.close()
        process.wait()

    atexit.register(leave)
    lock = threading.Lock()

    def order(files: list[int], what: dict[str, Any]) -> socket.socket:
        telling, other = socket.socketpair()
        message = json.dumps(what).encode()
        with other, lock:
            socket.send_fds(ours, [len(message).to_bytes(4, "big")], [*files, other.fileno()])
            ours.sendall(message)
        return telling

    return order


# The process that is forked from


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for each order. This returns in a forked process only: with what it is to do."""
    living: dict[int, socket.socket] = {}
    ended, wake = socket.socketpair()
    for one in (ended, wake):
        one.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
    while True:
        readable, _, _ = select.select([control, ended], [], [])
        if control in readable:
            size, files, _, _ = socket.recv_fds(control, 4, 4)
            if not size:
                os._exit(0)
            what = json.loads(control.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
            assert threading.active_count() == 1, f"a fork must find no other thread: {threading.enumerate()}"
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                for descriptor, file in enumerate(files[:3]):
                    os.dup2(file, descriptor)
                for one in (control, ended, wake, *living.values()):
                    one.close()
                for file in files:
                    os.close(file)
                return what
            living[pid] = socket.socket(fileno=files[3])
            for file in files[:3]:
                os.close(file)
            _send_status(living[pid], pid)
        if ended in readable:
            ended.recv(1 << 16)
        while living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            with living.pop(pid) as telling:
                _send_status(telling, os.waitstatus_to_exitcode(status))


def _send_status(whom: socket.socket, number: int) -> None:
    with suppress(OSError):  # nobody wants to know any more
        whom.sendall(number.to_bytes(4, "big", signed=True))


def _become_child(what: dict[str, Any], paths: list[str]) -> None:
    """Be the process that was ordered, but for what it executes."""
    os.chdir(what["folder"])
    os.environ.clear()
    os.environ.update(what["environment"])
    time.tzset()
    sys.stdin = sys.__stdin__ = _open_standard_file(0, "r", sys.stdin)
    sys.stdout = sys.__stdout__ = _open_standard_file(1, "w", sys.stdout)
    sys.stderr = sys.__stderr__ = _open_standard_file(2, "w", sys.stderr)
    first, *rest = what["words"]
    own = {"-c": "", "-m": what["folder"]}.get(first, os.path.dirname(os.path.abspath(first)))
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [own, *given, *paths]
    sys.argv[:] = ["-c", *rest[1:]] if first == "-c" else rest if first == "-m" else [first, *rest]


def _open_standard_file(descriptor: int, mode: str, like: Any) -> IO[str]:
    at_once = mode == "w" and like.write_through
    file = open(descriptor, mode + "b", 0 if at_once else -1, closefd=False)  # noqa: SIM115
    lines = descriptor == 2 or os.isatty(descriptor)
    return io.TextIOWrapper(file, like.encoding, like.errors, line_buffering=lines, write_through=at_once)


def _execute(words: list[str]) -> None:
    """As the interpreter does it with the words behind its options."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if words[0] == "-m":
        runpy._run_module_as_main(words[1])
        return
    if words[0] == "-c":
        code = compile(words[1], "<string>", "exec")
        if sys.version_info >= (3, 13):  # which shows the lines in tracebacks
            linecache.cache["<string>"] = (len(words[1]), None, words[1].splitlines(True), "<string>")
    else:
        path = os.path.abspath(words[0])
        main.__dict__.update(__file__=path, __cached__=None)
        code = compile(Path(path).read_bytes(), path, "exec")
    exec(code, main.__dict__)


def _main() -> None:
    del os.environ["PYTHONPATH"]
    paths = json.loads(sys.argv[2])
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    what = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become_child(what, paths)
    try:
        _execute(what["words"])
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        sys.exit(1)


if __name__ == "__main__":
    _main()
