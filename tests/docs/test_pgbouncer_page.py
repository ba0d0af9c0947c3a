"""The page about PgBouncer: its configuration works, in transaction mode and in session mode."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

pytest.importorskip("psycopg")

import psycopg
from psycopg.conninfo import conninfo_to_dict

from free_ports import free_port
from waits import wait_until_sync

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests/stores"))

from postgres_faults import find_pooler  # noqa: E402
from postgres_server import database  # noqa: E402

from holdfast import Runtime, current_step, map, step, workflow  # noqa: E402

PAGE = (ROOT / "docs/pgbouncer.md").read_text()
[INI] = re.findall(r"^```ini\n(.*?)^```", PAGE, re.M | re.S)
CALLS = 12
"""More executions of one statement than psycopg waits for before it prepares it."""


@step(transaction=True)
async def insert(number: int) -> int:
    connection = current_step().connection
    for _ in range(CALLS):
        await connection.execute("INSERT INTO public.seen VALUES (%s)", (number,))
    return number


@step
async def double(number: int) -> int:
    return 2 * number


@workflow
async def pooled_sum(count: int) -> int:
    inserted = await map(insert, range(4), max_concurrency=2)
    return sum(await map(double, range(count))) + sum(inserted)


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest) -> Iterator[str]:
    with database() as url, TemporaryDirectory(prefix="holdfast-pooler-") as name:
        folder, target, port = Path(name), conninfo_to_dict(url), free_port()
        folder.chmod(0o777)
        config = configparser.ConfigParser()
        config.read_string(INI)
        # What is particular to this machine: where the server is, and that it asks for no password.
        host, server_port = target["host"], target.get("port", 5432)
        config["databases"] = {str(target["dbname"]): f"host={host} port={server_port} user=postgres"}
        config["pgbouncer"].update(listen_port=str(port), auth_type="any", unix_socket_dir="")
        config["pgbouncer"].update(logfile=str(folder / "log"), pool_mode=request.param)
        del config["pgbouncer"]["auth_file"]
        with (folder / "pgbouncer.ini").open("w") as file:
            config.write(file)
        user = Path(str(host)).owner() if os.geteuid() == 0 else None  # it refuses root
        process = subprocess.Popen([find_pooler(), "-q", str(folder / "pgbouncer.ini")], user=user)
        pooled_url = f"postgresql://postgres@127.0.0.1:{port}/{target['dbname']}"
        try:
            wait_until_sync(lambda: can_connect(pooled_url), "PgBouncer listens")
            yield pooled_url
        finally:
            process.terminate()
            process.wait(10)


def can_connect(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def test_runs_and_transactional_steps_work_with_the_configuration_of_the_page(pooled: str):
    with psycopg.connect(pooled) as connection:
        connection.execute("CREATE TABLE public.seen (number bigint)")

    async def run() -> list[int]:
        async with Runtime(pooled):
            return await asyncio.gather(*[pooled_sum(30 + number) for number in range(8)])

    assert asyncio.run(run()) == [sum(range(30 + number)) * 2 + 6 for number in range(8)]
    with psycopg.connect(pooled) as connection:
        assert connection.execute("SELECT count(*) FROM public.seen").fetchone() == (8 * 4 * CALLS,)
