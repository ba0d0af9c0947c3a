"""``holdfast dead``, ``holdfast prune``, ``holdfast export --all`` and ``holdfast import``."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cli_project import Project

from holdfast.services.archive_files import read_archive
from holdfast.stores.sqlite import SqliteStore


@pytest.fixture
def dead(history: Project, tmp_path: Path) -> Project:
    """A project with a dead run, to be changed."""
    return Project(shutil.copytree(history.folder, tmp_path / "dead"))


def ids(project: Project, *options: str) -> set[str]:
    return {run["id"] for run in json.loads(project.here("runs", "--json", *options).out)}


def test_dead_runs_are_listed_with_what_they_did(history: Project):
    done = history.here("dead")
    assert done.code == 0
    assert "crasher  crasher\n    dead since  " in done.out
    assert "deaths      3 workers that held no other run, the last one " in done.out
    assert "recorded    0 records" in done.out
    assert "fix the cause, then: holdfast dead retry crasher" in done.out
    [data] = json.loads(history.here("dead", "--json").out)
    assert (data["id"], data["death_count"], data["record_count"], data["last_step_name"]) == ("crasher", 3, 0, "")
    assert "died 3 times while this was the only run it held" in data["reason"]
    assert history.here("dead", "--workflow", "etl").out == "no run of workflow 'etl' is dead\n"
    assert history.here("dead", "show", "crasher").out.startswith("run        crasher\n")


def test_dead_runs_are_retried_by_id_or_all_of_them(dead: Project):
    nobody = dead.here("dead", "retry", "--all")
    assert nobody.code == 1
    assert "pass --yes" in nobody.err
    assert dead.here("dead", "retry").code == 2
    done = dead.here("dead", "retry", "--all", "--yes", "--json")
    assert done.code == 0
    data = json.loads(done.out)
    assert (data["id"], data["state"], data["changed"]) == ("crasher", "pending", True)
    assert dead.here("dead", "retry", "--workflow", "crasher").out == "no run of workflow 'crasher' is dead\n"
    again = dead.here("dead", "retry", "crasher")
    assert again.code == 1
    assert "only a failed, cancelled or dead run can be retried" in again.err


def test_dead_runs_are_purged_and_others_are_not(dead: Project):
    assert dead.here("dead", "purge", "--all").code == 2
    output = dead.here("dead", "purge", "etl-acme", "--yes")
    assert output.code == 1
    assert "kept 1 run: it is related to a run that is kept because of its state or workflow\n    etl-" in output.out
    assert dead.here("dead", "purge", "crasher", "--dry-run").out.startswith("would delete 1 run and 0 records")
    assert dead.here("dead", "purge", "--all", "--older-than", "30d", "--yes").out.startswith("deleted 0 runs")
    assert dead.here("dead", "purge", "crasher", "--yes").out.startswith("deleted 1 run and 0 records")
    assert "crasher" not in ids(dead)
    assert dead.here("dead").out == "no run is dead\n"


def test_prune_reports_what_it_would_do_and_does_it(dead: Project):
    before = ids(dead)
    would = dead.here("prune", "--older-than", "0s", "--dry-run", "--json")
    data = json.loads(would.out)
    assert (data["dry_run"], data["run_count"], data["kept_by_reason"]) == (True, 1, {})
    assert ids(dead) == before
    unasked = dead.here("prune", "--older-than", "0s")
    assert unasked.code == 1
    assert "pass --yes, or --dry-run" in unasked.err
    done = json.loads(dead.here("prune", "--older-than", "0s", "--yes", "--json").out)
    assert {**done, "dry_run": True} == data
    assert ids(dead) == before - {"etl-acme"}
    assert dead.here("prune", "--older-than", "0s", "--state", "failed", "--state", "dead", "--yes").code == 0
    assert ids(dead) == before - {"etl-acme", "etl-bad", "crasher"}


@pytest.mark.parametrize("words", [("--older-than", "soon"), ("--older-than", "1d", "--state", "waiting"), ()])
def test_prune_refuses_what_makes_no_sense(dead: Project, words: tuple[str, ...]):
    assert dead.here("prune", *words).code == 2


def test_prune_keeps_a_family_that_has_not_ended_and_says_why(undone: Project):
    done = undone.here("prune", "--older-than", "0s", "--yes")
    assert "a related run, or one of its session, has not ended\n" in done.out
    assert {"small", "small-leaf-0"} <= ids(undone)


def test_all_runs_can_be_taken_to_another_store(dead: Project):
    file, other = str(dead.folder / "runs.jsonl"), f"sqlite:///{dead.folder / 'other.db'}"
    assert dead.here("export", "--all", "-o", file).err == f"wrote 6 runs to {file}\n"
    assert dead.here("import", file, "--url", other, "--dry-run").out == "would import 6 runs\n"
    assert not (dead.folder / "other.db").exists()
    assert dead.here("import", file, "--url", other).out == "imported 6 runs\n"
    assert ids(dead) == ids(dead, "--url", other)
    again = str(dead.folder / "again.jsonl")
    dead.here("export", "--all", "-o", again, "--url", other)
    first, second = Path(file).read_text().splitlines(), Path(again).read_text().splitlines()
    assert len(first) == 8
    for one, copy in zip(first, second, strict=True):
        assert one == copy or '"state": "running"' in one
    refused = dead.here("import", file, "--url", other)
    assert refused.code == 1
    assert "6 runs of " in refused.err
    assert "nothing was imported. --skip-existing" in refused.err
    done = dead.here("import", file, "--url", other, "--skip-existing")
    assert done.out == "imported 0 runs; 6 runs were there already\n"
    assert dead.here("retry", "crasher", "--url", other).code == 0


def test_a_run_that_needs_another_one_is_not_imported_without_it(seeded: Project):
    file, other = seeded.folder / "runs.jsonl", f"sqlite:///{seeded.folder / 'other.db'}"
    seeded.here("export", "--all", "--workflow", "order", "-o", str(file))
    head, line, end = file.read_text().splitlines()
    waits = {**json.loads(line), "extras": {"links": [{"position": 0, "child_id": "elsewhere"}]}}
    file.write_text("\n".join([head, json.dumps(waits), end]))
    done = seeded.here("import", str(file), "--url", other)
    assert done.code == 1
    assert "run 'order-7' of " in done.err
    assert "needs run 'elsewhere', which is neither in the file nor in" in done.err
    assert seeded.here("runs", "--url", other).out == "no runs yet\n"


def test_an_import_that_was_interrupted_is_completed_by_the_next_one(seeded: Project):
    file, other = seeded.folder / "runs.jsonl", SqliteStore(seeded.folder / "other.db")
    seeded.here("export", "--all", "-o", str(file))

    async def begin() -> None:
        await other.open()
        with file.open() as lines:
            for archived in read_archive(lines, "file"):
                assert await other.archives.restore(archived)
        await other.close()

    asyncio.run(begin())
    [held_back] = json.loads(seeded.here("runs", "--workflow", "order", "--json", "--url", other.url).out)
    assert held_back["is_paused"]
    done = seeded.here("import", str(file), "--url", other.url, "--skip-existing")
    assert done.out == "imported 0 runs; 3 runs were there already\n"
    [order] = json.loads(seeded.here("runs", "--workflow", "order", "--json", "--url", other.url).out)
    assert (order["is_paused"], order["state"]) == (False, "waiting")


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "is not an archive of runs"), ('{"format": "holdfast-archive", "version": 9}\n', "newer Holdfast")],
)
def test_import_refuses_another_file(seeded: Project, text: str, message: str):
    file = seeded.folder / "file"
    file.write_text(text)
    done = seeded.here("import", str(file))
    assert done.code == 1
    assert message in done.err
    assert "cannot be read" in seeded.here("import", "none").err
    assert seeded.here("export").code == 2
    assert seeded.here("export", "etl-acme", "--state", "failed").code == 2


def test_an_archive_is_read_from_stdin(seeded: Project):
    other = f"sqlite:///{seeded.folder / 'other.db'}"
    archive = seeded("export", "--all").out
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "import", "-", "--url", other],
        cwd=seeded.folder,
        env=seeded.environment(PYTHONIOENCODING="ascii"),
        input=archive.encode(),
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"imported 3 runs\n", b"")
    assert ids(seeded) == ids(seeded, "--url", other)


def test_an_export_that_fails_leaves_no_file(seeded: Project):
    done = seeded.here("export", "--all", "--decrypted", "-o", str(seeded.folder / "runs.jsonl"))
    assert done.code == 1
    assert "set HOLDFAST_ENCRYPTION_KEYS" in done.err
    assert not list(seeded.folder.glob("runs.jsonl*"))


def test_retrying_none_prints_nothing_for_programs(seeded: Project):
    done = seeded.here("dead", "retry", "--all", "--json")
    assert (done.code, done.out, done.err) == (0, "", "")
