"""Kills a real process that runs an agent, at every kind of point, and checks what its successor does again.

An app is a program that runs one agent to its end, with the store of ``HOLDFAST_URL``. It prints the final output in
its last line, as ``RESULT: ...``. Its models are at the local provider server, which counts their requests; its tools
write what they do with ``effects.effect``. Both ledgers are files outside the database.

``run_app`` runs it once without a kill: the *reference*. ``choose_kills`` spreads kills over all points of the
reference: a request in flight, an answer that was just sent, a tool that has started, one that has just ended.
``check_kill`` kills the app there with SIGKILL and starts the same command again until it ends. Then

- the final output is that of the reference;
- the second process has made exactly the model requests whose answers were not recorded when the first one died;
- it has executed exactly the tools that were not recorded, but never a ``once`` tool that had started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from effects import KILL, LEDGER, START
from provider_server import ProviderServer, Script, read_calls

import forked_python
from holdfast import Client
from holdfast.reports.recorded_reply import MODEL_CALL_STEP
from holdfast.reports.types import JournalEntry

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
TIMEOUT_S = 90
REQUEST, ANSWER = "request", "answer"


class Kill(NamedTuple):
    """A point at which the app is killed."""

    kind: str
    """``request``: the provider has received a request, and does not answer; ``answer``: it has just sent the whole
    answer; ``start:NAME`` or ``end:NAME``: a tool has started, or its effect has ended."""
    number: int
    """Which one, from 1."""

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"


@dataclass(frozen=True)
class App:
    """An app under test.

    Args:
        script: its file.
        scripts: what the provider answers: see ``provider_server``.
        once: the tools with the effect ``once``.
        arguments: of its command line.
        environment: more environment variables.
        launcher: what stands before the script in the command line, such as ``-m holdfast.cli run``.
        library: modules that are imported before the process is forked, because importing a framework takes seconds.
            Without any, the process is started as usual.
    """

    script: Path
    scripts: Script
    once: Collection[str] = ()
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    launcher: Sequence[str] = ()
    library: Sequence[str] = ()


class Ending(NamedTuple):
    """How a process of the app ended."""

    returncode: int
    result: str | None
    """What it printed as its final output."""
    log: str
    requests: int
    """The model requests that it made."""
    effects: Counter[str]
    """The lines of its tools in the ledger: ``start:NAME`` and ``end:NAME``."""


class _Provider(ProviderServer):
    """A provider that kills its client at a request."""

    def __init__(self, scripts: Script, ledger: Path, kill: Kill | None) -> None:
        super().__init__(scripts, ledger)
        self.kill = kill
        self.client: Any = None
        self.received = self.answered = 0
        self.counting = threading.Lock()

    def note(self, **entry: Any) -> None:
        super().note(**entry)
        with self.counting:
            if "answered" in entry:
                self.answered += 1
                if self.kill == Kill(ANSWER, self.answered):
                    threading.Timer(0.002, self.kill_client).start()  # the answer is sent now
            else:
                self.received += 1
                if self.kill == Kill(REQUEST, self.received):
                    self.kill_client()

    def kill_client(self) -> None:
        if self.client is not None:
            self.client.send_signal(signal.SIGKILL)


def run_app(app: App, folder: Path, url: str, kill: Kill | None = None) -> Ending:
    """Run one process of the app."""
    folder.mkdir(parents=True, exist_ok=True)
    ledger = folder / f"provider-{uuid4().hex}.ledger"  # of this process's requests alone
    effects = folder / "effects.ledger"
    effects_before = _read_effects(effects)
    with _Provider(app.scripts, ledger, kill) as provider:
        paths = [str(HERE), str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            **provider.address.environment,
            "HOLDFAST_URL": url,
            LEDGER: str(effects),
            KILL: "" if kill is None else str(kill),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            **app.environment,
        }
        library = (*forked_python.POSTGRES, *forked_python.TEMPORAL, *app.library)
        start = partial(forked_python.start, library=library) if app.library else subprocess.Popen
        with start(
            [sys.executable, *app.launcher, str(app.script), *app.arguments],
            env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            provider.client = process
            try:
                log, _ = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                log, _ = process.communicate()
                raise AssertionError(f"{app.script.name} did not end within {TIMEOUT_S} s:\n{log}") from None
    results = [line.removeprefix("RESULT: ") for line in log.splitlines() if line.startswith("RESULT: ")]
    return Ending(
        process.returncode,
        results[-1] if results else None,
        log,
        len(read_calls(ledger)),
        _read_effects(effects) - effects_before,
    )


def make_reference(app: App, folder: Path, url: str) -> Ending:
    """The run without a kill."""
    ending = run_app(app, folder, url)
    assert ending.returncode == 0 or crashed_in_finalization(ending, url), ending.log
    assert ending.result is not None, f"{app.script.name} printed no RESULT:\n{ending.log}"
    return ending


def choose_kills(reference: Ending, count: int) -> list[Kill]:
    """``count`` points of the reference, spread over all of them; all of them if there are fewer."""
    points = [Kill(kind, number + 1) for number in range(reference.requests) for kind in (REQUEST, ANSWER)]
    points += [Kill(name, number + 1) for name, most in sorted(reference.effects.items()) for number in range(most)]
    if count >= len(points):
        return points
    return [points[(2 * index + 1) * len(points) // (2 * count)] for index in range(count)]


def crashed_in_finalization(ending: Ending, url: str) -> bool:
    """Whether all was done, and a thread of Temporal's SDK crashed the interpreter while it ended: its issue 300.

    The result is what an app prints last.
    """
    if ending.result is None or not url.startswith("temporal://"):
        return False
    fatal = "Fatal Python error: PyGILState_Release"
    return ending.returncode == -signal.SIGSEGV or (ending.returncode == -signal.SIGABRT and fatal in ending.log)


def check_kill(app: App, reference: Ending, kill: Kill, folder: Path, url: str) -> None:
    """Kill the app at this point, start it again, and check what it did again."""
    first = run_app(app, folder, url, kill)
    assert first.returncode == -signal.SIGKILL, f"{kill}: the app was not killed, but ended:\n{first.log}"
    began = datetime.now(UTC)
    second = run_app(app, folder, url)
    # Counted afterwards: Temporal may have what the first process has sent, and no worker that writes it down.
    recorded = asyncio.run(_count_recorded(url, began))
    assert second.returncode == 0 or crashed_in_finalization(second, url), (
        f"{kill}: the second process failed:\n{second.log}"
    )
    assert second.result == reference.result, f"{kill}: another output:\n{second.log}"
    expected = reference.requests - recorded[MODEL_CALL_STEP]
    assert second.requests == expected, (
        f"{kill}: {recorded[MODEL_CALL_STEP]} of {reference.requests} answers were recorded, so the second process had "
        f"to make {expected} requests, and made {second.requests}\n{second.log}"
    )
    for name in {line.partition(":")[2] for line in reference.effects}:
        started = f"{START}:{name}"
        missing = reference.effects[started] - recorded[name]
        executed = second.effects[started]
        why = (
            f"{kill}: {recorded[name]} of {reference.effects[started]} calls of {name} were recorded, so the second "
            f"process had to make {missing}, and made {executed}\n{second.log}"
        )
        if name in app.once:  # what was about to start is unknown, and not executed again
            assert executed <= missing, why
            assert first.effects[started] + executed <= reference.effects[started], f"{kill}: {name} ran twice"
        else:
            assert executed == missing, why


async def _count_recorded(url: str, before: datetime) -> Counter[str]:
    """The successful steps that were recorded before this time, by name."""
    counts: Counter[str] = Counter()
    async with Client(url) as client:
        for run in await client.list(limit=100):
            report = await client.handle(run.id).describe(limit=None)
            counts.update(entry.name for entry in report.journal if _is_recorded(entry, before))
    return counts


def _is_recorded(entry: JournalEntry, before: datetime) -> bool:
    return entry.ok and entry.kind == "step" and entry.recorded_at < before


def _read_effects(ledger: Path) -> Counter[str]:
    return Counter(ledger.read_text().split()) if ledger.exists() else Counter()


@contextlib.contextmanager
def open_store(store: str, folder: Path) -> Iterator[str]:
    """The URL of a new store: ``sqlite``, ``postgres``, or ``temporal``."""
    folder.mkdir(parents=True, exist_ok=True)
    if store == "sqlite":
        yield f"sqlite:///{folder / 'runs.db'}"
    elif store == "postgres":
        import postgres_server

        with postgres_server.database() as url:
            yield url
    else:
        import temporal_server

        yield f"{temporal_server.fresh_url()}?memory=sqlite:///{folder / 'memory.db'}"
