"""The Postgres store through PgBouncer, in both modes, next to direct connections. The server has ``fsync`` off here,
because a disk would hide the difference."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks import workloads
from benchmarks.drivers import run_server
from benchmarks.sqlite_benchmarks import Measurement, median
from holdfast import Runtime

MODES = ("transaction", "session")


def _configure(server: str, port: int, mode: str, folder: Path) -> str:
    """The text of a configuration file."""
    from psycopg.conninfo import conninfo_to_dict

    target = conninfo_to_dict(server)
    return (
        f"[databases]\n{target['dbname']} = host={target['host']} port={target.get('port', 5432)} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = {mode}\n"
        f"unix_socket_dir =\nlogfile = {folder / 'log'}\ndefault_pool_size = 20\n"
    )


@asynccontextmanager
async def _run_pooler(server: str, mode: str, folder: Path) -> AsyncIterator[str]:
    """The URL of the server behind a pooler."""
    from psycopg.conninfo import conninfo_to_dict

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir()
    folder.chmod(0o777)
    for parent in folder.parents[:2]:
        parent.chmod(parent.stat().st_mode | 0o011)  # the pooler refuses root, and has to reach its folder
    target = conninfo_to_dict(server)
    (folder / "pgbouncer.ini").write_text(_configure(server, port, mode, folder))
    command = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if command is None:
        raise FileNotFoundError("PgBouncer is missing: apt install pgbouncer")
    user = Path(str(target["host"])).owner() if os.geteuid() == 0 else None
    process = subprocess.Popen([command, "-q", str(folder / "pgbouncer.ini")], user=user)  # noqa: ASYNC220 - starts at once
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            await asyncio.sleep(0.05)
        yield f"postgresql://postgres@127.0.0.1:{port}/{target['dbname']}"
    finally:
        process.terminate()
        process.wait()


async def measure_poolers(folder: Path, rounds: int) -> list[Measurement]:
    import psycopg

    sequential: dict[str, list[float]] = {name: [] for name in ("directly", *MODES)}
    together: dict[str, list[float]] = {name: [] for name in ("directly", *MODES)}
    async with run_server(folder) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")
        async with _run_pooler(url, MODES[0], folder / "a") as one, _run_pooler(url, MODES[1], folder / "b") as other:
            urls = dict(zip(sequential, (url, one, other), strict=True))
            for _ in range(rounds):
                for name, place in urls.items():
                    async with Runtime(place):
                        run = workloads.sequence.options(new=True)
                        await run(20)
                        started = time.perf_counter()
                        await run(200)
                        sequential[name].append(200 / (time.perf_counter() - started))
                        started = time.perf_counter()
                        await asyncio.gather(*[run(10) for _ in range(200)])
                        together[name].append(2000 / (time.perf_counter() - started))
    return [*_compare("one run x 200 steps", sequential), *_compare("200 runs x 10 steps", together)]


def _compare(title: str, rates: dict[str, list[float]]) -> list[Measurement]:
    direct = median(rates["directly"])
    found = [Measurement(f"{title}, directly", direct, "steps/s", "")]
    for mode in MODES:
        found.append(Measurement(f"{title}, {mode} mode", median(rates[mode]), "steps/s", f"directly {direct:,.0f}"))
    return found
