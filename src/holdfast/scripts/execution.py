"""Executes a script in the main thread, as a part of its run.

Until the script makes its first recorded call, nothing of the engine is imported.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.engine.process_program import set_process_program
from holdfast.errors import RunParked
from holdfast.integrations.http import install
from holdfast.scripts.script import Script, ScriptStopped, join_threads, report

if TYPE_CHECKING:
    from holdfast.engine.program_run import ProgramRun
    from holdfast.scripts.script_run import ScriptRun


def run_script(
    script: Script, run_id: str | None, patterns: Sequence[str], url: str | None, *, passes_over_changes: bool
) -> int:
    """Execute the script, and return its exit code."""
    opened: list[ScriptRun] = []
    opening = threading.Lock()

    def find_program() -> ProgramRun:
        from holdfast.scripts.script_run import ScriptRun

        with opening:
            if not opened:
                opened.append(ScriptRun(script, run_id, url, passes_over_changes=passes_over_changes))
        return opened[0].get_program_run()

    install(patterns)
    set_process_program(find_program)
    error: BaseException | None = None
    code = 0
    try:
        script.execute()
        join_threads([thread for run in opened for thread in run.threads])
    except ScriptStopped as stopped:
        report(str(stopped))
        return 1
    except RunParked as parked:
        report(str(parked))
        code = 1
    except SystemExit as exit:
        code = _get_exit_code(exit)
        error = RuntimeError(f"the script exited with code {code}") if code else None
    except KeyboardInterrupt as interrupt:
        code, error = 130, interrupt
    except BaseException as raised:
        trimmed = script.trim_traceback(raised, __file__)
        sys.excepthook(type(raised), raised.with_traceback(trimmed), trimmed)
        code, error = 1, raised
    set_process_program(None)
    for run in opened:
        run.finish(error)
    return code


def _get_exit_code(exit: SystemExit) -> int:
    if exit.code is None:
        return 0
    if isinstance(exit.code, int):
        return exit.code
    print(exit.code, file=sys.stderr)  # noqa: T201  # as Python does
    return 1
