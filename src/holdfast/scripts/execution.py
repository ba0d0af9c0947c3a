"""Executes a script in the main thread, as a part of its run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast.errors import RunParked
from holdfast.scripts.script import Script, join_threads
from holdfast.scripts.script_run import ScriptRun, ScriptStopped, report


def run_script(
    script: Script, run_id: str | None, patterns: Sequence[str], url: str | None, *, passes_over_changes: bool
) -> int:
    """Execute the script, and return its exit code."""
    from holdfast.integrations.http import install

    install(patterns)
    run = ScriptRun(script, run_id, url, passes_over_changes=passes_over_changes)
    run.install()
    error: BaseException | None = None
    code = 0
    try:
        script.execute()
        join_threads(run.threads)
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
    run.finish(error)
    return code


def _get_exit_code(exit: SystemExit) -> int:
    if exit.code is None:
        return 0
    if isinstance(exit.code, int):
        return exit.code
    print(exit.code, file=sys.stderr)  # noqa: T201  # as Python does
    return 1
