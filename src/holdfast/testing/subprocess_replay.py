"""Replay in new Python processes, where hashes, addresses and the contents of modules are others.

Such a process imports the modules that define the workflows (under the same names, from the same files), replays the
journals that it is handed, and writes down what the code asked for. Nothing is executed.
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

from holdfast.authoring.registry import definition_of
from holdfast.core.records import Kind
from holdfast.services.journal_files import Journal
from holdfast.testing.traced_execution import Issued
from holdfast.testing.violations import CrashSafetyWarning

PATIENCE = 120.0


@dataclass(frozen=True)
class ReplayElsewhere:
    """What the code of one run did in another process."""

    issued: tuple[Issued, ...]
    output: bytes | None
    fault: str
    differs: str


@dataclass(frozen=True)
class OtherProcess:
    """A process that has replayed."""

    description: str
    replays: Mapping[str, ReplayElsewhere]
    """By the run's id."""


def replay_elsewhere(journals: Sequence[Journal], count: int) -> list[OtherProcess]:
    """Replay the journals in ``count`` new processes. Fewer come back, with a warning, where that cannot be done.

    The first journal is the one that matters: where its workflow cannot be found, none is replayed.
    """
    if count <= 0:
        return []
    modules: dict[str, str] = {}
    found: list[Journal] = []
    for journal in journals:
        function = definition_of(journal.run.workflow, journal.run.version).function
        file = getattr(sys.modules.get(function.__module__), "__file__", None)
        if file is None or "<locals>" in function.__qualname__:
            where = "inside a function" if file is not None else "in no file"
            reason = f"it is defined {where}, where a new process cannot find it: move it to a module"
            _warn(journal.run.workflow, reason)
            if journal is journals[0]:
                return []
        else:
            modules[function.__module__] = os.path.abspath(file)
            found.append(journal)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        processes = [_Process(Path(folder), seed, found, modules) for seed in _hash_seeds(count)]
        try:
            return [seen for process in processes if (seen := process.seen()) is not None]
        finally:
            for process in processes:
                process.stop()


def _hash_seeds(count: int) -> list[int]:
    """Seeds for the hashes of strings that are not this process's own."""
    own = os.environ.get("PYTHONHASHSEED", "")
    return [seed for seed in range(1, count + 2) if str(seed) != own][:count]


def _warn(workflow: str, reason: str) -> None:
    warnings.warn(
        f"workflow {workflow!r} was not replayed in another Python process ({reason}), so code that depends on the "
        f"order of a set or on what a module remembers may pass. `Runner(processes=0)` leaves this check out.",
        CrashSafetyWarning,
        stacklevel=2,
    )


class _Process:
    def __init__(self, folder: Path, seed: int, journals: Sequence[Journal], modules: Mapping[str, str]) -> None:
        self._workflow = journals[0].run.workflow
        self._seed = seed
        self._answer = folder / f"answer-{seed}.json"
        request = {
            "modules": modules,
            "path": sys.path,
            "journals": [journal.dumps() for journal in journals],
            "answer": str(self._answer),
        }
        asked = folder / f"request-{seed}.json"
        asked.write_text(json.dumps(request), encoding="utf-8")
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        # Our own package comes first: whatever the test runs with is what the new process must run with.
        start = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main(sys.argv[1])"
        self._process = subprocess.Popen(
            [sys.executable, "-c", start, str(asked)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def seen(self) -> OtherProcess | None:
        try:
            _, complaints = self._process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.stop()
            _warn(self._workflow, f"the process did not end within {PATIENCE:g} s")
            return None
        if not self._answer.exists():
            said = complaints.decode("utf-8", "replace").strip().splitlines()
            _warn(self._workflow, f"its module cannot be imported there: {said[-1] if said else 'it says nothing'}")
            return None
        answer = json.loads(self._answer.read_text(encoding="utf-8"))
        return OtherProcess(
            f"a new Python process (PYTHONHASHSEED={self._seed})",
            {run_id: _read_replay(told) for run_id, told in answer.items()},
        )

    def stop(self) -> None:
        """See to it that nothing is left of the process, whatever became of the others."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        assert self._process.stderr is not None
        self._process.stderr.close()


def _read_replay(told: dict[str, Any]) -> ReplayElsewhere:
    return ReplayElsewhere(
        issued=tuple(
            Issued(Kind(kind), position, name, _decoded(arguments), run_id)
            for kind, position, name, arguments, run_id in told["issued"]
        ),
        output=_decoded(told["output"]),
        fault=told["fault"],
        differs=told["differs"],
    )


# In the new process


class _Imported(BaseException):
    """A script without ``if __name__ == "__main__"`` has come to where its parent is: what is needed is defined."""


_is_elsewhere = False


def stop_if_elsewhere() -> None:
    """Called where a check begins: such a process is there to replay, and must not begin a check of its own."""
    if _is_elsewhere:
        raise _Imported


def main(request_file: str) -> None:
    """Replay what the request says, and write the answer."""
    global _is_elsewhere
    _is_elsewhere = True
    request = json.loads(Path(request_file).read_text(encoding="utf-8"))
    sys.path[:] = request["path"]
    for module, file in request["modules"].items():
        try:
            _import(module, file)
        except _Imported:
            pass
    from holdfast.testing.journal_replay import replay

    answer: dict[str, Any] = {}
    for text in request["journals"]:
        journal = Journal.loads(text)
        seen = replay(journal)
        answer[journal.run.id] = {
            "issued": [
                [one.kind.value, one.position, one.name, _encoded(one.arguments), one.run_id] for one in seen.issued
            ],
            "output": _encoded(seen.output_bytes),
            "fault": "" if seen.fault is None else str(seen.fault),
            "differs": seen.differs,
        }
    Path(request["answer"]).write_text(json.dumps(answer), encoding="utf-8")


def _import(name: str, file: str) -> None:
    """Load the module under its own name, from its own file."""
    if name == "__main__":
        name = "__mp_main__"  # as multiprocessing does it: the part under `if __name__ == "__main__"` does not run
    elif (found := _find(name)) is not None and found.origin and os.path.samefile(found.origin, file):
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


def _find(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _encoded(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
