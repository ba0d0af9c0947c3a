"""A user's folder with an app in it, and the real command, run in it as a process."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forked_python
import holdfast
from holdfast.cli import main

SOURCE = str(Path(holdfast.__file__).parents[1])

APP = """
import asyncio
import os
import time

from holdfast import current_step, step, wait_for_signal, workflow


@step
async def extract(customer: str, api_key: str = "k-123") -> list[int]:
    return [1, 2, 3]


@step(retries=2, backoff=0.01)
async def load(row: int) -> int:
    if current_step().attempt < 2:
        raise ConnectionError("not yet")
    return row


@step
def check(customer: str) -> None:
    if customer == "bad" and not os.path.exists("mended"):
        raise ValueError("[red]no such[/red] customer \\x1b[31m")


@workflow(id="etl-{customer}", tags=["nightly"])
async def etl(customer: str) -> dict[str, int]:
    rows = await extract(customer, "k-456")
    await asyncio.sleep(0.01)
    parts = await asyncio.gather(*[load(row) for row in rows])
    await check(customer)
    return {"sum": sum(parts)}


@workflow(id="order-{number}")
async def order(number: int) -> dict[str, object]:
    return {"approved": await wait_for_signal("approved")}


@step
def crash() -> None:
    os._exit(9)


@workflow(id="crasher")
async def crasher() -> None:
    await crash()


@step
def copy() -> None:
    current_step().heartbeat({"rows": 3})
    time.sleep(60)


@workflow(id="copier")
async def copier() -> None:
    await extract("acme")
    await copy()


@step(effect="once")
def pay() -> None:
    os._exit(9)


@workflow(id="payer")
async def payer() -> None:
    await extract("acme")
    await pay()


@step
def release(room: str) -> None:
    pass


@step(compensate=release)
def reserve(city: str) -> str:
    return f"room in {city}"


@workflow(id="trip-{name}")
async def trip(name: str) -> str:
    room = await reserve("rome")
    await check(name)
    return room


@workflow(id="{family}-leaf-{number}")
async def leaf(family: str, number: int) -> int:
    await check("bad" if number == 2 and family != "many" else "good")
    return number


@workflow(id="{name}")
async def family(name: str, count: int) -> int:
    await nap.start(3600)
    await nap.start(0)
    leaves = [leaf(name, number) for number in range(count)]
    if name == "many":
        return sum(await asyncio.gather(*leaves))
    return sum([await one for one in leaves])  # one after the other: those before the one that fails have ended


@step
async def doze(seconds: float) -> None:
    await asyncio.sleep(seconds)


@workflow(id="nap-{seconds}")
async def nap(seconds: float) -> str:
    await doze(0)
    await doze(seconds) if seconds == 60 else await asyncio.sleep(seconds)
    return "awake"


@step
async def fill(size: int) -> str:
    return "y" * size


@workflow(id="large")
async def large() -> str:
    return await fill(3_000_000)


@step(effect="once")
def letter() -> str:
    raise ConnectionError("the printer is off")


@workflow(id="mailer")
async def mailer() -> None:
    await letter()
"""

SEED = """
import asyncio
from app import etl, order
from holdfast import Client, RunFailed

async def main():
    await etl("acme")
    try:
        await etl("bad")
    except RunFailed:
        pass
    await order.start(7)
    await asyncio.sleep(1.6)  # until it is parked

asyncio.run(main())
"""

SEED_FAMILIES = """
import asyncio
from app import *
from holdfast import RunFailed

async def main():
    for call in (trip("bad"), family("small", 2), family("broken", 3), family("many", 20), large(), mailer()):
        try:
            await call
        except RunFailed:
            pass

asyncio.run(main())
"""


@dataclass(frozen=True)
class Outcome:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Project:
    """A folder with an ``app.py``, and a database in it."""

    folder: Path

    @property
    def database(self) -> Path:
        return self.folder / "runs.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.database}"

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": SOURCE, "HOLDFAST_URL": self.url, "COLUMNS": "80", **more}

    def python(self, *args: str, is_fresh: bool = False) -> Outcome:
        """``is_fresh``: in an interpreter that has imported nothing before."""
        run = subprocess.run if is_fresh else forked_python.run
        done = run(
            [sys.executable, *args],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def __call__(self, *args: str) -> Outcome:
        """``holdfast ...``"""
        return self.python("-m", "holdfast.cli", *args)

    def here(self, *args: str) -> Outcome:
        """``holdfast ...`` in this process: much quicker, and the same to a command that takes nothing from it."""
        out, err = io.StringIO(), io.StringIO()
        before = dict(os.environ)
        os.environ.update(HOLDFAST_URL=self.url, COLUMNS="80")
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = main(list(args), prog_name="holdfast", standalone_mode=True)
        except SystemExit as stop:
            code = stop.code
        finally:
            os.environ.clear()
            os.environ.update(before)
        return Outcome(int(code or 0), out.getvalue(), err.getvalue())

    def on_a_terminal(self, *args: str) -> str:
        """What ``holdfast ...`` writes to a terminal of 80 columns."""
        return self.python_on_a_terminal("-m", "holdfast.cli", *args)

    def python_on_a_terminal(self, *args: str) -> str:
        """What ``python ...`` writes to a terminal of 80 columns."""
        reading, writing = pty.openpty()
        process = forked_python.start(
            [sys.executable, *args],
            cwd=self.folder,
            env=self.environment(TERM="xterm-256color"),
            stdin=writing,
            stdout=writing,
            stderr=writing,
        )
        os.close(writing)
        parts: list[bytes] = []
        try:
            while part := os.read(reading, 65536):
                parts.append(part)
        except OSError:
            pass  # the other end is closed
        os.close(reading)
        assert process.wait(timeout=30) == 0
        return b"".join(parts).decode().replace("\r\n", "\n")

    def start(self, workflow: str, *args: Any) -> None:
        """Start a run of a workflow that some worker has announced, with nobody there to execute it."""
        code = f"from holdfast import Client; Client().start_sync({workflow!r}, *{args!r})"
        done = self.python("-c", code)
        assert done.code == 0, done.err

    def worker(self, target: str, *options: str) -> subprocess.Popen[str]:
        return forked_python.start(
            [sys.executable, "-m", "holdfast.cli", "worker", target, *options],
            cwd=self.folder,
            env=self.environment(),
            stderr=subprocess.PIPE,
            text=True,
        )


def make_project(folder: Path) -> Project:
    folder.mkdir(exist_ok=True)
    (folder / "app.py").write_text(APP)
    return Project(folder)


def seed(project: Project, code: str = SEED) -> None:
    done = project.python("-c", code)
    assert done.code == 0, done.err


def get_checks(done: Outcome) -> dict[str, dict[str, str]]:
    """The checks of ``holdfast doctor --json``, by name."""
    return {check["name"]: check for check in done.json["checks"]}
