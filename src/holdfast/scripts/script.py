"""A Python program and its arguments, and how it is executed."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType

from holdfast.errors import UsageError


@dataclass(frozen=True)
class Script:
    """A file, or a module (``python -m``), with its arguments."""

    target: str
    arguments: tuple[str, ...]
    is_module: bool = False

    @property
    def name(self) -> str:
        """The name of its runs' workflow."""
        return self.target if self.is_module else Path(self.target).stem

    @property
    def digest(self) -> str:
        """Identifies the command: the program, its arguments, and the folder in which it runs."""
        target = self.target if self.is_module else os.path.realpath(self.target)
        command = json.dumps([target, self.arguments, self.is_module, os.getcwd()])
        return hashlib.blake2b(command.encode(), digest_size=6).hexdigest()

    def check(self) -> None:
        """Raise ``UsageError`` if there is no such file."""
        if not self.is_module and not os.path.isfile(self.target):
            raise UsageError(
                f"there is no file {self.target!r}. To start a run of a workflow, use `holdfast start {self.target}`"
            )

    def execute(self) -> None:
        """Execute it in this thread, as ``python`` would. Raises what it raises."""
        if self.is_module:
            sys.argv = [self.target, *self.arguments]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)
            return
        sys.argv = [self.target, *self.arguments]
        sys.path.insert(0, os.path.dirname(os.path.realpath(self.target)))
        # Not runpy, which empties the module when the script has ended: threads and `atexit` may still need it.
        module = ModuleType("__main__")
        module.__dict__.update(__file__=self.target, __builtins__=__builtins__, __cached__=None)
        sys.modules["__main__"] = module
        with open(self.target, "rb") as file:
            code = compile(file.read(), self.target, "exec")
        exec(code, module.__dict__)

    def trim_traceback(self, error: BaseException, execution_file: str) -> TracebackType | None:
        """The part of a traceback that begins in the program; ``execution_file`` calls ``execute``."""
        own = {__file__, execution_file, runpy.__file__, "<frozen runpy>"}
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename in own and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback


def join_threads(ours: Sequence[threading.Thread]) -> None:
    """Wait for the program's own threads, as Python does at its end."""
    while threads := [
        thread
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.current_thread() and thread not in ours
    ]:
        for thread in threads:
            thread.join()


class ScriptStopped(SystemExit):
    """Ends a script whose run cannot continue; the message is printed."""


def report(text: str) -> None:
    """Print a line about the run."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)  # noqa: T201  # for the person who started it
