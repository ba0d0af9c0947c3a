from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from cli_project import Project, get_checks


def test_doctor_finds_a_sound_store_and_names_what_is_left_undone(history: Project):
    done = history("doctor")
    assert done.code == 0
    lines = done.out.splitlines()
    assert any(line.startswith("ok    durability  journal_mode=wal, synchronous=full") for line in lines)
    assert any(line.startswith("ok    store url   sqlite:///") and "(from HOLDFAST_URL)" in line for line in lines)
    assert any(line.startswith("ok    commit") and "a durable commit" in line for line in lines)
    assert "→ start one with `holdfast worker MODULE`" in done.out
    assert "`holdfast runs --state failed`" in done.out
    assert "\x1b" not in done.out


def test_doctor_as_json_has_a_verdict_for_each_check(history: Project):
    done = history.here("doctor", "--json")
    assert done.json["ok"] is True
    found = get_checks(done)
    assert {name: found[name]["status"] for name in ("python", "database", "writable", "disk", "runs")} == {
        "python": "ok",
        "database": "ok",
        "writable": "ok",
        "disk": "ok",
        "runs": "ok",
    }
    assert found["workers"]["status"] == "warn"
    assert "1 dead one" in found["workers"]["message"]
    assert found["dead"]["message"] == "1 run"


def test_doctor_leaves_everything_as_it_was(seeded: Project):
    before = sorted(path.name for path in seeded.folder.iterdir() if not path.name.startswith("__"))
    runs = seeded.here("runs", "--json").out
    seeded.here("doctor")
    assert sorted(path.name for path in seeded.folder.iterdir() if not path.name.startswith("__")) == before
    assert seeded.here("runs", "--json").out == runs


def test_doctor_does_not_create_a_database_that_is_not_there(project: Project):
    done = project.here("doctor")
    assert done.code == 0
    assert "none is there yet" in done.out
    assert "creates" in done.out
    assert [path.name for path in project.folder.iterdir()] == ["app.py"]


def test_doctor_fails_on_a_file_that_is_no_database(project: Project):
    project.database.write_text("something else " * 100)
    done = project.here("doctor", "--json")
    assert done.code == 1
    assert done.json["ok"] is False
    assert "is not a SQLite database" in get_checks(done)["database"]["message"]


def test_doctor_fails_on_the_database_of_another_program_and_on_a_newer_schema(project: Project):
    with sqlite3.connect(project.database) as connection:
        connection.execute("CREATE TABLE customers (id)")
    connection.close()
    done = project.here("doctor", "--json")
    assert done.code == 1
    assert "is not a Holdfast database" in get_checks(done)["database"]["message"]

    os.unlink(project.database)
    assert project.python("-c", "import asyncio; from app import etl; asyncio.run(etl('acme'))").code == 0
    for version, message in ((15, "from before Holdfast 0.2"), (999, "newer Holdfast")):
        connection = sqlite3.connect(project.database)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        done = project.here("doctor", "--json")
        assert done.code == 1
        assert message in get_checks(done)["database"]["message"]


def test_doctor_fails_on_a_store_that_is_not_known_and_hides_its_password(project: Project):
    done = project("doctor", "--url", "mysql://me:hunter2@somewhere/runs")
    assert done.code == 1
    assert "me:***@somewhere" in done.out
    assert "hunter2" not in done.out


def test_doctor_names_the_providers_that_are_here_and_shows_no_key(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    done = project.here("doctor", "--json")
    assert get_checks(done)["models"]["status"] == "ok"
    output = get_checks(done)["models"]["message"]
    assert output.startswith("packages for openai (OPENAI_API_KEY is set), anthropic (no ANTHROPIC_API_KEY here)")
    assert "secret" not in done.out


def test_doctor_reports_whether_mcp_servers_can_be_used(project: Project, monkeypatch: pytest.MonkeyPatch):
    done = project.here("doctor", "--json")
    assert get_checks(done)["mcp"]["message"].startswith("the package for MCP servers is installed (")
    monkeypatch.setattr("holdfast.cli.doctor.providers.find_spec", lambda name: None)
    done = project.here("doctor", "--json")
    assert get_checks(done)["mcp"]["advice"] == "to use their tools: pip install 'holdfast-agents[mcp]'"


@pytest.mark.parametrize("command", ["runs", "namespaces", "doctor"])
def test_a_folder_that_this_user_may_not_enter_is_a_clear_error(
    seeded: Project, command: str, monkeypatch: pytest.MonkeyPatch
):
    stat, access = Path.stat, os.access

    def refuse(path: Path, **options: Any) -> os.stat_result:
        if path.parent == seeded.folder:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != seeded.folder and access(path, mode))
    done = seeded.here(command)
    assert done.code == 1
    assert "may not be entered by this user" in done.out + done.err
