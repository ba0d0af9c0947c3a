"""A server and listeners as real processes, and a ledger of what the listeners' steps did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2

import forked_python
from free_ports import free_port
from holdfast import Client
from waits import wait_until_sync

APPS = Path(__file__).parent / "apps"


class Platform:
    """A server on a port of its own, over a store in a folder, and the processes that listen to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self.client = Client(self.url)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.server = self.start_server()

    def start_server(self) -> subprocess.Popen[bytes]:
        """Start it, and wait until it answers."""
        store = f"sqlite:///{self.folder}/runs.db"
        self.server = self.start([sys.executable, APPS / "platform_server.py", store, str(self._port)])
        wait_until_sync(lambda: self._is_up())
        return self.server

    def _is_up(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/v1/health", timeout=1).status_code == 200
        except httpx2.HTTPError:
            return False

    def start(self, command: list[object], **environment: str) -> subprocess.Popen[bytes]:
        """A process that knows where the server and the ledger are."""
        given = {**os.environ, "HOLDFAST_URL": self.url, "LEDGER": str(self.ledger), **environment}
        given.pop("HOLDFAST_API_KEY", None)
        with (self.folder / "output").open("ab") as output:
            process = forked_python.start(
                [str(part) for part in command],
                library=forked_python.SERVER,
                env=given,
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def listeners(self) -> int:
        """How many listen now."""
        return len(httpx2.get(f"{self.url}/v1/workers").json()["items"])

    def output(self) -> str:
        """What all processes have printed."""
        return (self.folder / "output").read_text()

    def lines(self) -> list[list[str]]:
        """The ledger: run, step, and whatever else the listener notes."""
        return [line.split() for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def steps_of(self, run: str) -> list[str]:
        """The steps of a run, as often as they had their effect, in order."""
        return [step for one, step, _ in self.lines() if one == run]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL: nothing is cleaned up."""
    process.send_signal(signal.SIGKILL)
    process.wait()
