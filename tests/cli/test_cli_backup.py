"""``holdfast backup``, ``restore``, ``mark-restored``, and ``erase``, and what they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

from cli_project import Project

from holdfast.stores.sqlite import SqliteStore
from holdfast.stores.sqlite.worker_locks import get_process_folder
from holdfast.stores.workers import NewWorker

POSTGRES = "postgresql://localhost:1/none"


def test_a_backup_is_made_and_put_back(seeded: Project):
    before = {run["id"] for run in json.loads(seeded.here("runs", "--json").out)}
    made = seeded.here("backup", str(seeded.folder / "copy.db"))
    assert made.code == 0
    assert made.out.startswith(f"copied {seeded.database} to {seeded.folder / 'copy.db'} (")
    again = seeded.here("backup", str(seeded.folder / "copy.db"))
    assert again.code == 1
    assert "exists: nothing was copied" in again.err
    assert seeded.here("backup", str(seeded.folder / "copy.db"), "--overwrite").code == 0
    assert seeded.here("prune", "--older-than", "0s", "--yes").code == 0
    put_back = seeded("restore", str(seeded.folder / "copy.db"), "--json")
    assert put_back.code == 0, put_back.err
    answer = json.loads(put_back.out)
    assert answer["marked_run_count"] == 2  # the failed one, and the one that waits
    assert Path(answer["previous"]).exists()
    assert {run["id"] for run in json.loads(seeded.here("runs", "--json").out)} == before
    untouched = seeded("restore", str(seeded.folder / "copy.db"), "--nothing-happened", "--json")
    assert json.loads(untouched.out)["marked_run_count"] == 0


def test_all_namespaces_are_copied_to_a_folder(seeded: Project):
    shutil.copy(seeded.database, seeded.folder / "runs.eu.db")
    made = seeded.here("backup", str(seeded.folder / "monday"), "--all-namespaces", "--json")
    assert made.code == 0, made.err
    assert [Path(each["target"]).name for each in json.loads(made.out)] == ["runs.db", "runs.eu.db"]
    one = seeded.here("backup", str(seeded.folder / "eu.db"), "--namespace", "eu", "--json")
    assert json.loads(one.out)[0]["source"] == str(seeded.folder / "runs.eu.db")
    missing = seeded.here("backup", str(seeded.folder / "us.db"), "--namespace", "us")
    assert missing.code == 1
    assert "there is no database at" in missing.err


def test_other_databases_are_left_to_their_own_tools(project: Project):
    for command in ("backup", "restore"):
        refused = project.here(command, "copy.db", "--url", POSTGRES)
        assert refused.code == 1
        said = " ".join(refused.err.split())
        assert "pg_dump and pg_restore, or pg_basebackup with point-in-time recovery" in said
        assert "holdfast mark-restored --since TIME" in said
    temporal = project.here("backup", "copy.db", "--url", "temporal://localhost:7233/default")
    assert "backups: not on Temporal, whose server has a database of its own" in " ".join(temporal.err.split())
    server = project.here("mark-restored", "--since", "1h", "--url", "http://localhost:1")
    assert "needs the store itself" in " ".join(server.err.split())


async def _register_worker(database: Path) -> SqliteStore:
    store = SqliteStore(database)
    await store.open()
    await store.workers.register(NewWorker(name="w", host=os.uname().nodename, pid=os.getpid(), workflows=()), 60.0)
    return store


def test_a_database_is_not_marked_while_a_worker_runs(seeded: Project):
    async def try_to_mark() -> str:
        store = await _register_worker(seeded.database)
        try:
            return (await asyncio.to_thread(seeded, "mark-restored", "--since", "1h")).err
        finally:
            await store.close()

    assert "1 worker of" in " ".join(asyncio.run(try_to_mark()).split())
    assert get_process_folder(seeded.database).exists()


def test_erase_reports_what_it_erases_and_what_it_refuses(seeded: Project):
    runs = {run["state"]: run["id"] for run in json.loads(seeded.here("runs", "--json").out)}
    nobody = seeded.here("erase", runs["completed"])
    assert nobody.code == 1
    assert "pass --yes" in nobody.err
    planned = seeded.here("erase", runs["completed"], "--dry-run")
    assert planned.out.startswith("would erase 1 run (")
    refused = seeded.here("erase", runs["completed"], runs["waiting"], "--yes")
    assert refused.code == 1
    assert refused.out.startswith("erased 1 run (")
    assert (
        f"not erased: 1 run: it, a run that it started, or a fork of it has not ended\n    {runs['waiting']}"
        in refused.out
    )
    again = json.loads(seeded.here("erase", runs["completed"], "--yes", "--json").out)
    assert (again["run_count"], again["refused"]) == (0, {})
    shown = json.loads(seeded.here("show", runs["completed"], "--json").out)
    assert (shown["inputs"], shown["output"]) == ("<erased>", "<erased>")
    assert seeded.here("erase", "--tag", "nobody", "--yes").out == "erased 0 runs (0 records)\n"
    assert "say what" in seeded.here("erase", "--yes").err
    assert "there is no run" in seeded.here("erase", "nowhere", "--yes").err
