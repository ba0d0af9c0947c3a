"""Commands in what a container runtime gives them: no root, a read-only root file system, and processes of their own.

Docker is not needed for that, only root on Linux. Elsewhere the commands run as ordinary processes.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import psutil
from app_processes import HERE, App, Service, World

_ISOLATE = 'mount --make-rprivate / && mount -o remount,bind,ro / && exec setpriv {} "$@"'
_USER = "--reuid 10001 --regid 10001 --clear-groups --no-new-privs"


@cache
def find_isolation(*, own_pids: bool = False) -> tuple[str, ...]:
    """The words before a command that isolate it; none where that is not possible."""
    namespaces = ["--pid", "--fork", "--mount-proc"] if own_pids else []
    words = ("unshare", "--mount", *namespaces, "sh", "-c", _ISOLATE.format(_USER), "sh")
    try:
        is_possible = subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        is_possible = False
    return words if is_possible else ()


class Container(Service):
    """A command of ``holdfast`` as a container executes it."""

    own_pids = False
    """Whether it is process 1 in a namespace of its own."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], folder: Path) -> None:
        isolation = find_isolation(own_pids=self.own_pids)
        App.__init__(self, name, [*isolation, *command], environment, folder)
        self._seen: dict[int, psutil.Process] = {}
        self._has_outer_process = bool(isolation) and self.own_pids

    @property
    def main_pid(self) -> int:
        """The main process of the container, as it is numbered outside."""
        return psutil.Process(self.pid).children()[0].pid if self._has_outer_process else self.pid

    def send(self, number: signal.Signals) -> None:
        psutil.Process(self.main_pid).send_signal(number)


class PidOneContainer(Container):
    """The same, as process 1."""

    own_pids = True


def make_app_folder(world: World) -> None:
    """Put the module ``app`` into the folder, and let the container's user write the ledger, and nothing else."""
    (world.folder / "app.py").write_text("import flows\n")
    (world.folder / "ledger").touch()
    (world.folder / "ledger").chmod(0o666)
    world.folder.chmod(0o755)


def run_container(
    world: World, arguments: list[str], kind: type[Container] = Container, **settings: object
) -> Container:
    """Start a container with these arguments for the entry point ``holdfast``."""
    paths = {"PYTHONPATH": f"{Path(sys.modules['holdfast'].__file__ or '').parents[1]}:{HERE}:{HERE / 'apps'}"}
    return world.start(kind, arguments[0], ["-m", "holdfast.cli", *arguments], **paths, **settings)


# Files


def read_dockerfile(path: Path) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile, and what follows each."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, rest in re.findall(r"^([A-Z]+) +(.*)$", joined, re.M)]


def read_unit(path: Path) -> dict[str, str]:
    """The settings of a systemd unit."""
    return dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), re.M))


def with_ports(arguments: list[str], *, probes: int, http: int | None = None) -> list[str]:
    """The arguments with ports that are free here."""
    changed = [re.sub(r":7180$", f":{probes}", word) for word in map(str, arguments)]
    assert changed != arguments, f"no probes in {shlex.join(arguments)}"
    return changed if http is None else [*changed, "--port", str(http)]


def parse_seconds(text: Any) -> float:
    """A duration such as ``45s``, or a number of seconds."""
    return float(str(text).removesuffix("s"))
