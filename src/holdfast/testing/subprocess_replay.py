"""Replay in new Python processes, where hashes, addresses, and the contents of modules differ.

Such a process imports the modules that define the workflows (under the same names, from the same files), replays the
journals in its request, and writes the commands that the code issued to a file. Nothing is executed.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import warnings
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.authoring.registry import get_definition
from holdfast.core.records import RecordKind
from holdfast.services.journal_files import Journal
from holdfast.testing.traced_execution import IssuedCommand
from holdfast.testing.violations import CrashSafetyWarning

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class SubprocessReplay:
    """The replay of one run in another process."""

    issued: tuple[IssuedCommand, ...]
    output: bytes | None
    replay_error: str
    difference: str


@dataclass(frozen=True)
class ReplayProcessResult:
    """The replays of one process."""

    description: str
    replays: Mapping[str, SubprocessReplay]
    """By the run's id."""


def replay_in_subprocesses(journals: Sequence[Journal], count: int) -> list[ReplayProcessResult]:
    """Replay the journals in ``count`` new processes. Warns, and returns fewer results, where that is impossible.

    If a new process cannot import the workflow of the first journal, nothing is replayed.
    """
    if count <= 0:
        return []
    modules: dict[str, str] = {}
    found: list[Journal] = []
    for journal in journals:
        function = get_definition(journal.run.workflow, journal.run.version).function
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        if file is None or "<locals>" in function.__qualname__:
            where = "inside a function" if file is not None else "in no file"
            reason = f"it is defined {where}, where a new process cannot find it: move it to a module"
            _warn_not_replayed(journal.run.workflow, reason)
            if journal is journals[0]:
                return []
        else:
            modules[function.__module__] = os.path.abspath(file)
            found.append(journal)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        processes = [_ReplayProcess(Path(folder), seed, found, modules) for seed in _hash_seeds(count)]
        try:
            return [seen for process in processes if (seen := process.wait_for_result()) is not None]
        finally:
            for process in processes:
                process.stop()


def _hash_seeds(count: int) -> list[int]:
    """Hash seeds that differ from this process's own."""
    own = os.environ.get("PYTHONHASHSEED", "")
    return [seed for seed in range(1, count + 2) if str(seed) != own][:count]


def _warn_not_replayed(workflow: str, reason: str) -> None:
    warnings.warn(
        f"workflow {workflow!r} was not replayed in another Python process ({reason}), so code that depends on the "
        f"order of a set or on what a module remembers may pass. `Runner(replay_processes=0)` leaves this check out.",
        CrashSafetyWarning,
        stacklevel=2,
    )


class _ReplayProcess:
    def __init__(self, folder: Path, seed: int, journals: Sequence[Journal], modules: Mapping[str, str]) -> None:
        self._workflow = journals[0].run.workflow
        self._seed = seed
        self._answer_path = folder / f"answer-{seed}.json"
        request = {
            "modules": modules,
            "path": sys.path,
            "journals": [journal.dumps() for journal in journals],
            "answer": str(self._answer_path),
        }
        request_path = folder / f"request-{seed}.json"
        request_path.write_text(json.dumps(request), encoding="utf-8")
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        # With the test's own path, so that the new process imports the same Holdfast.
        start = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main(sys.argv[1])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, str(request_path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def wait_for_result(self) -> ReplayProcessResult | None:
        try:
            _, stderr = self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            _warn_not_replayed(self._workflow, f"the process did not end within {TIMEOUT_S:g} s")
            return None
        if not self._answer_path.exists():
            lines = stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
            _warn_not_replayed(self._workflow, f"its module cannot be imported there: {lines[-1]}")
            return None
        answer = json.loads(self._answer_path.read_text(encoding="utf-8"))
        return ReplayProcessResult(
            f"a new Python process (PYTHONHASHSEED={self._seed})",
            {run_id: _replay_from_json(data) for run_id, data in answer.items()},
        )

    def stop(self) -> None:
        """Kill the process if it still runs, and close its pipe."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        assert self._process.stderr is not None
        self._process.stderr.close()


def _replay_from_json(data: dict[str, Any]) -> SubprocessReplay:
    return SubprocessReplay(
        issued=tuple(
            IssuedCommand(RecordKind(kind), position, name, _decode_base64(arguments), run_id)
            for kind, position, name, arguments, run_id in data["issued"]
        ),
        output=_decode_base64(data["output"]),
        replay_error=data["fault"],
        difference=data["differs"],
    )


# In the new process


class _ImportFinished(BaseException):
    """Ends the import of a script without ``if __name__ == "__main__"`` where it calls ``crash_everywhere``."""


_is_replay_process = False


def stop_if_replay_process() -> None:
    """Called by ``crash_everywhere``: a process that replays must not start a check of its own."""
    if _is_replay_process:
        raise _ImportFinished


def main(request_file: str) -> None:
    """Replay the journals of the request, and write the answer."""
    global _is_replay_process
    _is_replay_process = True
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    for module, file in request["modules"].items():
        try:
            _import_module(module, file)
        except _ImportFinished:
            pass
    from holdfast.testing.journal_replay import replay

    answer: dict[str, Any] = {}
    for text in request["journals"]:
        journal = Journal.loads(text)
        seen = replay(journal)
        answer[journal.run.id] = {
            "issued": [
                [command.kind.value, command.position, command.name, _encode_base64(command.arguments), command.run_id]
                for command in seen.commands
            ],
            "output": _encode_base64(seen.output_bytes),
            "fault": "" if seen.replay_error is None else str(seen.replay_error),
            "differs": seen.difference,
        }
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def _import_module(name: str, file: str) -> None:
    """Import the module under its name from its file."""
    if name == "__main__":
        name = "__mp_main__"  # like multiprocessing, so that code under `if __name__ == "__main__"` does not run
    elif (found := _find_spec(name)) is not None and found.origin and os.path.samefile(found.origin, file):
        importlib.import_module(name)
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if name == "__mp_main__":
        sys.modules["__main__"] = module
    spec.loader.exec_module(module)


def _find_spec(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _encode_base64(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _decode_base64(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
